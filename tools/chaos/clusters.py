# SPDX-License-Identifier: Apache-2.0
"""Databases of three servers, one of which is used until it fails: Galera, and PostgreSQL.

Cyborg reaches the server in use through a relay, as through HAProxy: when another server is used,
all connections to the former one are cut.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import IO, ClassVar

import sqlalchemy as sa
from waiting import Failed, until

from cyborg.tests import messages
from cyborg.tests.ports import free_port

#: Seconds between two looks at the server in use, and for which it may be silent.
_LOOK_SECONDS = 0.5
SILENT_SECONDS = 2

#: A fault's weight in the draw, and its shortest and longest duration in seconds.
Faults = dict[str, tuple[int, float, float]]


class Server:
    """One server of a cluster, as a process."""

    def __init__(self, name: str, user: str, folder: Path, log: Path) -> None:
        self.name = name
        self.port = free_port()
        self.folder = folder
        self.data = folder / "data"
        self._user = user
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(folder, user)

    def run(self, *command: str | Path, text: str = "", **environment: str) -> str:
        """Run a command as the server's user; what it says."""
        with self._logging() as log:
            done = subprocess.run(
                self._as_user(command),
                input=text.encode(),
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | environment,
                check=False,
            )
        if done.returncode != 0:
            raise Failed(f"{command[0]} of {self.name} failed, see {self._log}")
        return done.stdout.decode()

    def start(self, *command: str | Path) -> None:
        """Start the server."""
        with self._logging() as log:
            self._process = subprocess.Popen(
                self._as_user(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, number: signal.Signals) -> None:
        """End the server by a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def _logging(self) -> IO[bytes]:
        return self._log.open("ab")

    def _as_user(self, command: Sequence[str | Path]) -> list[str]:
        words = [str(word) for word in command]
        if os.geteuid() != 0:
            return words
        user = (f"--reuid={self._user}", f"--regid={self._user}", "--init-groups")
        return ["setpriv", *user, "--", *words]


class Cluster(abc.ABC):
    """Three servers with the same data, and the relay to the one in use."""

    #: As the other modules name it: ``mysql`` or ``postgresql``.
    kind: ClassVar[str]
    #: The URL without its port, and the system's user of the servers.
    url_scheme: ClassVar[str]
    user: ClassVar[str]
    faults: ClassVar[Faults]
    #: What Cyborg needs in ``[database]`` besides.
    options: ClassVar[dict[str, object]] = {}

    def __init__(self, logs: Path) -> None:
        self.password = secrets.token_hex(16)
        self._folder = Path(tempfile.mkdtemp(prefix="cyborg-cluster."))
        self._folder.chmod(0o711)
        self.servers = [
            Server(f"{self.kind}-{number}", self.user, self._folder / str(number), log)
            for number in (1, 2, 3)
            for log in [logs / f"{self.kind}-{number}.log"]
        ]
        self.used = self.servers[0]
        self.wire = messages.Wire(self.url_of(self.used))
        self.failovers = 0
        self._pool = futures.ThreadPoolExecutor(1)
        self._trouble: futures.Future[None] | None = None
        self._engines = {
            server.name: sa.create_engine(
                self.url_of(server),
                isolation_level="AUTOCOMMIT",
                poolclass=sa.NullPool,
                # A server that is not well refuses that too.
                pool_reset_on_return=None,
                connect_args=self.patience,
            )
            for server in self.servers
        }

    @property
    @abc.abstractmethod
    def patience(self) -> dict[str, int]:
        """Arguments of a connection that is not to wait for long."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start every server, and the relay."""

    @abc.abstractmethod
    def break_used(self, fault: str, seconds: float) -> None:
        """Let the server in use have this fault for so long; return when all servers are well."""

    def url_of(self, server: Server) -> str:
        """The URL of one server."""
        return f"{self.url_scheme}://cyborg:{self.password}@127.0.0.1:{server.port}/cyborg"

    def strike(self, fault: str, seconds: float) -> bool:
        """Begin a fault, unless the cluster has not recovered from the last one."""
        if self._trouble is not None and not self._trouble.done():
            return False
        self._trouble = self._pool.submit(self.break_used, fault, seconds)
        return True

    def heal(self) -> None:
        """Return when all servers are well.

        :raises Exception: what has kept them from it
        """
        if self._trouble is not None:
            self._trouble.result()

    def use(self, server: Server) -> None:
        """Send all clients to another server."""
        self.used = server
        self.failovers += 1
        self.wire.turn_to(server.port)

    def ask(self, server: Server, statement: str) -> list[tuple[object, ...]]:
        """Run a statement on one server; the rows of its answer."""
        with self._engines[server.name].connect() as connection:
            answer = connection.execute(sa.text(statement))
            return [tuple(row) for row in answer] if answer.returns_rows else []

    def ask_if_up(self, server: Server, statement: str) -> list[tuple[object, ...]]:
        """The same; no rows if the server does not answer."""
        with contextlib.suppress(sa.exc.DBAPIError):
            return self.ask(server, statement)
        return []

    def stop(self) -> None:
        """End every server and delete the data."""
        self._pool.shutdown(wait=False)
        self.wire.cut()
        for server in self.servers:
            server.end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


class Galera(Cluster):
    """MariaDB with Galera: each commit is certified by all servers before it is answered.

    All of them could be written to. One is used at a time, as the documentation asks for.
    """

    kind = "mysql"
    url_scheme = "mysql+pymysql"
    user = "mysql"
    faults: ClassVar[Faults] = {
        "kill the database in use": (10, 0.5, 4.0),
        # Shorter and longer than Galera waits for a silent member, which is 5 s.
        "suspend the database in use": (10, 2.0, 12.0),
        "isolate the database in use": (10, 2.0, 12.0),
    }

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self._group_ports = {server.name: free_port() for server in self.servers}
        self._ended = threading.Event()

    @property
    def patience(self) -> dict[str, int]:
        """Arguments of a connection that is not to wait for long."""
        return {"connect_timeout": SILENT_SECONDS, "read_timeout": SILENT_SECONDS}

    def start(self) -> None:
        """Start every server, and the relay."""
        for server in self.servers:
            server.run(
                "mariadb-install-db", "--no-defaults", f"--datadir={server.data}",
                "--skip-test-db", "--auth-root-authentication-method=socket",
            )  # fmt: skip
        first, *others = self.servers
        script = first.folder / "init.sql"
        script.write_text(
            f"CREATE USER cyborg@127.0.0.1 IDENTIFIED BY '{self.password}';"
            "GRANT ALL ON *.* TO cyborg@127.0.0.1;"
            "CREATE DATABASE cyborg CHARACTER SET utf8mb4;".replace(";", ";\n")
        )
        script.chmod(0o644)
        self._run(first, "gcomm://", f"--init-file={script}")
        for server in others:
            self._join(server)
        threading.Thread(target=self._watch, daemon=True).start()
        self.wire.join()

    def _join(self, server: Server) -> None:
        """Start a server that takes what it lacks from the others."""
        ports = (self._group_ports[each.name] for each in self.servers if each is not server)
        group = "gcomm://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        position = "Recovered position: "
        log = server.folder / "recovered.err"
        log.unlink(missing_ok=True)
        server.run(*self._command(server, group), "--wsrep-recover", f"--log-error={log}")
        (found,) = [line for line in log.read_text().splitlines() if position in line] or [""]
        start = found.rpartition(position)[2].partition(",")[0]
        self._run(server, group, *([f"--wsrep-start-position={start}"] if start else []))

    def _run(self, server: Server, group: str, *options: str) -> None:
        server.start(*self._command(server, group), *options)
        until(f"{server.name}", lambda: self._is_well(server))

    def _command(self, server: Server, group: str) -> list[str]:
        base = self._group_ports[server.name]
        transfer = free_port()
        provider = {
            "base_host": "127.0.0.1",
            "base_port": base,
            "gmcast.listen_addr": f"tcp://127.0.0.1:{base}",
            "ist.recv_addr": f"127.0.0.1:{free_port()}",
            "gcache.size": "64M",
        }
        options = {
            "datadir": server.data,
            "bind-address": "127.0.0.1",
            "port": server.port,
            "socket": server.folder / "socket",
            "pid-file": server.folder / "pid",
            "tmpdir": server.folder,
            "character-set-server": "utf8mb4",
            "max-connections": 300,
            "performance-schema": "OFF",
            "innodb-buffer-pool-size": "64M",
            "innodb-log-file-size": "32M",
            "innodb-flush-method": "nosync",
            "innodb-flush-log-at-trx-commit": 0,
            "innodb-autoinc-lock-mode": 2,
            "binlog-format": "ROW",
            "wsrep-on": "ON",
            "wsrep-provider": "/usr/lib/galera/libgalera_smm.so",
            "wsrep-cluster-name": "chaos",
            "wsrep-cluster-address": group,
            "wsrep-node-name": server.name,
            "wsrep-node-address": f"127.0.0.1:{base}",
            "wsrep-sst-method": "rsync",
            "wsrep-sst-receive-address": f"127.0.0.1:{transfer}",
            "wsrep-provider-options": ";".join(f"{key}={value}" for key, value in provider.items()),
        }
        plain = ["--no-defaults", "--skip-name-resolve", "--skip-innodb-doublewrite"]
        plain.append("--skip-innodb-use-native-aio")
        named = [f"--{name}={value}" for name, value in options.items()]
        return ["/usr/sbin/mariadbd", *plain, *named]

    def _is_well(self, server: Server) -> bool:
        """Whether it takes part in the majority, and has all data."""
        state = "SHOW STATUS WHERE Variable_name IN ('wsrep_ready', 'wsrep_local_state')"
        return {str(value) for _, value in self.ask_if_up(server, state)} == {"ON", "4"}

    def _watch(self) -> None:
        """Use another server when the one in use is not well, twice in a row."""
        bad = 0
        while not self._ended.wait(_LOOK_SECONDS):
            bad = 0 if self._is_well(self.used) else bad + 1
            if bad > 1:
                others = [each for each in self.servers if each is not self.used]
                well = next(filter(self._is_well, others), None)
                if well is not None:
                    self.use(well)
                    bad = 0

    def break_used(self, fault: str, seconds: float) -> None:
        """Let the server in use have this fault for so long; return when all servers are well."""
        server = self.used
        wait = threading.Event().wait
        if fault.startswith("kill"):
            server.end(signal.SIGKILL)
            wait(seconds)
            self._join(server)
        elif fault.startswith("suspend"):
            server.signal(signal.SIGSTOP)
            wait(seconds)
            server.signal(signal.SIGCONT)
        else:
            isolate = "SET GLOBAL wsrep_provider_options = 'gmcast.isolate={}'"
            self.ask(server, isolate.format(1))
            wait(seconds)
            until("the end of the isolation", lambda: self._rejoin(server, isolate.format(0)))
        until("Galera", lambda: all(self._is_well(each) for each in self.servers))

    def _rejoin(self, server: Server, statement: str) -> bool:
        with contextlib.suppress(sa.exc.DBAPIError):
            self.ask(server, statement)
            return True
        return False

    def stop(self) -> None:
        """End every server and delete the data."""
        self._ended.set()
        super().stop()


class _Spread(messages.Wire):
    """A relay that sends one connection after the other to each of several servers."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ports: list[int] = []
        self._turns = itertools.count()

    def _connect(self, listening: socket.socket, near: socket.socket) -> None:
        port = self.ports[next(self._turns) % len(self.ports)]
        self._server = (self._server[0], port)
        super()._connect(listening, near)


class GaleraEverywhere(Galera):
    """The same, all of whose servers are read and written, until one fails."""

    options: ClassVar[dict[str, object]] = {"mysql_wsrep_sync_wait": 7}

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self._spread = self.wire = _Spread(self.url_of(self.used))
        self._turns = itertools.cycle(self.servers)

    def _watch(self) -> None:
        """Use those that are well; one that is not, twice in a row, is used no more."""
        bad = dict.fromkeys([server.name for server in self.servers], 0)
        while True:
            for server in self.servers:
                bad[server.name] = 0 if self._is_well(server) else bad[server.name] + 1
            ports = [server.port for server in self.servers if bad[server.name] < 2]
            if ports and not set(self._spread.ports) <= set(ports):
                # Nothing goes on with one that has been given up.
                self.failovers += 1
                self._spread.ports = ports
                self.wire.cut()
                self.wire.join()
            self._spread.ports = ports or self._spread.ports
            if self._ended.wait(_LOOK_SECONDS):
                return

    def start(self) -> None:
        """Start every server, and the relay."""
        self._spread.ports = [server.port for server in self.servers]
        super().start()

    def break_used(self, fault: str, seconds: float) -> None:
        """Let one of the servers after the other have a fault."""
        self.used = next(self._turns)
        super().break_used(fault, seconds)


class Standbys(Cluster):
    """PostgreSQL with two standbys, one of which must have a commit before it is answered."""

    kind = "postgresql"
    url_scheme = "postgresql+psycopg2"
    user = "postgres"
    faults: ClassVar[Faults] = {"kill the database in use": (20, 0.5, 4.0)}

    @property
    def patience(self) -> dict[str, int]:
        """Arguments of a connection that is not to wait for long."""
        return {"connect_timeout": SILENT_SECONDS}

    def start(self) -> None:
        """Start every server, and the relay."""
        first = self.used
        first.run(
            self._bin("initdb"), f"--pgdata={first.data}", "--username=postgres", "--no-sync",
            "--encoding=UTF8", "--locale=C.UTF-8", "--auth-host=scram-sha-256",
        )  # fmt: skip
        role = f"CREATE ROLE cyborg LOGIN SUPERUSER PASSWORD '{self.password}';\n"
        database = "CREATE DATABASE cyborg OWNER cyborg;\n"
        single = (self._bin("postgres"), "--single", "-F", "-D", first.data, "postgres")
        first.run(*single, text=role + database)
        self._run(first)
        self._copy(*self.servers[1:])
        self.wire.join()

    def _bin(self, name: str) -> Path:
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        if not found:
            raise Failed(f"PostgreSQL's {name} is not installed")
        return found[-1]

    def _run(self, server: Server) -> None:
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": server.folder,
            "wal_level": "replica",
            "max_wal_senders": 10,
            "wal_keep_size": "256MB",
            "synchronous_commit": "on",
            "synchronous_standby_names": "ANY 1 (*)",
            "max_connections": 300,
            "shared_buffers": "64MB",
            "fsync": "off",
            "autovacuum": "off",
        }
        given = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        server.start(self._bin("postgres"), "-D", server.data, "-p", str(server.port), *given)
        until(server.name, lambda: self.ask_if_up(server, "SELECT 1"))

    def _copy(self, *servers: Server) -> None:
        """Start servers as standbys with a copy of the server in use; return when both follow."""
        for server in servers:
            server.run("rm", "-rf", server.data)
            server.run(
                self._bin("pg_basebackup"), f"--pgdata={server.data}", "--write-recovery-conf",
                "--checkpoint=fast", "--no-sync", f"--dbname={self._source()}",
            )  # fmt: skip
            self._run(server)
        following = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
        until("the standbys", lambda: len(self.ask_if_up(self.used, following)) == 2)

    def _source(self) -> str:
        """Where a standby takes its data from."""
        where = f"host=127.0.0.1 port={self.used.port}"
        return f"{where} user=cyborg password={self.password} dbname=cyborg"

    def break_used(self, fault: str, seconds: float) -> None:
        """Kill the server in use, and use the standby that has most; return when all are well."""
        killed = self.used
        # It ends as in a crash, and its children with it.
        killed.end(signal.SIGQUIT)
        left = [server for server in self.servers if server is not killed]
        last = "SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
        best = max(left, key=lambda server: self.ask(server, last)[0])
        self.ask(best, "SELECT pg_promote(true, 60)")
        self.use(best)
        for server in left:
            if server is not best:
                change = f"ALTER SYSTEM SET primary_conninfo = '{self._source()}'"
                self.ask(server, change)
                self.ask(server, "SELECT pg_reload_conf()")
        threading.Event().wait(seconds)
        self._copy(killed)


#: By the name of ``--database``.
CLUSTERS: dict[str, type[Cluster]] = {
    "galera": Galera,
    "galera-everywhere": GaleraEverywhere,
    "postgresql-standbys": Standbys,
}
