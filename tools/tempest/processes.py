# SPDX-License-Identifier: Apache-2.0
"""Child processes with a log file each: start them, watch them during waits, stop them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

#: The directory of this environment's programs.
BIN = Path(sys.executable).parent
#: Seconds for a service to answer, and for one to end, on a busy machine.
START_SECONDS = 120.0
STOP_SECONDS = 30.0

T = TypeVar("T")


class Failed(Exception):
    """Why the tests cannot be run, as a sentence."""


def environment(**more: str) -> dict[str, str]:
    """Our environment without variables of other clouds, and without a proxy for this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    return kept | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"} | more


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback, below those that the kernel gives to outgoing connections."""
    with contextlib.ExitStack() as listening:
        ports: list[int] = []
        while len(ports) < count:
            port = random.randint(20000, 32000)
            with contextlib.suppress(OSError):
                listening.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


class Processes:
    """The processes that must run during the tests."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start a service with a log named after it."""
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**variables),
            )
        return self._running[name]

    def run(self, name: str, *command: str | Path, **variables: str) -> None:
        """Run a command to its end; it must succeed."""
        if self.start(name, *command, **variables).wait() != 0:
            raise self._ended(name)
        del self._running[name]

    def until(self, what: str, find: Callable[[], T | None]) -> T:
        """Call ``find`` until it returns a value, as long as every process runs."""
        deadline = time.monotonic() + START_SECONDS
        while (found := find()) is None:
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise self._ended(name)
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not ready within {START_SECONDS:.0f} seconds")
            time.sleep(0.1)
        return found

    def stop(self) -> None:
        """Stop all of them."""
        for process in self._running.values():
            process.terminate()
        for name, process in self._running.items():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"{name} does not end; it is killed", file=sys.stderr, flush=True)
                process.kill()
                process.wait()

    def _ended(self, name: str) -> Failed:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
        return Failed("\n".join([f"{name} has ended:", *lines[-20:]]))


@contextlib.contextmanager
def processes(logs: Path) -> Iterator[Processes]:
    """A collection of processes that are stopped at the end of the block."""
    started = Processes(logs)
    try:
        yield started
    finally:
        started.stop()
