# SPDX-License-Identifier: Apache-2.0
"""The two sides that compare.py measures: the processes of a Cyborg, ours or upstream's."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import readings
import requests
from client import Failed, until

from cyborg.tests import servers

HERE = pathlib.Path(__file__).resolve().parent
#: Upstream's API without Keystone: it believes the headers of identity.
PASTE = """[pipeline:main]
pipeline = request_id api_v2
[app:api_v2]
paste.app_factory = cyborg.api.app:app_factory
[filter:request_id]
paste.filter_factory = oslo_middleware:RequestId.factory
"""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a Cyborg is started and reported to, and the table that has its ARQs."""

    name: str
    bin: pathlib.Path
    reports: str
    arqs: str
    upgrade: tuple[str, ...]


def ours() -> Kind:
    """This project, as this environment has it."""
    programs = pathlib.Path(sys.executable).parent
    return Kind(
        name="ours", bin=programs, reports="our_reports.py", arqs="arqs", upgrade=("upgrade",)
    )


def upstream(python: pathlib.Path) -> Kind:
    """The released upstream, beside uWSGI and PyMySQL in the environment of ``python``."""
    return Kind(
        name="upstream",
        bin=python.absolute().parent,
        reports="upstream_reports.py",
        arqs="extended_accelerator_requests",
        upgrade=("upgrade",),
    )


class Neighbours:
    """Placement and the receiver of events: how often one was asked, and what the other got."""

    def __init__(self, folder: pathlib.Path, log: Any) -> None:
        self.state = folder
        #: Requests that the services sent, by who was asked.
        self.calls = {"placement": 0, "nova": 0}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "neighbours.py", folder],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        self._lines = iter(self.process.stdout or ())
        self.placement, self.nova = json.loads(next(self._lines))
        self._arrived: dict[str, threading.Event] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def expect(self, arq: str) -> threading.Event:
        """Is set as soon as the ARQ's event arrives."""
        return self._arrived.setdefault(arq, threading.Event())

    def _listen(self) -> None:
        for line in self._lines:
            word, *rest = line.split()
            if word == "event":
                self.expect(rest[0]).set()
            else:
                self.calls[word] += 1


