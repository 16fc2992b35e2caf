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
from cyborg.programming import executor
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
def claim(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> work.Claim:
    """The layout of a guest was lost and written in vain, and the card shows it all the same."""
    report("dc")
    boots.bind(ctx, boots.arqs(ctx, 1, boots.GROUP), models.new_uuid())
    engine.drain(conf)
    report("sym")
    claim = engine.claim("conductor-1", 600, [work.PROGRAM])
    assert claim is not None
    assert executor.read(claim) is not None
    assert executor.withdraw(claim, None)
    assert executor.begin_to_write(claim)
    situation = executor.read(claim)
    assert situation is not None
    failure = rpc.ProgramFailed("The link broke.", written=True)
    with pytest.raises(work.TryLater):
        executor.end_failed(claim, situation, failure, unchanged=False)
    report("dc")
    assert executor.begin_to_write(claim)
    assert (deployable().program_state, deployable().function_shown) == (models.DAMAGED, None)
    return claim


def end_well(claim: work.Claim) -> None:
    situation = executor.read(claim)
    assert situation is not None
    answer = rpc.ProgramAnswer(function="dc", verified_by="test", report_counter=0)
    executor.end_well(claim, situation, answer)


def test_a_report_like_the_last_one_ends_it(claim: work.Claim) -> None:
    with pytest.raises(work.NotYet):
        end_well(claim)

    assert not report("dc")

    end_well(claim)
    assert deployable().program_state == models.LOADED


def test_a_report_from_while_it_is_written_does_not_end_it(claim: work.Claim) -> None:
    report("dc", being_written=True)

    with pytest.raises(work.NotYet):
        end_well(claim)
    assert not report("dc")
    end_well(claim)
