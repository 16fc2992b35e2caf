# SPDX-License-Identifier: Apache-2.0
"""The processes of the cloud: each can be killed, stopped for a while and started again.

They are forks of one process that has imported everything, so that a start is cheap. They run the
same code as the commands.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from cheroot import wsgi
from points import Arm, Points

from cyborg.cmd import agent, api, conductor, status
from cyborg.placement import local

#: Modules that are slow to import, for the process that forks.
PRELOADED = [
    "cheroot.wsgi",
    "cyborg.api.controllers.root",
    "cyborg.cmd.agent",
    "cyborg.cmd.api",
    "cyborg.cmd.conductor",
    "cyborg.cmd.status",
    "cyborg.drivers.fake",
    "cyborg.placement.local",
    "oslo_messaging._drivers.impl_rabbit",
    "placement.deploy",
    "placement.db.sqlalchemy.migration",
    "pymysql",
    "keystoneauth1.loading._plugins.admin_token",
    "keystoneauth1.loading._plugins.noauth",
]
_COMMANDS = {"api": api.main, "conductor": conductor.main, "agent": agent.main}


def context() -> ForkServerContext:
    """The multiprocessing context that starts processes."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(PRELOADED)
    return forks


class Part:
    """One process: what it runs, and its state."""

    def __init__(self, name: str, kind: str, folder: Path, main: Callable[..., None], *args: Any):
        self.name = name
        self.kind = kind
        self.log = folder / f"{name}.log"
        #: The file that names the point at which the process kills itself.
        self.arm_file = folder / f"{name}.arm"
        #: The point at which the present process kills itself.
        self.arm: Arm | None = None
        #: Whether it is suspended; whether it was killed and will be started again.
        self.stopped = self.down = False
        self._main = main
        self._args = args
        self._process: ForkServerProcess | None = None

    def change(self, main: Callable[..., None], *args: Any) -> None:
        """Run something else from the next start on."""
        self._main, self._args = main, args

    def start(self) -> None:
        """Start it, without a point at which it kills itself."""
        self.disarm()
        self.stopped = self.down = False
        arguments = (self.log, self._main, *self._args)
        self._process = context().Process(target=_run, args=arguments, daemon=True)
        self._process.start()

    def set_arm(self, arm: Arm) -> None:
        """Let it kill itself at this point."""
        self.arm = arm
        arm.write(self.arm_file)

    def disarm(self) -> Arm | None:
        """Remove the point at which it was to kill itself; return it, or None if there was none."""
        self.arm_file.unlink(missing_ok=True)
        arm, self.arm = self.arm, None
        return arm

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for its end."""
        if self._process is not None:
            self._process.join(seconds)

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode if self._process is not None else None

    def kill(self) -> None:
        """Kill it at once, like a power failure."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self) -> None:
        """Suspend it."""
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)
        self.stopped = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.pid and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _run(log: Path, main: Callable[..., None], *args: Any) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    main(*args)


def cyborg(kind: str, arm: Path, steps: Path, argv: Sequence[str]) -> None:
    """Run one of Cyborg's services."""
    Points(arm, steps).install()
    sys.exit(_COMMANDS[kind](list(argv)))


def check(answer: Path, argv: Sequence[str]) -> None:
    """Run ``cyborg-status check``, which writes its findings to ``answer`` as JSON."""
    with answer.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    sys.exit(status.main([*argv, "check", "--format", "json"]))


def placement(state: Path, port: int) -> None:
    """Run Placement."""
    server = wsgi.Server(("127.0.0.1", port), local.load_app(state), numthreads=16)
    server.safe_start()


@dataclass(frozen=True, kw_only=True)
class SinkFiles:
    """The files of the sink, which receives Nova's events."""

    #: What it does with requests: one of the modes below.
    mode: Path
    #: One line for each event that it took.
    taken: Path


#: Modes of the sink: take a request; take it but do not answer; let it wait; refuse it.
TAKE, DROP, HANG = "take", "drop", "hang"
REFUSALS = ("500", "503", "422")


def sink(files: SinkFiles, port: int) -> None:
    """Receive events in Nova's place; an event is recorded before it is answered."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            events = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["events"]
            while (mode := files.mode.read_text()) == HANG:
                time.sleep(0.05)
            if mode in {TAKE, DROP}:
                with files.taken.open("ab", buffering=0) as taken:
                    taken.write(b"".join(json.dumps(e).encode() + b"\n" for e in events))
            if mode == DROP:
                self.close_connection = True
                return
            status = HTTPStatus.OK if mode == TAKE else HTTPStatus(int(mode))
            self._answer(status, {"events": [{**event, "code": status} for event in events]})

        def _answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Log nothing; the events are recorded elsewhere."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()
