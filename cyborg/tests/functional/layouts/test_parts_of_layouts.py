# SPDX-License-Identifier: Apache-2.0
"""The parts of a layout below its card: the card keeps its layout while anybody has one."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import work
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.placement import client
from cyborg.policy import context
from cyborg.programming import locked_operation, operation_steps, operations, program, withdrawal
from cyborg.tests import boots, engine, hosts
from cyborg.tests.placement_server import PlacementServer

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
    (arq,) = boots.arqs(ctx, 1, boots.GROUP)
    boots.bind(ctx, [arq], models.new_uuid())
    engine.drain(conf)
    return arq


def withdraw(card: str) -> work.Item:
    """Another layout is about to be written."""
    operations.ask(card, LARGE, "user 1", is_layout=True)
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    assert operation_steps.read(item) is not None
    assert operation_steps.withdraw(item, None)
    return item


def test_a_card_whose_part_is_held_keeps_its_layout(ctx, conf, card: str) -> None:
    arq = bind(ctx, conf)
    assert boots.states(ctx)[arq] == models.BOUND

    with pytest.raises(errors.Conflict, match=arq):
        operations.ask(card, LARGE, "user 1", is_layout=True)


def test_a_part_that_is_taken_while_a_layout_waits_is_kept(ctx, conf, card: str) -> None:
    operations.ask(card, LARGE, "user 1", is_layout=True)
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    arq = bind(ctx, conf)

    with pytest.raises(locked_operation.CannotProgram, match=arq):
        operation_steps.withdraw(item, None)


def test_a_part_is_not_given_out_while_a_layout_is_written(
    ctx, conf, card: str, placement: PlacementServer, root: str
) -> None:
    placement.sync()
    assert placement.offered(boots.RP) == {"FPGA": (2, 0)}
    item = withdraw(card)
    known = operation_steps.read(item)
    assert known is not None

    placement.sync()

    assert placement.offered(boots.RP) == {"FPGA": (2, 2)}
    withdrawal.reserve(conf, item, known)
    with pytest.raises(errors.Conflict, match="being programmed"):
        bind(ctx, conf)


def test_whoever_has_claimed_a_part_keeps_it(
    conf, card: str, placement: PlacementServer, root: str
) -> None:
    placement.sync()
    placement.allocate(models.new_uuid(), boots.RP, FPGA=1)
    operations.ask(card, LARGE, "user 1", is_layout=True)
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    known = operation_steps.read(item)
    assert known is not None

    with pytest.raises(locked_operation.CannotProgram, match=boots.RP):
        withdrawal.refuse_consumers(client.Client(conf), item, known)
