# SPDX-License-Identifier: Apache-2.0
"""Signs of life: which conductors there are, and which hosts have not been heard of for long."""

from __future__ import annotations

import contextlib
import datetime
import functools
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, liveness, rpc
from cyborg.conductor import periodic_tasks
from cyborg.conductor import service as conductor_service
from cyborg.db import models, paging
from cyborg.inventory import query
from cyborg.tests import hosts, messages
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.service import PATIENCE, until

pytestmark = pytest.mark.usefixtures("database")


def conductors(state: str | None = None) -> list[str]:
    """The hosts of the conductors in that state, or of all."""
    found = liveness.list_services(binary=liveness.CONDUCTOR)
    return [conductor.host for conductor in found if state in {None, conductor.state}]


def let_seconds_pass(seconds: int) -> None:
    """Make every sign of life so much older."""
    with db.writer() as session:
        for table in (models.Conductor, models.Host):
            db.update(session, table, last_seen_ms=table.last_seen_ms - seconds * 1000)


@pytest.mark.every_database
def test_a_conductor_is_up_then_down_then_forgotten() -> None:
    uuid = models.new_uuid()
    for _ in range(2):
        liveness.record_heartbeat(uuid, "a/1", "a")
    assert conductors(liveness.UP) == ["a"]
    let_seconds_pass(liveness.DOWN_AFTER + 1)
    assert (conductors(liveness.UP), conductors(liveness.DOWN)) == ([], ["a"])
    liveness.record_heartbeat(models.new_uuid(), "b/1", "b")
    liveness.record_heartbeat(uuid, "a/1", "a")
    assert conductors(liveness.UP) == ["a", "b"]
    let_seconds_pass(liveness.FORGET_AFTER + 1)
    liveness.record_heartbeat(uuid, "a/1", "a")
    assert conductors() == ["a"]
    liveness.remove_conductor(uuid)
    assert conductors() == []


