# SPDX-License-Identifier: Apache-2.0
"""Processes that outlive the command that started them: recorded by pid and start time.

The start time tells a process from a later one that was given the same pid, so that nothing is
ever stopped that was not started here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

#: The directory of this environment's programs.
BIN = Path(sys.executable).parent
#: Seconds for a service to answer, and to end, on a busy machine.
START_SECONDS = 600.0
STOP_SECONDS = 20.0

T = TypeVar("T")


class Failed(Exception):
    """Why the stack cannot be used, as a sentence."""


def environment(**more: str) -> dict[str, str]:
    """Our environment without variables of other clouds, and without a proxy for this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    return kept | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"} | more


class Records:
    """The recorded processes of one state directory, each with a log named after it."""

    def __init__(self, state: Path) -> None:
        self._records = state / "processes"
        self._logs = state / "logs"
        for folder in (self._records, self._logs):
            folder.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self._logs / f"{name}.log"

    def names(self) -> list[str]:
        """Every process that was started and not stopped, in the order of starting."""
        files = sorted(self._records.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        return [file.stem for file in files]

    def start(self, name: str, *command: str | Path, **variables: str) -> None:
        """Start a service unless it runs."""
        if self.alive(name):
            return
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command, start_new_session=True, **self._surroundings(log, variables)
            )
        record = {"pid": process.pid, "started": _start_time(process.pid)}
        (self._records / f"{name}.json").write_text(json.dumps(record))

    def run(
        self, name: str, *command: str | Path, well: Collection[int] = (0,), **variables: str
    ) -> None:
        """Run a command to its end. Its exit status must be in ``well``."""
        with self.log(name).open("ab") as log:
            try:
                status = subprocess.run(
                    command,
                    check=False,
                    timeout=START_SECONDS,
                    **self._surroundings(log, variables),
                ).returncode
            except subprocess.TimeoutExpired:
                raise Failed(f"{name} did not end within {START_SECONDS:.0f} seconds") from None
        if status not in well:
            raise self._ended(name)

    def _surroundings(self, log: IO[bytes], variables: Mapping[str, str]) -> dict[str, Any]:
        return {
            "stdin": subprocess.DEVNULL,
            "stdout": log,
            "stderr": log,
            "env": environment(**variables),
            # Not the current directory: uWSGI would load the package from a checkout there.
            "cwd": self._logs,
        }

    def alive(self, name: str) -> bool:
        """Whether the recorded process still runs."""
        return self.pid(name) is not None

    def pid(self, name: str) -> int | None:
        """The pid of a process; None if it does not run."""
        try:
            record = json.loads((self._records / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        started = _start_time(record["pid"])
        return record["pid"] if started is not None and started == record["started"] else None

    def until(self, what: str, find: Callable[[], T | None], *, of: Iterable[str] = ()) -> T:
        """Call ``find`` until it returns a value, as long as the processes ``of`` run."""
        deadline = time.monotonic() + START_SECONDS
        while (found := find()) is None:
            for name in of:
                if not self.alive(name):
                    raise self._ended(name)
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not ready within {START_SECONDS:.0f} seconds")
            time.sleep(0.2)
        return found

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop a process and those that it started, if it runs."""
        pid = self.pid(name)
        deadline = time.monotonic() + STOP_SECONDS
        while pid is not None and self.alive(name):
            _signal(pid, how)
            time.sleep(0.1)
            if time.monotonic() > deadline:
                how = signal.SIGKILL
        if pid is not None:
            # Workers may outlive their parent.
            _signal(pid, signal.SIGKILL)
        (self._records / f"{name}.json").unlink(missing_ok=True)

    def signal(self, name: str, which: signal.Signals) -> None:
        """Send a signal to a running process and those that it started."""
        pid = self.pid(name)
        if pid is None:
            raise self._ended(name)
        _signal(pid, which)

    def _ended(self, name: str) -> Failed:
        lines = self.log(name).read_text(errors="replace").splitlines()
        return Failed("\n".join([f"{name} has ended:", *lines[-20:]]))


def _signal(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, how)
    # A child of this process would stay a zombie.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _start_time(pid: int) -> str | None:
    """The kernel's start time of a process; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
