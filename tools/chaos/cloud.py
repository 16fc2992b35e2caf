# SPDX-License-Identifier: Apache-2.0
"""The cloud under test: its servers, its processes and their configuration."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parts
import requests
import sqlalchemy as sa
from clusters import CLUSTERS
from oslo_config import cfg
from parts import Part
from waiting import START_SECONDS, Failed, until

from cyborg import conf as cyborg_conf
from cyborg import db, host_keys
from cyborg.db import schema
from cyborg.placement import local
from cyborg.tests import messages, servers, signed

SERVICES = Path(__file__).resolve().parents[1] / "services.sh"
BIN = Path(sys.executable).parent
#: The hosts, and whether their drivers prepare and clean.
HOSTS = {"plain-1": False, "plain-2": False, "step-1": True, "step-2": True}
CONDUCTORS = ("conductor-1", "conductor-2")
DEVICES = 2
HANDLES = 16

#: Options of conductors with which a dead one is replaced soon; otherwise the defaults apply.
QUICK = {"work_lease": 5, "poll_interval": 1}

_DATABASES = {"mysql": "mariadb", "postgresql": "postgresql"}


class Servers:
    """A private RabbitMQ and database, which the suite may break."""

    def __init__(self, state: Path, database: str, logs: Path) -> None:
        self._env = os.environ | {"CYBORG_SERVICES_DIR": str(state)}
        #: The servers of the database, if there are several.
        self.cluster = CLUSTERS[database](logs) if database in CLUSTERS else None
        self.database_kind = self.cluster.kind if self.cluster else database
        self.kinds = ["rabbitmq"] if self.cluster else ["rabbitmq", _DATABASES[database]]

    def run(self, *arguments: str, check: bool = True) -> str:
        """Run tools/services.sh."""
        done = subprocess.run(
            [SERVICES, *arguments], env=self._env, stdout=subprocess.PIPE, text=True, check=False
        )
        if check and done.returncode != 0:
            raise Failed(f"{SERVICES.name} {' '.join(arguments)} failed")
        return done.stdout

    def start(self) -> None:
        """Start both, and set the environment variables that name them."""
        self.run("start", *self.kinds)
        for line in self.run("env", *self.kinds).splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ[name] = value
        if self.cluster is not None:
            self.cluster.start()
            os.environ[servers.VARIABLES[self.database_kind]] = self.cluster.wire.url

    def stop(self) -> None:
        """Stop both and delete their data."""
        if self.cluster is not None:
            self.cluster.stop()
        self.run("stop", *self.kinds)


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A deployable as clients know it."""

    hostname: str
    uuid: str
    steps: bool


