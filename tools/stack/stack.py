#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack around Cyborg on the loopback of one machine.

    stack.py [--state DIR] up          start what does not run; say how to use it
    stack.py [--state DIR] down        stop everything, delete its data; --logs DIR keeps the logs
    stack.py [--state DIR] status      what runs
    stack.py [--state DIR] env         shell variables for the openstack command: eval "$(...)"
    stack.py [--state DIR] restart NAME...

Keystone, Placement, Glance, Neutron (its API only), Nova with two computes whose guests are fake,
and Cyborg with two conductors and two agents, beside a private RabbitMQ and MariaDB. Logs are in
DIR/logs, configuration in DIR/etc. Needs no init system. Every command may be repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path

import catalogue
import pymysql
import settings
from keystoneauth1 import exceptions as ka_exc
from openstack import connection
from openstack import exceptions as sdk_exc
from records import BIN, Failed, Records, environment
from sqlalchemy.engine import make_url

HERE = Path(__file__).resolve().parent
SERVICES = HERE.parent / "services.sh"
#: One line per request: when it arrived, in milliseconds since 1970, and the milliseconds it took.
LOG_FORMAT = "%(ltime) %(tmsecs) %(method) %(uri) => %(status) in %(msecs) msecs"
SERVERS = ("rabbitmq", "mariadb")
CONDUCTORS = ("cyborg-conductor-1", "cyborg-conductor-2")
WATCHER = "cyborg-nova-watcher"
_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Print a line of progress with the time."""
    print(f"stack: [{time.monotonic() - _BEGIN:.0f} s] {text}", file=sys.stderr, flush=True)


class Stack:
    """The stack of one state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state.resolve()
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)
        self.known = settings.known(self.state)
        self.records = Records(self.state)
        #: The directory in which tests put files that make a compute service fail.
        self.faults = self.state / "faults"
        self.faults.mkdir(exist_ok=True)

    def connect(self, user: str = "admin", project: str = "admin") -> connection.Connection:
        """A connection of openstacksdk for a user of the stack."""
        return catalogue.connect(self.known, user, project)

    def shell_variables(self) -> dict[str, str]:
        """What the openstack command needs to be the administrator."""
        return {
            "OS_AUTH_URL": self.known.url("keystone") + "/v3",
            "OS_USERNAME": "admin",
            "OS_PASSWORD": self.known.password,
            "OS_PROJECT_NAME": "admin",
            "OS_USER_DOMAIN_ID": "default",
            "OS_PROJECT_DOMAIN_ID": "default",
            "OS_REGION_NAME": settings.REGION,
            "OS_INTERFACE": "public",
            "OS_IDENTITY_API_VERSION": "3",
        }

    def up(self) -> None:
        """Start what does not run, each part after those that it needs."""
        self._start_servers()
        self._configure()
        self._migrate()
        self._start_wsgi("keystone")
        self.await_http("keystone")
        catalogue.fill(self.known)
        say("Keystone is ready")
        for name in ("placement", "glance", "neutron", "nova", "cyborg"):
            self._start_wsgi(name)
        for name in ("conductor", "scheduler"):
            self.start(f"nova-{name}")
        for name in (*CONDUCTORS, WATCHER):
            self.start(name)
        for name in ("placement", "glance", "neutron", "nova", "cyborg"):
            self.await_http(name)
        # Neutron 29 answers 500 to a list of ports until it has answered another request.
        list(self.connect().network.networks())
        say("the APIs answer")
        for host in settings.HOSTS:
            self.start(f"nova-compute-{host}")
            self.enrol(host)
            self.start(f"cyborg-agent-{host}")
        self.await_hosts()
        say("both compute hosts are ready")

    def down(self, logs: Path | None) -> None:
        """Stop everything and delete its data; move the logs to ``logs`` if that is given."""
        with futures.ThreadPoolExecutor() as pool:
            list(pool.map(self.records.stop, self.records.names()))
        self._servers("stop", *SERVERS)
        if logs is not None:
            shutil.rmtree(logs, ignore_errors=True)
            shutil.move(self.state / "logs", logs)
        shutil.rmtree(self.state)

    def start(self, name: str, **variables: str) -> None:
        """Start a process by its name, unless it runs."""
        if name in settings.WSGI:
            self._start_wsgi(name, **variables)
            return
        command, files = self._program(name)
        options = [part for file in files for part in ("--config-file", file)]
        variables["CYBORG_STACK_FAULTS"] = str(self.faults)
        self.records.start(name, *command, *options, **variables)

    def _program(self, name: str) -> tuple[Sequence[str | Path], Sequence[Path]]:
        """The command and configuration files of a process that is not a WSGI service."""
        etc = self.state / "etc"
        nova = etc / "nova" / "nova.conf"
        if name.startswith("nova-compute-"):
            host = name.removeprefix("nova-compute-")
            own = etc / f"compute-{host}" / "compute.conf"
            return [BIN / "python", HERE / "compute.py"], [nova, own]
        if name.startswith("nova-"):
            return [BIN / name], [nova, etc / "nova" / "nova-db.conf"]
        if name.startswith("cyborg-agent-"):
            host = name.removeprefix("cyborg-agent-")
            return [BIN / "cyborg-agent"], [etc / f"agent-{host}" / "cyborg.conf"]
        if name in CONDUCTORS:
            return [BIN / "cyborg-conductor"], [etc / "cyborg" / "cyborg.conf"]
        if name == WATCHER:
            return [BIN / name], [etc / "cyborg" / "cyborg.conf"]
        raise Failed(f"there is no process {name}")

    def enrol(self, host: str) -> None:
        """Enrol the key of a host's agent, as an administrator does."""
        etc = self.state / "etc"
        show = [BIN / "cyborg-agent", "--config-file", etc / f"agent-{host}" / "cyborg.conf", "key"]
        key = subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        config = ("--config-file", etc / "cyborg" / "cyborg.conf")
        self.records.run("enrol", BIN / "cyborg-status", *config, "host", "enroll", host, key)

    def restart(
        self, name: str, how: signal.Signals = signal.SIGTERM, **variables: str
    ) -> None:
        """Stop a process and start it again."""
        self.records.stop(name, how)
        self.start(name, **variables)
        if name in settings.WSGI:
            self.await_http(name)

    def await_hosts(self) -> None:
        """Block until both hosts have a compute service in a cell and accelerators in Placement."""
        admin = self.connect()

        def ready() -> bool | None:
            with contextlib.suppress(sdk_exc.SDKException, ka_exc.ClientException):
                found = admin.compute.hypervisors(details=True)
                hypervisors = {one.name for one in found if one.state == "up"}
                providers = list(admin.placement.resource_providers())
                roots = {found.name for found in providers}
                devices = {f"{host}_FakeDevice" for host in settings.HOSTS}
                offered = [
                    found
                    for found in providers
                    if found.name in devices and self._offers(admin, found.id)
                ]
                hosts = set(settings.HOSTS)
                return (
                    hosts <= hypervisors and hosts <= roots and len(offered) == len(devices)
                ) or None
            return None

        self.records.until("the compute hosts", ready, of=self.records.names())

    @staticmethod
    def _offers(admin: connection.Connection, provider: str) -> bool:
        answer = admin.placement.get(f"/resource_providers/{provider}/inventories")
        return "FPGA" in answer.json()["inventories"]

    def status(self) -> list[tuple[str, int | None]]:
        """Each process that was started, and its pid if it runs."""
        return [(name, self.records.pid(name)) for name in self.records.names()]

    # --- parts ------------------------------------------------------------------------------

    def _start_servers(self) -> None:
        """Start broker and database; restart one that died, with its port and its data."""
        for name in SERVERS:
            if self._data(name).is_dir() and self._call_servers("status", name) != 0:
                self._servers("restart", name)
        self._servers("start", *SERVERS)

    def _data(self, name: str) -> Path:
        """The directory of a server's data; it exists unless the server never ran or is gone."""
        record = self.state / "services" / name / "data"
        return Path(record.read_text().strip()) if record.exists() else record

    def _servers(self, action: str, *names: str) -> None:
        if self._call_servers(action, *names) != 0:
            raise Failed(f"{SERVICES.name} cannot {action} {' and '.join(names)}")

    def _call_servers(self, action: str, *names: str) -> int:
        env = environment(CYBORG_SERVICES_DIR=str(self.state / "services"))
        return subprocess.run([SERVICES, action, *names], env=env, check=False).returncode

    @contextlib.contextmanager
    def lost_server(self, name: str) -> Iterator[None]:
        """While the broker or the database server does not run; it keeps its data."""
        processes = self.state / "services" / name / "processes"
        os.kill(int(processes.read_text().splitlines()[-1].split()[0]), signal.SIGKILL)
        try:
            yield
        finally:
            self._servers("restart", name)

    def server_url(self, name: str) -> str:
        """The URL of the broker or the database server."""
        return (self.state / "services" / name / "url").read_text().strip()

    def database(self, name: str | None = None) -> pymysql.Connection:
        """A connection to the database server, to the database ``name`` if given."""
        url = make_url(self.server_url("mariadb"))
        return pymysql.connect(
            host=url.host, port=url.port, user=url.username, password=url.password, database=name
        )

    def make_database(self, *names: str) -> None:
        """Create databases unless they exist."""
        with self.database() as server:
            for name in names:
                server.cursor().execute(
                    f"CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4"
                )

    def settings(self) -> settings.Settings:
        """What writes the configuration files."""
        url = make_url(self.server_url("mariadb")).set(database="DATABASE")
        pattern = url.render_as_string(hide_password=False)
        return settings.Settings(
            self.state / "etc",
            self.known,
            self.server_url("rabbitmq"),
            pattern.replace("DATABASE", "{}") + "?charset=utf8mb4",
        )

    def _configure(self) -> None:
        self.make_database(*settings.DATABASES)
        files = self.settings()
        for write in (
            files.keystone, files.placement, files.glance, files.neutron, files.nova, files.cyborg
        ):  # fmt: skip
            write()
        for host in settings.HOSTS:
            files.compute(host)
            files.agent(host)

    def _migrate(self) -> None:
        """Create the schemas in parallel; this takes most of the time of a first start."""
        # After a reboot of the machine the database server is a new, empty one.
        done, server = self.state / "migrated", self.server_url("mariadb")
        if done.exists() and done.read_text() == server:
            return
        with futures.ThreadPoolExecutor() as pool:
            waiting = [pool.submit(self._run_each, name, steps) for name, steps in self._commands()]
            for one in waiting:
                one.result()
        done.write_text(server)
        say("the schemas are made")

    def _commands(self) -> list[tuple[str, Sequence[Sequence[str | Path]]]]:
        etc = self.state / "etc"
        keystone = (BIN / "keystone-manage", "--config-file", etc / "keystone" / "keystone.conf")
        nova = (BIN / "nova-manage", "--config-file", etc / "nova" / "nova.conf",
                "--config-file", etc / "nova" / "nova-db.conf")  # fmt: skip
        url = make_url(self.server_url("mariadb")).set(database="nova_cell0")
        cell0 = url.render_as_string(hide_password=False)
        user = ("--keystone-user", "root", "--keystone-group", "root")
        return [
            ("keystone-manage", [
                (*keystone, "db_sync"),
                (*keystone, "fernet_setup", *user),
                (*keystone, "credential_setup", *user),
                (*keystone, "bootstrap", "--bootstrap-password", self.known.password,
                 "--bootstrap-region-id", settings.REGION,
                 "--bootstrap-public-url", self.known.url("keystone") + "/v3"),
            ]),
            ("placement-manage", [
                (BIN / "placement-manage", "--config-file", etc / "placement" / "placement.conf",
                 "db", "sync"),
            ]),
            ("glance-manage", [
                (BIN / "glance-manage", "--config-file", etc / "glance" / "glance-api.conf",
                 "db_sync"),
            ]),
            ("neutron-db-manage", [
                (BIN / "neutron-db-manage", "--config-file", etc / "neutron" / "neutron.conf",
                 "upgrade", "heads"),
            ]),
            ("nova-manage", [
                (*nova, "api_db", "sync"),
                (*nova, "cell_v2", "map_cell0", "--database_connection", cell0),
                (*nova, "cell_v2", "create_cell", "--name", "cell1"),
                (*nova, "db", "sync"),
            ]),
            ("cyborg-dbsync", [
                (BIN / "cyborg-dbsync", "--config-file", etc / "cyborg" / "cyborg.conf",
                 "upgrade"),
            ]),
        ]  # fmt: skip

    def _run_each(self, name: str, steps: Sequence[Sequence[str | Path]]) -> None:
        for step in steps:
            # nova-manage ends with 2 if the cell exists.
            well = (0, 2) if "create_cell" in step else (0,)
            self.records.run(name, *step, well=well)

    def _start_wsgi(self, name: str, **variables: str) -> None:
        folder = self.state / "etc" / name
        self.start_wsgi(name, BIN / "uwsgi", name, folder, **variables)

    def start_wsgi(
        self, process: str, uwsgi: Path, name: str, folder: Path, *more: str, **variables: str
    ) -> None:
        """Start a WSGI service under uWSGI as ``process``, unless it runs."""
        module, _ = settings.WSGI[name]
        self.records.start(
            process,
            uwsgi,
            "--module", f"{module}:application",
            "--http-socket", f"127.0.0.1:{self.known.ports[name]}",
            "--master", "--processes", "1", "--threads", "8", "--enable-threads",
            "--lazy-apps", "--need-app", "--buffer-size", "65535",
            # As the installation guide has it: a request that waits is answered before the end.
            "--hook-master-start", "unix_signal:15 gracefully_kill_them_all",
            "--worker-reload-mercy", "20",
            # uWSGI's HTTP socket resets a client that reuses a connection.
            "--add-header", "Connection: close",
            "--log-format", LOG_FORMAT,
            *more,
            **self._wsgi_variables(name, folder),
            **variables,
        )  # fmt: skip

    @staticmethod
    def _wsgi_variables(name: str, folder: Path) -> dict[str, str]:
        files = {
            "neutron": "neutron.conf",
            "nova": "api-paste.ini;nova.conf;nova-db.conf",
            "cyborg": "cyborg.conf",
        }
        variables = {f"OS_{name.upper()}_CONFIG_DIR": str(folder)}
        if name in files:
            variables[f"OS_{name.upper()}_CONFIG_FILES"] = files[name]
        return variables

    def await_http(self, name: str, process: str | None = None) -> None:
        """Block until the service, which runs as ``process``, answers with a status below 500."""
        session = ka_session()

        def answers() -> bool | None:
            try:
                return session.get(self.known.url(name) + "/", raise_exc=False).status_code < 500
            except ka_exc.ClientException:
                return None

        self.records.until(name, lambda: answers() or None, of=[process or name])


