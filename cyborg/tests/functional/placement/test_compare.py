# SPDX-License-Identifier: Apache-2.0
"""Whether Placement says what the database says.

``test_drift.py`` has the sentence of each difference that a refusal names.
"""

from __future__ import annotations

import pytest
import webob
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import compare
from cyborg.placement.client import PlacementError
from cyborg.tests import hosts
from cyborg.tests.placement_server import PlacementServer

#: Each test leaves Placement as it should not be.
pytestmark = [pytest.mark.usefixtures("card"), pytest.mark.makes_up_rows]

A = provider_uuid("host-1_a")


@pytest.fixture
def look(conf: cfg.ConfigOpts, card: str):
    """``look()`` compares the host, with no work on it left."""
    with db.writer() as session:
        db.delete(session, models.Work)
    return lambda: compare.compare_host(conf, "host-1")


def test_they_are_equal_and_reading_changes_nothing(look, placement: PlacementServer) -> None:
    placement.calls.clear()
    assert look() == compare.Comparison()
    assert {call.split()[0] for call in placement.calls} == {"GET"}


def test_each_difference_is_a_sentence(look, placement: PlacementServer) -> None:
    body = {"name": "mine", "parent_provider_uuid": placement.find(hosts.ROOT)}
    placement.call("PUT", f"/resource_providers/{A}", body)
    placement.set_traits(A, "CUSTOM_OF_THE_OPERATOR")
    placement.set_inventories(A, FPGA={"total": 9, "max_unit": 4})
    whose = f"Provider mine ({A})"
    assert set(look().differences) == {
        f"{whose} should be called host-1_a, below {hosts.ROOT}.",
        f"{whose} lacks traits CUSTOM_FAKE_DEVICE.",
        f"{whose} has total 9 of FPGA instead of 4.",
    }
    with db.writer() as session:
        for model in (models.Attribute, models.AttachHandle, models.Deployable):
            db.delete(session, model)
    assert look().differences == (f"{whose} is kept, and no deployable is behind it.",)


def test_what_is_under_way_or_cannot_be_read_is_not_wrong(look, placement: PlacementServer) -> None:
    totals = iter(range(5, 99))

    def change(method: str, path: str) -> None:
        if path.endswith("/inventories"):
            placement.set_inventories(A, FPGA={"total": next(totals), "max_unit": 4})

    placement.before = change
    assert look() == compare.Comparison(in_progress=True)
    placement.before = lambda method, path: webob.Response(status=500)
    with pytest.raises(PlacementError):
        look()
    # What is to be done is known without Placement.
    with db.writer() as session:
        work.want(session, work.PLACEMENT, ["host-1"])
    assert look() == compare.Comparison(in_progress=True)


def test_all_hosts_are_compared(look, conf: cfg.ConfigOpts) -> None:
    with db.writer() as session:
        session.add_all(
            models.Host(name=f"host-{number:03}", node=f"node-{number}") for number in range(120)
        )
    assert compare.compare_host(conf, "nobody") == compare.Comparison()
    found = list(compare.compare_all(conf))
    assert len(found) == 121
    assert {comparison for _, comparison in found} == {compare.Comparison()}
