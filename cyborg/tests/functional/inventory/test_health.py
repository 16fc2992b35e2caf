# SPDX-License-Identifier: Apache-2.0
"""An unhealthy device is given to nobody, with the reason, until it is healthy again."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import sqlalchemy as sa

from cyborg import db, history, work
from cyborg.arqs import binding
from cyborg.common import errors
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.rpc import lines
from cyborg.tests import boots, engine, hosts
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.usefixtures("database")

HOT = "temperature is 105 degrees"


def _health() -> dict[str, str | None]:
    with db.reader() as session:
        query = sa.select(models.Deployable.name, models.Device.unhealthy)
        of_host = models.Deployable.name.startswith("host-1")
        return dict(list(session.execute(query.join(models.Deployable.device).where(of_host))))


def _wanted() -> list[tuple[str, str]]:
    """The work that is wanted, which is forgotten then."""
    with db.writer() as session:
        found = [(row.kind, row.key) for row in session.scalars(sa.select(models.Work))]
        db.delete(session, models.Work)
        return found


@pytest.mark.every_database
def test_health_alone_is_a_change(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    # Other tests may have said a hundred in this minute.
    monkeypatch.setattr(lines, "_said", {})
    hosts.apply(hosts.card("a"), hosts.card("b"))
    hosts.apply(hosts.device("a", hosts.deployable("host-2_a")), host="host-2")
    _wanted()
    for reason in (HOT, "it does not answer", None):
        hosts.apply(hosts.card("a", unhealthy=reason), hosts.card("b"))
        assert _health() == {"host-1_a": reason, "host-1_b": None}
        assert _wanted() == [(work.PLACEMENT, "host-1")]
        hosts.apply(hosts.card("a", unhealthy=reason), hosts.card("b"))
        assert _wanted() == []
    told = [record.getMessage() for record in caplog.records if "healthy" in record.getMessage()]
    levels = [record.levelname for record in caplog.records if "healthy" in record.getMessage()]
    assert levels == ["WARNING", "WARNING", "INFO"]
    assert told == [
        f"Device PCI a of host host-1 is unhealthy: {HOT}",
        "Device PCI a of host host-1 is unhealthy: it does not answer",
        "Device PCI a of host host-1 is healthy again",
    ]


@pytest.mark.every_database
def test_health_that_changes_with_each_report_is_told_so_often_and_the_last_in_the_end() -> None:
    def faults() -> list[tuple[str | None, bool]]:
        device = history.list_entries(None, kind=history.UNHEALTHY)
        return [(each.private_reason, each.ended_ms is None) for each in device]

    hosts.apply(hosts.card("a"), hosts.card("b"))
    for number in range(3 * history.FAULTS_MAX):
        now = f"{number} errors" if number % 3 else None
        hosts.apply(hosts.card("a", unhealthy=now), hosts.card("b"))
        assert _health() == {"host-1_a": now, "host-1_b": None}
    assert len(faults()) == history.FAULTS_MAX
    assert not [reason for reason, is_open in faults() if is_open], "an old fault is shown"
    # It is told as soon as it may, though nothing is new in the report.
    hour = models.HistoryEntry.started_ms - 3_600_000
    with db.writer() as session:
        db.update(session, models.HistoryEntry, started_ms=hour)
    for _ in range(2):
        hosts.apply(hosts.card("a", unhealthy=now), hosts.card("b"))
        assert [reason for reason, is_open in faults() if is_open] == [now]
    # The health of another device is told as ever.
    hosts.apply(hosts.card("a", unhealthy=now), hosts.card("b", unhealthy=HOT))
    assert {reason for reason, is_open in faults() if is_open} == {now, HOT}


def test_it_is_reserved_and_nothing_else_is_written(
    placement: PlacementServer, root: str
) -> None:
    well = [hosts.card("a"), hosts.card("b")]
    hosts.apply(*well)
    placement.sync()
    for reason, reserved in ((HOT, 4), (None, 0)):
        placement.calls.clear()
        hosts.apply(hosts.card("a", unhealthy=reason), well[1])
        placement.sync()
        assert placement.calls == [
            "GET /resource_providers",
            f"PUT /resource_providers/{boots.RP}/inventories",
        ]
        assert placement.offered(boots.RP) == {"FPGA": (4, reserved)}
        assert placement.offered(provider_uuid("host-1_b")) == {"FPGA": (4, 0)}
        placement.assert_right("host-1")


def test_a_request_to_bind_to_it_is_refused_with_the_reason(ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card("a", unhealthy=HOT))
    uuids = boots.arqs(ctx)
    _wanted()
    with pytest.raises(errors.Conflict, match=HOT):
        boots.bind(ctx, uuids, models.new_uuid())
    assert set(boots.states(ctx).values()) == {models.INITIAL}
    assert _wanted() == []


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("prepares", "state"), [(False, models.BOUND), (True, models.BIND_STARTED)]
)
def test_whoever_has_a_handle_keeps_it(
    ctx: context.RequestContext, *, prepares: bool, state: str
) -> None:
    hosts.apply(hosts.card("a", prepares=prepares))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    item = engine.take("test", 30.0, [work.BIND])
    assert (item is not None) is prepares
    if item is not None:
        binding.bind_instance(item)
    held = boots.handles(ctx)
    hosts.apply(hosts.card("a", prepares=prepares, unhealthy=HOT))
    assert boots.handles(ctx) == held != []
    assert boots.states(ctx) == {uuids[0]: state}


@pytest.mark.parametrize("before", [HOT, None])
def test_a_device_whose_health_cannot_be_told_stays_as_it_was(
    before: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    hosts.apply(hosts.card("a", unhealthy=before))
    caplog.clear()
    unknown = dataclasses.replace(hosts.card("a"), health_unknown=True)
    hosts.apply(unknown, errors={hosts.DRIVER: "The health of a cannot be told"})
    assert _health() == {"host-1_a": before}
    hosts.apply(by_driver={}, errors={hosts.DRIVER: "it raised"})

    assert _health() == {"host-1_a": before}
    assert "healthy" not in caplog.text
    hosts.apply(hosts.card("a"))
    assert _health() == {"host-1_a": None}
