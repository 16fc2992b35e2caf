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
from cyborg.tests.passing_time import let_seconds_pass
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


def read_in_full() -> set[str]:
    """The hosts of whose providers it is not known how they were left; that is forgotten."""
    host, row = models.Host, models.ResourceProvider
    with db.writer() as session:
        query = sa.select(host.name).join(row, row.host_id == host.id)
        found = set(session.scalars(query.where(row.generation.is_(None))))
        db.update(session, row, generation=1)
    return found


@pytest.mark.every_database
@pytest.mark.makes_up_rows
def test_each_host_has_its_turn_every_minute(conf: cfg.ConfigOpts, database: object) -> None:
    conf.set_override("poll_interval", 3.0, group="conductor")
    names = {f"host-{number}" for number in range(50)}
    for name in names:
        hosts.apply(host=name)
    wanted()
    with db.writer() as session:
        session.add_all(
            models.ResourceProvider(uuid=models.new_uuid(), name=host.name, host_id=host.id,
                                    generation=1, written={})
            for host in session.scalars(sa.select(models.Host))
        )  # fmt: skip
    let_seconds_pass(61)
    turns: list[set[str]] = []
    # As often as a conductor looks in a minute.
    for _ in range(20):
        audit.take_turns(conf)
        turns.append(wanted())
    assert max(map(len, turns)) == 3
    assert sum(map(len, turns)) == 50
    assert set().union(*turns) == names

    audit.take_turns(conf)
    assert wanted() == set()
    let_seconds_pass(61)
    conf.set_override("placement_audit_interval", 0, group="conductor")
    read_in_full()
    audit.take_turns(conf)
    assert wanted() == turns[0]
    assert read_in_full() == set()


def test_each_host_is_read_in_full_once_in_an_interval() -> None:
    looks = range(0, 7_200_000, 61_000)
    first, second = (
        [
            {host for host in range(50) if audit._began(host, then, then + 61_000, 3600)}
            for then in half
        ]
        for half in (looks[:59], looks[59:])
    )
    for full in (first, second):
        assert sum(map(len, full)) in {49, 50, 51}
        assert len(set().union(*full)) >= 49
        # Not all at once.
        assert max(map(len, full)) < 5


def test_work_that_fails_is_not_wanted_again(conf: cfg.ConfigOpts, database: object) -> None:
    hosts.apply()
    let_seconds_pass(3700)
    audit.take_turns(conf)
    audit.look_at()
    with db.reader() as session:
        assert session.scalars(sa.select(models.Work.wanted)).all() == [1]


@pytest.mark.every_database
def test_of_very_many_hosts_some_wait(conf: cfg.ConfigOpts, database: object) -> None:
    conf.set_override("poll_interval", 1.0, group="conductor")
    with db.writer() as session:
        session.add_all(models.Host(name=f"h{number}", node="n") for number in range(1200))
    audit.take_turns(conf)
    assert len(wanted()) == 11
    let_seconds_pass(10)
    for _ in range(3):
        # However many a request would have looked at.
        audit.look_at()
    assert len(wanted()) == 63


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


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about Placement; a client of an earlier test may still miss its broker."""
    return [each.message for each in caplog.records if each.name.startswith("cyborg.placement")]


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
    assert {told.format(letter) for letter in "abcd"} == set(_said(caplog))
    caplog.clear()
    hosts.apply(hosts.card("a", range(2)))
    placement.sync()
    placement.assert_right("host-1")
    assert _said(caplog) == []


def test_a_conductor_audits_by_itself(site: Site) -> None:
    site.start()
    provider = site.placement.find("host-1_FakeDevice")
    site.placement.call("DELETE", f"/resource_providers/{provider}")
    let_seconds_pass(INTERVAL + 1)
    until(lambda: site.placement.find("host-1_FakeDevice"))
