# SPDX-License-Identifier: Apache-2.0
"""Runs of vendors' tools in the helper that is root: each has a lock, and a time in which to end.

Some tools are scripts around the program that does the work: with the script everything ends that
it has started.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import time

from cyborg.drivers import card_locks

#: Seconds for which what was killed is waited for; the kernel may be in the middle of a write.
_KILLED_WAIT = 30.0
#: And what the tool has left behind: it may be about to end.
_LEFT_WAIT = 1.0
_POLL = 0.02
#: How much of what a tool says is kept for the sentence on its failure.
_SAID_MAX = 500


def run(command: list[str], timeout: float, lock: str) -> None:
    """Run a tool, which holds the file ``lock`` for as long as anything of it runs.

    The caller has checked every argument.

    :raises OSError: ENOENT without the tool, EAGAIN where the lock is held, ETIMEDOUT where the
        tool was ended, else it has failed
    """
    try:
        with card_locks.taken(pathlib.Path(lock)) as held:
            ended, said = _ended(command, timeout, held)
    except FileNotFoundError as exc:
        raise OSError(errno.ENOENT, f"{command[0]} is not installed") from exc
    except subprocess.TimeoutExpired as exc:
        _await_end(lock, _KILLED_WAIT)
        sentence = f"{command[0]} did not end within {timeout:g} s: {_tail(exc.output)}"
        raise OSError(errno.ETIMEDOUT, sentence) from exc
    _await_end(lock, _LEFT_WAIT)
    if ended:
        raise OSError(errno.EIO, f"{command[0]} ended with {ended}: {_tail(said)}")


def _ended(command: list[str], timeout: float, held: int) -> tuple[int, bytes]:
    """The exit status of the tool, and what it has said."""
    with subprocess.Popen(  # noqa: S603 - a fixed list; the rest of it was checked
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        pass_fds=[held],
        start_new_session=True,
    ) as tool:
        try:
            said, _ = tool.communicate(timeout=timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tool.pid, signal.SIGKILL)
            raise
        return tool.returncode, said


def _await_end(lock: str, seconds: float) -> None:
    """Return when nothing of the tool runs, or after that time."""
    deadline = time.monotonic() + seconds
    while card_locks.is_held(pathlib.Path(lock)) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _tail(said: bytes | None) -> str:
    text = " ".join((said or b"").decode(errors="replace").split())
    return text[-_SAID_MAX:]