@pytest.fixture
def start(
    database_url: str, tmp_path: pathlib.Path
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start ``cyborg-conductor`` as on that host."""
    started: list[subprocess.Popen[bytes]] = []

    def starting(host: str) -> subprocess.Popen[bytes]:
        config = tmp_path / f"{host}.conf"
        config.write_text(
            f"[DEFAULT]\nhost={host}\ntransport_url=fake://\n[database]\nconnection={database_url}\n"
        )
        command = [sys.executable, "-W", "ignore", "-m", "cyborg.cmd.conductor"]
        started.append(subprocess.Popen([*command, "--config-file", str(config)]))
        return started[-1]

    yield starting
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.every_database
def test_conductors_are_seen_until_they_stop_and_longer_where_they_are_killed(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    stopped, killed = start("one"), start("two")
    until(lambda: sorted(conductors(liveness.UP)) == ["one", "two"])
    killed.kill()
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(PATIENCE) == 0
    assert conductors() == ["two"]


@pytest.mark.parametrize(
    "database_kind", [pytest.param("postgresql", marks=pytest.mark.services)], indirect=True
)
def test_a_conductor_stops_without_its_database(
    conf: cfg.ConfigOpts, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire = messages.Wire(database_url)
    wire.join()
    conf.set_override("connection", wire.url, group="database")
    db.configure(conf)
    rpc.use_memory(conf)
    one = conductor_service.ConductorService(conf)
    one.start()
    try:
        until(conductors)
        wire.cut()
    finally:
        one.stop()
        rpc.close()
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    assert conductors(liveness.UP)
    assert "The database cannot be reached" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.every_database
def test_a_page_costs_one_select_and_pages_add_up(
    count_sql: Callable[[], contextlib.AbstractContextManager[SqlCounter]],
) -> None:
    for name in ("x", "y"):
        hosts.apply(host=name)
        liveness.record_heartbeat(models.new_uuid(), f"{name}/1", name)
    for key in liveness.COLUMNS:
        for descending in (False, True):
            order = functools.partial(paging.Page, sort_key=key, descending=descending)
            whole = [found.uuid for found in liveness.list_services(order())]
            assert len(set(whole)) == 4
            walked: list[str] = []
            while len(walked) < 4:
                marker = walked[-1] if walked else None
                with count_sql() as counter:
                    page = liveness.list_services(order(limit=3, marker=marker))
                assert len(counter.statements) == 1 + (marker is not None)
                walked += [found.uuid for found in page]
            assert walked == whole


def host_states() -> dict[str, str]:
    return {found.host: found.state for found in liveness.list_services(binary=liveness.AGENT)}


@pytest.mark.every_database
def test_a_host_that_does_not_report_is_down_until_it_does(
    conf: cfg.ConfigOpts,
    count_sql: Callable[[], contextlib.AbstractContextManager[SqlCounter]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "cyborg")
    hosts.apply(hosts.card("a"))
    hosts.apply(hosts.device("b", hosts.deployable("host-2_b")), host="host-2")
    let_seconds_pass(conf.conductor.host_down_time + 1)
    hosts.apply(hosts.device("b", hosts.deployable("host-2_b")), host="host-2")
    caplog.clear()
    for _ in range(2):
        liveness.mark_hosts_down(conf)
    assert host_states() == {"host-1": liveness.DOWN, "host-2": liveness.UP}
    assert caplog.messages == ["Host host-1 is down: it has not reported for 180 s"]
    assert len(query.list_devices()) == 2

    caplog.clear()
    with count_sql() as counter:
        hosts.apply(hosts.card("a"))
    # One of them wants Placement to offer the host again.
    assert len(counter.statements) <= 4
    hosts.apply(hosts.card("a"))
    assert host_states()["host-1"] == liveness.UP
    assert caplog.messages == ["Host host-1 is up again"]

    let_seconds_pass(conf.conductor.host_down_time + 1)
    liveness.mark_hosts_down(conf)
    hosts.apply(hosts.card("a", range(3)))
    assert host_states() == {"host-1": liveness.UP, "host-2": liveness.DOWN}
    assert caplog.messages.count("Host host-1 is up again") == 2


@pytest.mark.every_database
def test_of_many_conductors_one_says_that_a_host_is_down(
    conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"host-{number}" for number in range(20)]
    for name in names:
        hosts.apply(host=name)
    let_seconds_pass(conf.conductor.host_down_time + 1)
    with futures.ThreadPoolExecutor() as pool:
        for _ in pool.map(liveness.mark_hosts_down, [conf] * 8):
            pass
    assert set(host_states().values()) == {liveness.DOWN}
    assert len([text for text in caplog.messages if "is down" in text]) == len(names)


class Clock:
    """The time of a conductor that looks every ten seconds or so, and of the database."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.now = 0.0
        self._conf = conf
        self.watch = liveness.Watch(lambda: self.now)

    def look(self, seconds: int, *reporting: str, each: int = 10) -> None:
        """Let so much time pass, in which these hosts report every minute, from the start on."""
        for passed in range(0, seconds, each):
            if passed % 60 == 0:
                for name in reporting:
                    hosts.apply(host=name)
            self.watch.mark_hosts_down(self._conf)
            self.pause(each)

    def pause(self, seconds: int) -> None:
        """Let so much time pass in which the conductor does not look."""
        self.now += seconds
        let_seconds_pass(seconds)


ONE, OTHER, DEAD = "host-1", "host-2", "host-3"


@pytest.fixture
def clock(conf: cfg.ConfigOpts) -> Clock:
    """One host reports half a minute after the other, and a third one has fallen silent."""
    clock = Clock(conf)
    clock.look(240, ONE, OTHER, DEAD)
    clock.look(30, ONE)
    clock.look(30, OTHER)
    assert set(host_states().values()) == {liveness.UP}
    return clock


def down() -> set[str]:
    return {name for name, state in host_states().items() if state == liveness.DOWN}


@pytest.mark.parametrize("outage", [100, 150, 200, 1200])
def test_what_keeps_all_hosts_from_being_heard_brings_none_down(
    clock: Clock, caplog: pytest.LogCaptureFixture, outage: int
) -> None:
    """Such as a broker that was away; they report again one after the other."""
    clock.look(outage)
    clock.look(30, ONE)
    assert down() <= {DEAD}
    clock.look(30, OTHER)
    said = [text for text in caplog.messages if text.startswith("No host has reported for")]
    assert len(said) == (outage > 180)
    for _ in range(3):
        clock.look(60, ONE, OTHER)
    assert down() == {DEAD}


@pytest.mark.parametrize("seconds", [100, 3600])
def test_a_conductor_that_could_not_look_does_not_judge_at_once(clock: Clock, seconds: int) -> None:
    """It was stopped, or had no database; a report may be there before it looks again."""
    clock.pause(seconds)
    clock.look(170, ONE)
    assert down() == set()
    clock.look(180, ONE)
    assert down() == {OTHER, DEAD}


def test_a_conductor_that_was_just_started_marks_no_host(conf: cfg.ConfigOpts) -> None:
    for name in (ONE, OTHER):
        hosts.apply(host=name)
    let_seconds_pass(conf.conductor.host_down_time + 1)
    clock = Clock(conf)
    clock.look(180, ONE)
    assert down() == set()
    clock.look(10, ONE)
    assert down() == {OTHER}


def test_hosts_that_are_all_silent_for_long_are_down_in_the_end(clock: Clock) -> None:
    clock.look(3600, each=60)
    assert down() == set()
    clock.look(300)
    assert down() == {ONE, OTHER, DEAD}


def test_the_last_host_that_is_up_is_down_as_soon_as_any(clock: Clock) -> None:
    clock.look(240, ONE)
    assert down() == {OTHER, DEAD}
    clock.look(190)
    assert down() == {ONE, OTHER, DEAD}


def test_a_conductor_notices_by_itself(conf: cfg.ConfigOpts) -> None:
    conf.set_override("poll_interval", 0.1, group="conductor")
    conf.set_override("host_down_time", 1, group="conductor")
    hosts.apply()
    let_seconds_pass(conf.conductor.host_down_time + 1)
    rpc.use_memory(conf)
    one = conductor_service.ConductorService(conf)
    one.start()
    try:
        until(lambda: host_states() == {"host-1": liveness.DOWN})
    finally:
        one.stop()
        rpc.close()


@pytest.mark.makes_up_rows
def test_what_a_task_meets_keeps_no_other_from_being_done(
    conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    with db.writer() as session:
        session.execute(sa.text("DROP TABLE hosts"))
        old = models.utcnow() - datetime.timedelta(seconds=conf.conductor.arq_expiry + 1)
        session.add(
            models.Arq(state=models.INITIAL, device_profile_name="p", group={}, created_at=old)
        )
    assert periodic_tasks.run_all(conf, liveness.Watch()) == conf.conductor.poll_interval
    assert "Periodic task cyborg.liveness.mark_hosts_down failed" in caplog.text
    with db.reader() as session:
        assert session.scalars(sa.select(models.Arq)).all() == []