def ka_session() -> connection.ks_session.Session:
    """A session without authentication."""
    return connection.ks_session.Session()


def _print_environment(stack: Stack) -> None:
    for name, value in stack.shell_variables().items():
        print(f"export {name}={value}")


def _print_status(stack: Stack) -> int:
    for name, pid in stack.status():
        print(f"{name} runs, pid {pid}" if pid else f"{name} does not run")
    return 0 if stack.status() and all(pid for _, pid in stack.status()) else 3


def main() -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(description="A real OpenStack around Cyborg.")
    parser.add_argument("--state", type=Path, default=Path(os.curdir) / ".stack")
    parser.add_argument("--logs", type=Path, help="with down: move the logs there")
    parser.add_argument("action", choices=["up", "down", "status", "env", "restart"])
    parser.add_argument("names", nargs="*", help="processes to restart")
    options = parser.parse_args()
    stack = Stack(options.state)
    try:
        match options.action:
            case "up":
                stack.up()
                say(f'ready: eval "$({sys.argv[0]} --state {options.state} env)"; openstack ...')
            case "down":
                stack.down(options.logs)
            case "restart":
                for name in options.names:
                    stack.restart(name)
            case "env":
                _print_environment(stack)
            case "status":
                return _print_status(stack)
    except Failed as exc:
        say(f"{exc}\nThe logs are in {stack.state / 'logs'}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
