# SPDX-License-Identifier: Apache-2.0
"""Vendors' tools that write a card: one at a time, whichever agent has started it.

A tool goes on when its agent dies, and the next agent leaves the card alone until it has ended.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Iterable

from oslo_config import cfg

from cyborg.drivers import base, card_locks, checks, pci


def is_running(conf: cfg.ConfigOpts, address: str) -> bool:
    """Whether a tool writes the card, so that nothing which it shows is certain."""
    return card_locks.is_held(_lock(conf, address))


def refuse_running(conf: cfg.ConfigOpts, address: str) -> None:
    """Return where no tool writes the card.

    :raises BeingWritten: one does
    """
    if is_running(conf, address):
        raise _being_written(conf, address)


def write(
    conf: cfg.ConfigOpts,
    tool: Callable[[str, str, float, str], None],
    address: str,
    bitstream: pathlib.Path,
) -> None:
    """Have the tool, a function of :mod:`cyborg.drivers.privileged`, load a bitstream.

    :raises NothingWritten: there is no such tool, or no place for the lock
    :raises BeingWritten: another one writes the card, or something that the tool has left behind
    :raises OSError: it has failed, and nothing of it runs any more
    """
    lock = _lock(conf, address)
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.touch(mode=0o600)
    except OSError as exc:
        raise base.NothingWritten(f"The card cannot be locked: {exc}") from exc
    try:
        tool(address, str(bitstream), conf.programming.tool_timeout, str(lock))
    except BlockingIOError as exc:
        raise _being_written(conf, address) from exc
    except FileNotFoundError as exc:
        raise base.NothingWritten(str(exc)) from exc
    except OSError as exc:
        if is_running(conf, address):
            raise _being_written(conf, address, exc) from exc
        raise
    refuse_running(conf, address)


def refuse_another(target: base.ProgramTarget, function: str) -> None:
    """Return where the bitstream has the function that is expected of it.

    :raises NothingWritten: it has another one
    """
    if not checks.is_function(target.function, function):
        raise base.NothingWritten(
            f"The bitstream is of function {function}, and its image says {target.function}"
        )


def left_out(handles: Iterable[base.AttachHandle], parts: Collection[str]) -> list[str]:
    """The functions of a card that are not among the handles: others may have those."""
    return sorted(set(parts) - {pci.join(handle.attach_info) for handle in handles})


def refuse_part(target: base.ProgramTarget, parts: Collection[str]) -> None:
    """Return where the deployable has all functions of its card, which run one program.

    :raises NothingWritten: others may have one of them
    """
    if others := left_out(target.attach_handles, parts):
        raise base.NothingWritten(
            f"PCI function {others[0]} is not of this deployable, and runs what is written to it"
        )


def _being_written(
    conf: cfg.ConfigOpts, address: str, failure: OSError | None = None
) -> base.BeingWritten:
    sentence = (
        f"A tool that was started before writes card {address}; it has {_lock(conf, address)} open"
    )
    return base.BeingWritten(f"{sentence}: {failure}" if failure else sentence)


def _lock(conf: cfg.ConfigOpts, address: str) -> pathlib.Path:
    return pathlib.Path(conf.state_path, "cards", f"{address}.lock")