class Side:
    """The running processes of one kind, on a database and a vhost of their own."""

    def __init__(self, kind: Kind, folder: pathlib.Path, database: str, broker: str) -> None:
        self.kind, self.folder, self.database, self._broker = kind, folder, database, broker
        self._log = (folder / "log").open("ab")
        (folder / "placement").mkdir()
        self.neighbours = Neighbours(folder / "placement", self._log)
        self.port = free_port()
        self.config = self._write_config()
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    def _write_config(self) -> pathlib.Path:
        (self.folder / "paste.ini").write_text(PASTE)
        token = {"auth_type": "admin_token", "token": "admin"}
        options: dict[str, dict[str, object]] = {
            "DEFAULT": {
                "host": "benchmark",
                "transport_url": self._broker,
                "state_path": self.folder / "state",
                "rpc_response_timeout": 1800,
            },
            "database": {"connection": self.database},
            "agent": {"enabled_drivers": "fake_driver", "resource_provider_name": "benchmark"},
            "api": {"api_paste_config": self.folder / "paste.ini"},
            "placement": {**token, "endpoint": self.neighbours.placement},
            "nova": {**token, "endpoint": self.neighbours.nova},
        }
        if self.kind.name == "ours":
            options["api"] = {"auth_strategy": "noauth"}
            # The hosts report no more when they have been measured.
            options["conductor"] = {"allocation_audit_interval": 0, "host_down_time": 7200}
            options["nova"] = {"auth_type": "none", "endpoint_override": self.neighbours.nova}
        parser = configparser.RawConfigParser(default_section="")
        parser.read_dict(options)
        path = self.folder / "cyborg.conf"
        with path.open("w") as file:
            parser.write(file)
        return path

    def start(self) -> None:
        """Make the tables and start the services; return when the API answers."""
        config = f"--config-file={self.config}"
        programs = self.kind.bin
        subprocess.run(
            [programs / "cyborg-dbsync", config, *self.kind.upgrade],
            stdout=self._log, stderr=self._log, check=True,
        )  # fmt: skip
        self._run("conductor", programs / "cyborg-conductor", config)
        self._run(
            "api", programs / "uwsgi", "--module", "cyborg.wsgi.api:application",
            "--http-socket", f"127.0.0.1:{self.port}", "--master", "--enable-threads",
            "--processes", "2", "--threads", "8", "--buffer-size", "65535", "--need-app",
            "--listen", "100", "--die-on-term", "--disable-logging",
            "--add-header", "Connection: close", "--pyargv", config,
        )  # fmt: skip
        until(f"the API of {self.kind.name}", self._answers)
        script = [programs / "python", HERE / self.kind.reports, self.config]
        self.processes["reporter"] = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._await("ready")

    def start_conductor(self, name: str) -> None:
        """Start one more, under that name."""
        self._run(name, self.kind.bin / "cyborg-conductor", f"--config-file={self.config}")

    @property
    def conductors(self) -> list[str]:
        """The names of the conductors."""
        return [name for name in self.processes if name.startswith("conductor")]

    def start_agent(self) -> None:
        """Start an agent too, to see its size."""
        self._run("agent", self.kind.bin / "cyborg-agent", f"--config-file={self.config}")

    def _run(self, name: str, *command: str | pathlib.Path) -> None:
        self.processes[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
            # uWSGI imports from the working directory first.
            cwd=self.folder,
            env=_environment(),
        )  # fmt: skip

    def _answers(self) -> bool:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise Failed(f"{name} of {self.kind.name} has ended; see {self.folder}/log")
        with contextlib.suppress(OSError):
            return requests.get(f"http://127.0.0.1:{self.port}/", timeout=30).ok
        return False

    def report(self, hosts: list[str], devices: int, handles: int, at_once: int = 4) -> None:
        """Report hosts; return when the conductor has answered for all of them."""
        asked = {"hosts": hosts, "devices": devices, "handles": handles, "at_once": at_once}
        stdin = self.processes["reporter"].stdin
        if stdin is not None:
            stdin.write(json.dumps(asked) + "\n")
            stdin.flush()
        self._await("done")

    def _await(self, word: str) -> None:
        """Read what the reporter prints up to that word; the rest, which it logs, is kept."""
        stdout = self.processes["reporter"].stdout
        for line in iter(stdout.readline, "") if stdout is not None else ():
            if line.strip() == word:
                return
            self._log.write(line.encode())
            self._log.flush()
        raise Failed(f"the reporter of {self.kind.name} ended; see {self.folder}/log")

    def pids(self, name: str) -> list[int]:
        """The processes of a service."""
        return readings.tree(self.processes[name].pid)

    def stop(self) -> None:
        """End everything."""
        started = [*self.processes.values(), self.neighbours.process]
        below = [pid for one in started for pid in readings.tree(one.pid)]
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        for one in started:
            one.wait()
        self._log.close()


@contextlib.contextmanager
def running(kind: Kind, folder: pathlib.Path) -> Iterator[Side]:
    """A side with a database, a vhost and neighbours of its own, while the block runs."""
    folder.mkdir(parents=True)
    name = f"cyborg_benchmark_{kind.name}_{os.getpid()}"
    with servers.new_database("mysql", name) as database, servers.new_vhost() as broker:
        side = Side(kind, folder, database, broker)
        try:
            side.start()
            yield side
        finally:
            side.stop()


def _environment() -> dict[str, str]:
    """That of services: this one's, with what the shipped units set."""
    own = {key: text for key, text in os.environ.items() if not key.startswith("OS_")}
    return own | {"MALLOC_ARENA_MAX": "2"}


def free_port() -> int:
    """A free port of the loopback, below those that the kernel gives to outgoing connections."""
    while True:
        port = random.SystemRandom().randint(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
