# SPDX-License-Identifier: Apache-2.0
"""Processes of vendors' tools, each with a lock on its card and a time limit.

They are started by the privileged helper. The lock is an open file that the tool inherits, so it is
held until the last process of the tool has ended, even if the agent or the helper ends before. Then
the watchdog around the tool keeps its time limit. Some tools are scripts around the program that
does the work: they are killed as a process group.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import selectors
import signal
import stat
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from typing import IO, cast

from oslo_privsep import capabilities

from cyborg.drivers import permit_clock

#: The kernel's ``struct flock`` of a write lock on all of a file.
_WHOLE_FILE = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
#: Kills a tool that outlives its agent and hangs: a program of coreutils, and after how many
#: seconds more than the agent would take.
_WATCHDOG = "/usr/bin/timeout"
_GRACE = 5.0
#: Takes capabilities from a tool: a program of util-linux.
_SETPRIV = "/usr/bin/setpriv"
#: Seconds to wait for the end of what was killed; the kernel may be in the middle of a write.
_KILLED_WAIT = 30.0
#: Seconds to wait for what a tool has left behind, which may be about to end.
_LEFT_WAIT = 1.0
_POLL = 0.02
#: All that a tool finds in its environment: nothing of the agent's, such as passwords.
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C.UTF-8"}
#: Bytes of a tool's output that are read at once, and that are kept.
_PIECE, _KEPT = 64 * 1024, 1024 * 1024
#: The most characters of a tool's output in the message of its failure.
_OUTPUT_MAX = 500


def run(
    command: list[str], timeout: float, lock: str, until: float, allowed: Iterable[int] = ()
) -> bytes:
    """Run a tool, which holds the file ``lock`` until all its processes have ended.

    The answer is the end of what it has said. The caller has checked every argument. ``until`` is
    when the permit to start it ends, and ``allowed`` are the numbers of the capabilities that it
    may have.

    :raises OSError: ENOENT without the tool, EAGAIN if the lock is held, ETIME if the permit has
        ended, ETIMEDOUT if the tool was killed after ``timeout`` seconds, EIO if it failed
    """
    try:
        with _locked(pathlib.Path(lock)) as descriptor:
            # Last of all: this process may have been stopped since it was asked.
            if permit_clock.is_over(until):
                raise OSError(errno.ETIME, f"The permit ended before {command[0]} was started")
            watchdog = [_WATCHDOG, "--signal=KILL", f"{timeout + _GRACE:.3f}"]
            limits = [*_capability_limit(allowed), *watchdog]
            status, output = _wait(limits, command, timeout, descriptor)
    except FileNotFoundError as exc:
        raise OSError(errno.ENOENT, f"{exc.filename} is not installed") from exc
    except subprocess.TimeoutExpired as exc:
        _await_unlocked(lock, _KILLED_WAIT)
        sentence = f"{command[0]} did not end within {timeout:g} s: {_tail(exc.output)}"
        raise OSError(errno.ETIMEDOUT, sentence) from exc
    _await_unlocked(lock, _LEFT_WAIT)
    if status:
        raise OSError(errno.EIO, f"{command[0]} ended with {status}: {_tail(output)}")
    return output


def is_locked(path: pathlib.Path) -> bool:
    """True if any process holds the lock. The file need not exist.

    It counts as free to a user who may not open the file, such as one who tries drivers.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    finally:
        os.close(descriptor)
    (kind,) = struct.unpack_from("h", found)
    return bool(kind != fcntl.F_UNLCK)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[int]:
    """Hold the lock; a child that inherits the descriptor holds it as well.

    :raises BlockingIOError: another process holds it
    """
    descriptor = os.open(path, os.O_RDWR | _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{path} is not a file")
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        yield descriptor
    finally:
        os.close(descriptor)


def _capability_limit(allowed: Iterable[int]) -> list[str]:
    """The command that starts a tool with no other capabilities than these.

    A program that root starts gets all that its bounding set has, whatever this process has given
    up. Another user's tool gets none.
    """
    if os.geteuid() != 0:
        return []
    names = [capabilities.CAPS_BYVALUE[number].removeprefix("CAP_").lower() for number in allowed]
    kept = ",".join(["-all", *(f"+{name}" for name in sorted(names))])
    return [_SETPRIV, f"--bounding-set={kept}", "--inh-caps=-all", "--"]


def _wait(
    limits: list[str], command: list[str], timeout: float, descriptor: int
) -> tuple[int, bytes]:
    """The exit status of the tool, and its output."""
    if not os.path.lexists(command[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    with subprocess.Popen(  # noqa: S603 - a fixed list; the rest of it was checked
        [*limits, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        pass_fds=[descriptor],
        start_new_session=True,
        env=_ENVIRONMENT,
        umask=0o077,
    ) as tool:
        try:
            output = _read_to_end(tool, timeout)
            tool.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tool.pid, signal.SIGKILL)
            raise
        return tool.returncode, output


def _read_to_end(tool: subprocess.Popen[bytes], timeout: float) -> bytes:
    """The end of what the tool says until all its processes have closed their output.

    :raises TimeoutExpired: that took longer
    """
    deadline, end = time.monotonic() + timeout, b""
    with selectors.DefaultSelector() as selector:
        key = selector.register(cast("IO[bytes]", tool.stdout), selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(key.fd, _PIECE)
            if not part:
                return end
            end = (end + part)[-_KEPT:]
    raise subprocess.TimeoutExpired(tool.args, timeout, output=end)


def _await_unlocked(lock: str, seconds: float) -> None:
    """Wait until no process of the tool is left, or for that time."""
    deadline = time.monotonic() + seconds
    while is_locked(pathlib.Path(lock)) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _tail(output: bytes | None) -> str:
    text = " ".join((output or b"").decode(errors="replace").split())
    return text[-_OUTPUT_MAX:]
