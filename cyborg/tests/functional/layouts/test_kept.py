# SPDX-License-Identifier: Apache-2.0
"""A card keeps its layout while anybody has a part of it, and is given again what it has lost."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import rpc, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import report as inventory_report
from cyborg.placement import client
from cyborg.policy import context
from cyborg.programming import locked_operation, operation_steps, operations, program, withdrawal
from cyborg.tests import boots, engine, hosts
from cyborg.tests.one_operation import deployable, situation

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

LARGE = program.Program(function_id="large")
CARD, PART = "host-1_card", "host-1_a"


@pytest.fixture
def card() -> str:
    """The uuid of a card, below which are two parts of its layout."""
    layouts = {f"{base.LAYOUT_PREFIX}{name}": "0" for name in ("small", "large")}
    whole = hosts.deployable(
        CARD, (), program_mode=base.LAYOUT, function="small", attributes=layouts
    )
    hosts.apply(hosts.device("card", whole, hosts.deployable(PART, range(2), parent=CARD)))
    return next(each.uuid for each in hosts.deployables() if each.name == CARD)


def bind(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> str:
    """An ARQ that was to be bound to a part."""
    boots.boot(conf, ctx)
    (arq,) = boots.states(ctx)
    return arq


def ask(card: str) -> None:
    operations.ask(card, LARGE, "user 1", is_layout=True)


def taken() -> work.Item:
    """The work on the layout that is asked for."""
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    return item


def test_a_card_whose_part_is_held_keeps_its_layout(ctx, conf, card: str) -> None:
    arq = bind(ctx, conf)
    assert boots.states(ctx)[arq] == models.BOUND

    with pytest.raises(errors.Conflict, match=arq):
        ask(card)


def test_a_part_that_is_taken_while_a_layout_waits_is_kept(ctx, conf, card: str) -> None:
    ask(card)
    item, arq = taken(), bind(ctx, conf)

    with pytest.raises(locked_operation.CannotProgram, match=arq):
        operation_steps.withdraw(item, None)


def test_no_part_is_given_out_while_a_layout_is_written(ctx, conf, card, placement, root) -> None:
    placement.sync()
    assert placement.offered(boots.RP) == {"FPGA": (2, 0)}
    ask(card)
    item = taken()
    situation(item)  # it begins
    assert operation_steps.withdraw(item, None)

    placement.sync()

    assert placement.offered(boots.RP) == {"FPGA": (2, 2)}
    withdrawal.reserve(conf, item, situation(item))
    with pytest.raises(errors.Conflict, match="being programmed"):
        bind(ctx, conf)


def test_whoever_has_claimed_a_part_keeps_it(conf, card, placement, root) -> None:
    placement.sync()
    placement.allocate(models.new_uuid(), boots.RP, FPGA=1)
    ask(card)
    item = taken()

    with pytest.raises(locked_operation.CannotProgram, match=boots.RP):
        withdrawal.refuse_consumers(client.Client(conf), item, situation(item))


def report(layout: str, *, being_written: bool = False) -> bool:
    """The card shows that layout; whether the report is unchanged."""
    layouts = {f"{base.LAYOUT_PREFIX}{name}": "4" for name in ("dc", "sym")}
    part = hosts.deployable(
        "host-1_a", program_mode=base.LAYOUT, function=layout, attributes=layouts
    )
    said = hosts.report(hosts.device("card", part, being_written=being_written))
    return inventory_report.apply_report(said) == inventory_report.UNCHANGED


@pytest.fixture
def item(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> work.Item:
    """The layout of a guest was lost and written in vain, and the card shows it all the same."""
    report("dc")
    boots.boot(conf, ctx)
    report("sym")
    item = taken()
    situation(item)  # it begins
    assert operation_steps.withdraw(item, None)
    assert operation_steps.begin_to_write(item)
    failure = rpc.ProgramFailed("The link broke.", written=True)
    with pytest.raises(work.TryLater):
        operation_steps.end_failed(item, situation(item), failure, unchanged=False)
    report("dc")
    assert operation_steps.begin_to_write(item)
    assert (deployable().program_state, deployable().function_shown) == (models.DAMAGED, None)
    return item


def end_well(item: work.Item) -> None:
    answer = rpc.ProgramAnswer(function="dc", verified_by="test", report_counter=0)
    operation_steps.end_well(item, situation(item), answer)


def test_a_report_like_the_last_one_ends_it(item: work.Item) -> None:
    with pytest.raises(work.NotYet):
        end_well(item)

    assert not report("dc")

    end_well(item)
    assert deployable().program_state == models.LOADED


def test_a_report_from_while_it_is_written_does_not_end_it(item: work.Item) -> None:
    report("dc", being_written=True)

    with pytest.raises(work.NotYet):
        end_well(item)
    assert not report("dc")
    end_well(item)
