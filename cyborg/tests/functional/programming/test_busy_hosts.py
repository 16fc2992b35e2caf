# SPDX-License-Identifier: Apache-2.0
"""An operation on a host of which there is always something to tell Placement."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import db, work
from cyborg.programming import operation_steps, operations, withdrawal
from cyborg.tests import engine, hosts
from cyborg.tests.one_operation import withdrawn
from cyborg.tests.placement_server import PlacementServer

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


@pytest.fixture
def item(root: str, placement: PlacementServer) -> work.Item:
    """An operation whose card is withdrawn, which Placement has yet to be told."""
    hosts.apply(hosts.card("a", program_mode="dynamic", function=""))
    placement.sync()
    return withdrawn()


def run(conf: cfg.ConfigOpts, item: work.Item) -> str:
    """Carry it out, as far as it goes without an agent; its state."""
    with pytest.raises(work.TryLater):
        operation_steps.run(conf, item)
    (operation,) = operations.list_operations()
    return operation.state


def test_it_waits_while_it_is_on_offer_and_not_for_what_others_want(
    conf, item, placement, monkeypatch
) -> None:
    monkeypatch.setattr(withdrawal, "PLACEMENT_WAIT", 0.1)
    assert run(conf, item) == operations.RESERVING
    placement.sync_once()
    with db.writer() as session:
        work.want(session, work.PLACEMENT, ["host-1"])

    assert run(conf, item) == operations.WRITING


def test_it_waits_for_an_update_that_may_not_know_of_it(conf, item, placement, monkeypatch) -> None:
    """It may offer again what Placement shows as withdrawn now."""
    monkeypatch.setattr(withdrawal, "PLACEMENT_WAIT", 0.1)
    placement.sync_once()
    update = engine.take("conductor-2", 600, [work.PLACEMENT])
    assert update is not None

    assert run(conf, item) == operations.RESERVING

    work.finish(update)
    assert run(conf, item) == operations.WRITING
