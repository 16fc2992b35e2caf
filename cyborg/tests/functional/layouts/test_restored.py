# SPDX-License-Identifier: Apache-2.0
"""A layout that is written again under its guest counts when a report shows it with its handles."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import rpc, work
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import report as inventory_report
from cyborg.policy import context
from cyborg.programming import operation_steps
from cyborg.tests import boots, engine, hosts
from cyborg.tests.one_operation import deployable

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


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
    boots.bind(ctx, boots.arqs(ctx, 1, boots.GROUP), models.new_uuid())
    engine.drain(conf)
    report("sym")
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    assert operation_steps.read(item) is not None
    assert operation_steps.withdraw(item, None)
    assert operation_steps.begin_to_write(item)
    situation = operation_steps.read(item)
    assert situation is not None
    failure = rpc.ProgramFailed("The link broke.", written=True)
    with pytest.raises(work.TryLater):
        operation_steps.end_failed(item, situation, failure, unchanged=False)
    report("dc")
    assert operation_steps.begin_to_write(item)
    assert (deployable().program_state, deployable().function_shown) == (models.DAMAGED, None)
    return item


def end_well(item: work.Item) -> None:
    situation = operation_steps.read(item)
    assert situation is not None
    answer = rpc.ProgramAnswer(function="dc", verified_by="test", report_counter=0)
    operation_steps.end_well(item, situation, answer)


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