class Cloud:
    """Every process of the cloud by name, and queries to its services."""

    def __init__(self, folder: Path, servers_: Servers, url: str) -> None:
        self.folder = folder
        self.servers = servers_
        self.database = url
        #: The proxy through which Cyborg's processes reach RabbitMQ.
        self.wire = messages.Wire(servers.url_of("rabbitmq"))
        self.broker = servers.url_of("rabbitmq")
        self.sink = parts.SinkFiles(mode=folder / "sink-mode", taken=folder / "sink-taken")
        self._api_port, self._placement_port, self._sink_port = free_ports(3)
        self.url = f"http://127.0.0.1:{self._api_port}/v2"
        self.placement_url = f"http://127.0.0.1:{self._placement_port}"
        #: The conductors' private key, and its public part once it is made.
        self._private_key = folder / "conductor.pem"
        self._conductors_key = ""
        self.parts: dict[str, Part] = {}
        self.conf = cfg.ConfigOpts()

    def start(self) -> None:
        """Start everything; return when Placement has the inventory of every device."""
        self.wire.join()
        self.sink.taken.touch()
        self.set_sink(parts.TAKE)
        self._prepare_database()
        self._conductors_key = signed.new_key(self._private_key)
        self._add("placement", "placement", parts.placement, self._folder("placement"),
                  self._placement_port)
        self._add("sink", "sink", parts.sink, self.sink, self._sink_port)
        self.conduct("quick")
        for host, steps in HOSTS.items():
            self._agent(host, steps=steps)
        self._cyborg("api", "api", self._controller("api", {}))
        for part in self.parts.values():
            part.start()
        until("the cloud", self._stands)

    def _prepare_database(self) -> None:
        cyborg_conf.register(self.conf)
        db.register(self.conf)
        self.conf(args=[], default_config_files=[], default_config_dirs=[])
        for name, value in self._database_options().items():
            self.conf.set_override(name, value, group="database")
        local.point_at(self.conf, self.placement_url)
        db.configure(self.conf)
        schema.upgrade()

    def _database_options(self) -> dict[str, object]:
        cluster = self.servers.cluster
        return {"connection": self.database, **(cluster.options if cluster else {})}

    def _stands(self) -> bool:
        for part in self.parts.values():
            if not part.alive:
                raise Failed(f"{part.name} has ended:\n{tail(part.log)}")
        if not self.answers():
            return False
        try:
            offered = self.placement("GET", "/resource_providers?resources=FPGA:1")
        except requests.RequestException:
            # The machine is busy.
            return False
        return len(offered.json()["resource_providers"]) == len(HOSTS) * DEVICES

    def answers(self) -> bool:
        """Whether every server of the cloud answers."""
        try:
            self.placement("GET", "/")
            requests.get(self.url, timeout=5)
            socket.create_connection(("127.0.0.1", self._sink_port), timeout=5).close()
        except OSError:
            return False
        return True

    def conduct(self, timing: str) -> None:
        """Configure the conductors for their next start: ``quick`` timing, or the default."""
        for name in CONDUCTORS:
            options = QUICK if timing == "quick" else {}
            self._cyborg(name, "conductor", self._controller(name, options))

    def check(self) -> list[str]:
        """The findings of ``cyborg-status check``.

        The command runs again while Placement is being updated after a host's report.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            part, said = self._ask_status()
            if said is None:
                return [f"cyborg-status check ended with {part.status}:\n{tail(part.log)}"]
            if said["findings"]:
                return [f"{found['check']}: {found['finding']}" for found in said["findings"]]
            if said["hosts"] == {"compared": len(HOSTS), "in_progress": 0}:
                return []
            if time.monotonic() > deadline:
                return [f"cyborg-status check did not compare all hosts: {said}"]

    def _ask_status(self) -> tuple[Part, dict[str, Any] | None]:
        """Run ``cyborg-status check``; return its process, and its answer if it gave one."""
        answer = self.folder / "check.json"
        argv = ["--config-file", str(self.folder / "api.conf")]
        part = Part("check", "check", self.folder, parts.check, answer, argv)
        part.start()
        part.wait(START_SECONDS)
        return part, json.loads(answer.read_text()) if part.status in {0, 1} else None

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def _add(self, name: str, kind: str, main: Callable[..., None], *args: Any) -> None:
        """Add a process, or change what an existing one runs from its next start on."""
        if name in self.parts:
            self.parts[name].change(main, *args)
        else:
            self.parts[name] = Part(name, kind, self.folder, main, *args)

    def _cyborg(self, name: str, kind: str, config: Path) -> None:
        arm, argv = self.folder / f"{name}.arm", ["--config-file", str(config)]
        self._add(name, kind, parts.cyborg, kind, arm, self.steps(name), argv)

    def steps(self, name: str) -> Path:
        """The file in which a host records its steps."""
        return self.folder / f"{name}.steps"

    def control(self, host: str) -> Path:
        """The file that controls how a host's driver behaves."""
        return self.folder / f"{host}.control.json"

    def _controller(self, name: str, conductor: dict[str, int]) -> Path:
        options: dict[str, dict[str, object]] = {
            "DEFAULT": {"transport_url": self.wire.url, "host": name},
            "agent": {"require_host_keys": True},
            "api": {"auth_strategy": "noauth", "host_ip": "127.0.0.1", "port": self._api_port},
            # The clients claim nothing in Placement.
            "conductor": {
                "allocation_audit_interval": 0,
                "signing_key_file": self._private_key,
                **conductor,
            },
            "database": self._database_options(),
            "nova": {
                "auth_type": "none",
                "endpoint_override": f"http://127.0.0.1:{self._sink_port}",
            },
            # There is no nova-compute to create the root provider.
            "placement": {
                "auth_type": "admin_token",
                "endpoint": self.placement_url,
                "token": "admin",
                "create_root_provider": True,
            },
        }
        return self._write(name, options)

    def _agent(self, host: str, *, steps: bool) -> None:
        driver = {
            "devices": DEVICES,
            "handles_per_device": HANDLES,
            "host_step": steps,
            "host_step_control": self.control(host),
        }
        options: dict[str, dict[str, object]] = {
            "DEFAULT": {
                "transport_url": self.wire.url,
                "host": host,
                "state_path": self._folder(f"{host}-state"),
            },
            "agent": {
                "enabled_drivers": "fake_driver",
                "report_interval": 5,
                "require_host_keys": True,
                "conductor_public_keys": self._conductors_key,
            },
            "fake_driver": driver,
        }
        config = self._write(host, options)
        host_keys.enrol(host, _host_key(config))
        self._cyborg(host, "agent", config)

    def _write(self, name: str, options: dict[str, dict[str, object]]) -> Path:
        parser = configparser.RawConfigParser(default_section="")
        parser.read_dict(options)
        path = self.folder / f"{name}.conf"
        with path.open("w") as file:
            parser.write(file)
        return path

    def stop(self) -> None:
        """End every process."""
        for part in self.parts.values():
            part.kill()
        self.wire.cut()
        db.dispose()

    def set_sink(self, mode: str) -> None:
        """Set what the sink does with requests."""
        replace(self.sink.mode, mode)

    def placement(self, method: str, path: str, body: object = None) -> requests.Response:
        """Send a request to Placement."""
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.37"}
        url = self.placement_url + path
        return requests.request(method, url, json=body, headers=headers, timeout=10)

    def providers(self) -> list[Provider]:
        """Every deployable."""
        query = "SELECT d.rp_uuid, h.name FROM deployables d"
        query += " JOIN devices v ON v.id = d.device_id JOIN hosts h ON h.id = v.host_id"
        with db.reader() as session:
            rows = session.execute(sa.text(query)).all()
        return [Provider(hostname=row[1], uuid=row[0], steps=HOSTS[row[1]]) for row in rows]


@contextlib.contextmanager
def cloud(folder: Path, database: str) -> Iterator[Cloud]:
    """A running cloud with servers of its own, while the block runs."""
    servers_ = Servers(folder.parent / "services", database, folder)
    try:
        servers_.start()
        name = f"cyborg_chaos_{os.getpid()}"
        with servers.new_database(servers_.database_kind, name) as url:
            one = Cloud(folder, servers_, url)
            try:
                one.start()
                yield one
            finally:
                one.stop()
    finally:
        servers_.stop()


def _host_key(config: Path) -> str:
    """The public key of a host, which its agent makes."""
    show = [BIN / "cyborg-agent", "--config-file", config, "key"]
    return subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback, below those that the kernel gives to outgoing connections."""
    with contextlib.ExitStack() as listening:
        ports: list[int] = []
        while len(ports) < count:
            port = random.SystemRandom().randint(20000, 32000)
            with contextlib.suppress(OSError):
                listening.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def say(text: str) -> None:
    """Print a line of progress with the time."""
    print(f"chaos: [{time.monotonic() - _BEGIN:.0f} s] {text}", flush=True)
    sys.stdout.flush()


_BEGIN = time.monotonic()
