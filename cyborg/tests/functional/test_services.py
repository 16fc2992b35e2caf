# SPDX-License-Identifier: Apache-2.0
"""Signs of life: which conductors there are, and which hosts have not been heard of for long."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from oslo_config import cfg

from cyborg import db, rpc, services
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.tests import messages
from cyborg.tests.service import PATIENCE, until

pytestmark = pytest.mark.usefixtures("database")


def conductors(state: str | None = None) -> list[str]:
    """The hosts of the conductors in that state, or of all."""
    found = services.list_services(binary=services.CONDUCTOR)
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
        services.sign(uuid, "a/1", "a")
    assert conductors(services.UP) == ["a"]
    let_seconds_pass(services.DOWN_AFTER + 1)
    assert (conductors(services.UP), conductors(services.DOWN)) == ([], ["a"])
    services.sign(models.new_uuid(), "b/1", "b")
    services.sign(uuid, "a/1", "a")
    assert conductors(services.UP) == ["a", "b"]
    let_seconds_pass(services.FORGOTTEN_AFTER + 1)
    services.sign(uuid, "a/1", "a")
    assert conductors() == ["a"]
    services.leave(uuid)
    assert conductors() == []


@pytest.fixture
def start(
    conf: cfg.ConfigOpts, database_url: str, tmp_path: pathlib.Path
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
    until(lambda: sorted(conductors(services.UP)) == ["one", "two"])
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
    until(conductors)
    wire.cut()
    one.stop()
    assert "Cannot take leave" in caplog.text
    rpc.close()
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
