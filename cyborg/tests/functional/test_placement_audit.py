# SPDX-License-Identifier: Apache-2.0
"""Drift that nobody announced: the audit finds it, host by host, and puts it right."""

from __future__ import annotations

from concurrent import futures

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import audit
from cyborg.tests import hosts
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import Site, until

A, B = provider_uuid("host-1_a"), provider_uuid("host-1_b")
#: Seconds, more than any test takes.
INTERVAL = 10_000


@pytest.fixture(autouse=True)
def interval(conf: cfg.ConfigOpts) -> None:
    conf.set_override("placement_audit_interval", INTERVAL, group="conductor")
    conf.set_override("poll_interval", INTERVAL / 20, group="conductor")


def wanted() -> set[str]:
    """The hosts whose providers are to be looked at; they are not any more."""
    with db.writer() as session:
        keys = session.scalars(sa.select(models.Work.key).where(models.Work.kind == work.PLACEMENT))
        found = set(keys)
        db.delete(session, models.Work)
    return found


@db.retry
def let_seconds_pass(seconds: int) -> None:
    """Make the last audit of every host so much older."""
    with db.writer() as session:
        host = models.Host
        db.update(session, host, audited_ms=host.audited_ms - seconds * 1000)


@pytest.mark.every_database
def test_each_host_has_its_turn_once_in_an_interval(conf: cfg.ConfigOpts, database: object) -> None:
    names = {f"host-{number}" for number in range(50)}
    for name in names:
        hosts.apply(host=name)
    wanted()
    let_seconds_pass(INTERVAL + 1)
    turns: list[set[str]] = []
    # As often as a conductor looks in an interval.
    for _ in range(20):
        audit.take_turns(conf)
        turns.append(wanted())
    assert max(map(len, turns)) == 3
    assert sum(map(len, turns)) == 50
    assert set().union(*turns) == names

    let_seconds_pass(INTERVAL // 2)
    audit.take_turns(conf)
    assert wanted() == set()
    let_seconds_pass(INTERVAL + 1)
    conf.set_override("placement_audit_interval", 0, group="conductor")
    audit.take_turns(conf)
    assert wanted() == set()
    conf.set_override("placement_audit_interval", INTERVAL, group="conductor")
    audit.take_turns(conf)
    assert wanted() == turns[0]


@pytest.mark.every_database
def test_conductors_do_not_audit_a_host_twice(conf: cfg.ConfigOpts, database: object) -> None:
    for number in range(12):
        hosts.apply(host=f"host-{number}")
    wanted()
    let_seconds_pass(INTERVAL + 1)
    with futures.ThreadPoolExecutor() as pool:
        for _ in pool.map(audit.take_turns, [conf] * 30):
            pass
    for _ in range(12):
        audit.take_turns(conf)
    with db.reader() as session:
        times = session.scalars(sa.select(models.Work.wanted)).all()
    assert times == [1] * 12


def test_drift_of_every_kind_is_put_right_and_told(
    placement: PlacementServer,
    root: str,
    database: sa.Engine,
    conf: cfg.ConfigOpts,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abcd"))
    placement.sync()
    for letter in "bc":
        placement.call("DELETE", f"/resource_providers/{provider_uuid(f'host-1_{letter}')}")
    placement.set_inventories(A, FPGA={"total": 9})
    # As it was, as far as a list shows.
    placement.call(
        "POST",
        "/resource_providers",
        {"name": "host-1_b", "uuid": B, "parent_provider_uuid": root},
    )
    placement.set_traits(provider_uuid("host-1_d"))

    let_seconds_pass(INTERVAL + 1)
    audit.take_turns(conf)
    assert wanted() == {"host-1"}
    placement.sync()

    placement.assert_right("host-1")
    told = "Provider host-1_{} is not as it was left; putting it right"
    assert {told.format(letter) for letter in "abcd"} == set(caplog.messages)
    caplog.clear()
    hosts.apply(hosts.card("a", range(2)))
    placement.sync()
    placement.assert_right("host-1")
    assert caplog.messages == []


def test_a_conductor_audits_by_itself(site: Site) -> None:
    site.start()
    provider = site.placement.find("host-1_FakeDevice")
    site.placement.call("DELETE", f"/resource_providers/{provider}")
    let_seconds_pass(INTERVAL + 1)
    until(lambda: site.placement.find("host-1_FakeDevice"))
