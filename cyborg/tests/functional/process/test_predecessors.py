# SPDX-License-Identifier: Apache-2.0
"""A conductor that starts again does at once what it had claimed when it was killed."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from oslo_config import cfg

from cyborg import db, work
from cyborg.conductor import predecessors
from cyborg.tests import engine

pytestmark = pytest.mark.slow

#: Claims a row as a conductor does, and lives until it is killed.
CONDUCTOR = """
import sys
from oslo_config import cfg
from cyborg import conf, db, work
from cyborg.conductor import predecessors
options = cfg.ConfigOpts()
conf.register(options)
url, state_path, name = sys.argv[1:]
options(args=[], default_config_files=[], default_config_dirs=[])
options.set_override("state_path", state_path)
db.register(options)
options.set_override("connection", url, group="database")
db.configure(options)
predecessors.take_over(options, name)
claims, _ = work.take(iter([f"{name}#1"]), 3600, {"test": 1})
print(claims[0].key, flush=True)
sys.stdin.read()
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(database_url: str, conf: cfg.ConfigOpts) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CONDUCTOR, database_url, conf.state_path, name]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def claimable() -> list[str]:
    found = []
    while item := engine.take("another", 60, ["test"]):
        found.append(item.key)
    return found


@pytest.mark.every_database
def test_what_the_dead_had_claimed_is_given_back(database, conf, start) -> None:
    with db.writer() as session:
        work.want(session, "test", ["a", "b"])
    dead, alive = start("host-1/one"), start("host_1/two")
    assert claimable() == []
    dead.kill()
    dead.wait()

    predecessors.take_over(conf, "host-1/three")
    predecessors.take_over(conf, "host-1/four")

    assert len(claimable()) == 1
    assert alive.poll() is None
    assert len(list(pathlib.Path(conf.state_path, "conductors").iterdir())) == 3


def test_without_files_the_lease_decides(database, conf, tmp_path) -> None:
    (tmp_path / "file").touch()
    conf.set_override("state_path", str(tmp_path / "file"))
    with db.writer() as session:
        work.want(session, "test", ["a"])
    assert engine.take("host-1/one#1", 60, ["test"]) is not None

    predecessors.take_over(conf, "host-1/two")

    assert claimable() == []
