# SPDX-License-Identifier: Apache-2.0
"""Readings of sensors come with the reports of a host, and the API shows them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, metrics, rpc
from cyborg.conductor import endpoint
from cyborg.db import models
from cyborg.inventory import acceptance
from cyborg.tests import hosts
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]
MANAGER = {"x_user_id": "user", "x_project_id": "research", "x_roles": "manager,member,reader"}
WARM, HOT = {"temperature_celsius": 41.5, "power_watts": 90}, {"temperature_celsius": 88.0}


@pytest.fixture
def conductor(conf: cfg.ConfigOpts) -> endpoint.ConductorEndpoint:
    return endpoint.ConductorEndpoint(conf, lambda: None)


@pytest.fixture
def shown(conf: cfg.ConfigOpts) -> Callable[..., dict[str, Any]]:
    """The readings of each device, by its address; of devices without the field, ``absent``."""
    conf.set_override("auth_strategy", "noauth", group="api")
    api = Api(conf)

    def get(version: str = "2.4", **headers: str) -> dict[str, Any]:
        with db.reader() as session:
            uuids = session.scalars(sa.select(models.Device.uuid).order_by(models.Device.id)).all()
        found = {}
        for uuid in uuids:
            answer = api.ask("GET", f"/v2/devices/{uuid}", version=version, **headers).json
            found[answer.get("address", uuid)] = answer.get("readings", "absent")
        assert all("readings" not in each for each in api.call("GET", "/v2/devices")["devices"])
        return found

    return get


def report(readings: Any, *letters: str, **options: Any) -> dict[str, Any]:
    """A report of cards with these letters, with the readings, as it comes."""
    made = hosts.report(*(hosts.card(each) for each in letters or "ab"), **options)
    return {**made.to_wire(), "readings": readings}


def unchanged(whole: dict[str, Any], readings: Any) -> dict[str, Any]:
    """The next report, which says the same."""
    said = rpc.HostReport.from_wire(whole).unchanged()
    later = dataclasses.replace(said, counter=next(hosts._counter)).to_wire()
    return {**later, "readings": readings}


def stored() -> str | None:
    """What the column of the host has."""
    with db.reader() as session:
        return session.scalar(sa.select(sa.type_coerce(models.Host.readings, sa.Text)))


@pytest.mark.every_database
def test_readings_are_those_of_the_last_report_and_cost_no_statement(
    conductor: endpoint.ConductorEndpoint, shown: Any, count_sql: CountSql
) -> None:
    whole = report({"a": WARM, "elsewhere": HOT})
    conductor.report({}, whole)
    assert shown() == {"a": WARM, "b": None}

    with count_sql() as counter:
        assert conductor.report_unchanged({}, unchanged(whole, {"b": HOT}))
    assert len(counter.statements) == 1, counter.statements
    assert shown() == {"a": None, "b": HOT}

    with count_sql() as counter:
        conductor.report({}, report({"a": HOT}))
    assert len(counter.statements) == 1, counter.statements
    assert shown() == {"a": HOT, "b": None}

    # An agent that reads no sensors, or does not know of this.
    old = unchanged(whole, {})
    del old["readings"]
    assert conductor.report_unchanged({}, old)
    assert shown() == {"a": None, "b": None}
    assert stored() is None


def test_a_changed_report_costs_as_many_statements_with_readings(
    conductor: endpoint.ConductorEndpoint, count_sql: CountSql
) -> None:
    costs = []
    for number, readings in enumerate(({}, {"a": WARM}, {"a": HOT})):
        changed = hosts.report(hosts.card("a", range(number + 1))).to_wire()
        if not number:
            conductor.report({}, changed)
            continue
        with count_sql() as counter:
            conductor.report({}, {**changed, "readings": readings})
        costs.append(len(counter.statements))
    with count_sql() as counter:
        conductor.report({}, hosts.report(hosts.card("a", range(4))).to_wire())
    assert costs == [len(counter.statements)] * 2


def test_what_was_read_once_is_not_shown_as_present(
    conductor: endpoint.ConductorEndpoint, shown: Any
) -> None:
    conductor.report({}, report({"a": WARM, "b": HOT}))
    with db.writer() as session:
        device = models.Device
        first = session.scalars(sa.select(sa.func.min(device.id))).one()
        db.update(session, device, device.id == first, missing=True)
    assert shown() == {"a": None, "b": HOT}
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    assert shown() == {"a": None, "b": None}


def test_who_may_not_see_hosts_sees_no_readings(
    conductor: endpoint.ConductorEndpoint, shown: Any
) -> None:
    """The manager of a project may see devices."""
    conductor.report({}, report({"a": WARM}))
    assert set(shown("2.3").values()) == {"absent"}
    assert shown(**MANAGER) == {"a": None, "b": None}


FINE = {"a": WARM}
MANY = {f"0000:{number:06x}": WARM for number in range(100_000)}
HOSTILE: dict[str, Any] = {
    "no number": {"a": {**WARM, "ecc_correctable_errors": float("nan")}},
    "no end": {"a": {**WARM, "ecc_correctable_errors": float("-inf")}},
    "too large": {"a": {**WARM, "memory_used_bytes": 10**400}},
    "a text": {"a": {**WARM, "memory_used_bytes": "1"}},
    "a truth": {"a": {**WARM, "memory_used_bytes": True}},
    "a list": {"a": {**WARM, "memory_used_bytes": [1] * 1000}},
    "an unknown name": {"a": {**WARM, "<script>": 1.0}},
    "a long name": {"a": {**WARM, "x" * 10_000: 1.0}},
    "many names": {"a": {**WARM, **{str(each): 1.0 for each in range(10_000)}}},
    "a long place": {"a": WARM, "x" * 10_000: WARM},
    "no place": {"a": WARM, "\0": WARM, "\u202e": WARM},
    "no readings": {"a": WARM, "b": 7, "c": [WARM], "d": {}, "e": None},
    "too many": {"a": WARM, **MANY},
}


def test_hostile_readings_cost_the_host_these_readings_alone(
    conductor: endpoint.ConductorEndpoint, shown: Any
) -> None:
    for kind, readings in HOSTILE.items():
        whole = report(readings)
        for is_whole in (True, False):
            if is_whole:
                conductor.report({}, whole)
            else:
                assert conductor.report_unchanged({}, unchanged(whole, readings))
            assert shown() == {"a": WARM, "b": None}, kind
            assert len(stored() or "") < 20_000, kind
            assert conductor.report_unchanged({}, unchanged(whole, {}))
            assert shown() == {"a": None, "b": None}, kind


@pytest.mark.parametrize("readings", [7, None, "a", ["a"], [["a", WARM]]])
def test_what_cannot_be_readings_is_refused_with_one_sentence(
    conductor: endpoint.ConductorEndpoint, shown: Any, readings: Any
) -> None:
    whole = report(FINE)
    conductor.report({}, whole)
    with pytest.raises(acceptance.ReportRefused, match="readings must be a dictionary"):
        conductor.report({}, report(readings))
    with pytest.raises(rpc.Unreadable, match="readings must be a dictionary"):
        conductor.report_unchanged({}, unchanged(whole, readings))
    assert shown() == {"a": WARM, "b": None}
    (said,) = hosts.errors_of("host-1").values()
    assert "readings must be a dictionary" in said


def test_a_report_that_readings_make_too_large_is_refused(
    conductor: endpoint.ConductorEndpoint, conf: cfg.ConfigOpts
) -> None:
    conf.set_override("max_report_bytes", 100_000, group="conductor")
    with pytest.raises(acceptance.ReportRefused, match="more than a report may have"):
        conductor.report({}, report(MANY))


def test_the_longest_readings_are_a_small_row(conductor: endpoint.ConductorEndpoint) -> None:
    longest = dict.fromkeys(metrics.DEVICE_READINGS, -1.2345678901234567e-100)
    conductor.report({}, report({f"{each:255}": longest for each in range(1000)}))
    kept = stored()
    assert kept is not None
    assert len(json.loads(kept)) == metrics.READINGS_MAX
    assert len(kept) < 75_000


def test_readings_are_no_news(conductor: endpoint.ConductorEndpoint) -> None:
    one, other = (rpc.HostReport.from_wire(report(each, order=(1, 1))) for each in ({}, FINE))
    assert other.readings == FINE
    assert one.digest() == other.digest()
