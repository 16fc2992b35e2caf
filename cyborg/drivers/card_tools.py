# SPDX-License-Identifier: Apache-2.0
"""Programming cards with vendors' tools: one tool a card at a time.

A tool goes on if its agent dies, and the next agent leaves the card alone until the tool has ended.
"""

from __future__ import annotations

import errno
import pathlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from oslo_config import cfg

from cyborg.drivers import base, pci, tool_process, value_checks

T = TypeVar("T")


def is_running(conf: cfg.ConfigOpts, address: str) -> bool:
    """True if a tool writes the card; nothing that the card shows is certain then."""
    return tool_process.is_locked(_lock(conf, address))


def check_not_running(conf: cfg.ConfigOpts, address: str) -> None:
    """Raise BeingWritten if a tool writes the card."""
    if is_running(conf, address):
        raise _being_written(conf, address)


def write(
    conf: cfg.ConfigOpts,
    tool: Callable[..., None],
    address: str,
    bitstream: pathlib.Path,
    target: base.ProgramTarget,
) -> None:
    """Load a bitstream with the tool, a function of :mod:`cyborg.drivers.privileged`.

    :raises NothingWritten: there is no such tool, the lock cannot be created, or the bitstream is
        not signed as it must be
    :raises NotPermitted: the permit ended before the tool could be started, or the signature cannot
        be verified now
    :raises BeingWritten: another tool writes the card, or this one left a process that does
    :raises OSError: the tool failed, and none of its processes is left
    """
    signature = dict(target.signature)
    run(conf, address, tool, bitstream=str(bitstream), until=target.until, signature=signature)


def run(conf: cfg.ConfigOpts, address: str, tool: Callable[..., T], **arguments: Any) -> T:
    """The answer of a function of :mod:`cyborg.drivers.privileged` that runs a tool for the card.

    It gets the address, the time limit of the tool and the path of the card's lock, too.

    :raises NothingWritten, NotPermitted, BeingWritten, OSError: as :func:`write`
    """
    try:
        lock = lock_file(conf, address)
    except OSError as exc:
        raise base.NothingWritten(f"The card cannot be locked: {exc}") from exc
    try:
        answer = tool(address, timeout=conf.programming.tool_timeout, lock=lock, **arguments)
    except BlockingIOError as exc:
        raise _being_written(conf, address) from exc
    except FileNotFoundError as exc:
        raise base.NothingWritten(str(exc)) from exc
    except OSError as exc:
        if exc.errno in {errno.ETIME, errno.ENOKEY}:
            raise base.NotPermitted(str(exc)) from exc
        if exc.errno == errno.EKEYREJECTED:
            raise base.NothingWritten(str(exc)) from exc
        if is_running(conf, address):
            raise _being_written(conf, address, exc) from exc
        raise
    check_not_running(conf, address)
    return answer


def lock_file(conf: cfg.ConfigOpts, name: str) -> str:
    """The path of what a tool locks, for a card or what else is named so; made if need be.

    :raises OSError: it cannot be made
    """
    path = _lock(conf, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return str(path)


def asked_layout(target: base.ProgramTarget, known: Iterable[str], card: str) -> str:
    """The one of a card's layouts that is asked for; writing may begin.

    :raises NothingWritten: it cannot have that one
    :raises NotPermitted: as :meth:`cyborg.drivers.base.ProgramTarget.check_permit`
    """
    asked = target.function or ""
    wanted = next((each for each in known if value_checks.is_same_function(asked, each)), None)
    if wanted is None:
        raise base.NothingWritten(f"layout: {card} cannot have {asked!r}")
    target.check_permit()
    return wanted


def check_function(target: base.ProgramTarget, function: str) -> None:
    """Raise NothingWritten if the bitstream has another function than the target expects."""
    if not value_checks.is_same_function(target.function, function):
        raise base.NothingWritten(
            f"The bitstream is of function {function}, and its image says {target.function}"
        )


def missing_functions(handles: Iterable[base.AttachHandle], card: Collection[str]) -> list[str]:
    """Addresses of the card's functions without a handle here: others may have those."""
    return sorted(set(card) - {pci.join(handle.attach_info) for handle in handles})


def check_whole_card(target: base.ProgramTarget, card: Collection[str]) -> None:
    """Raise NothingWritten if others may have a function of the card: all run one program."""
    if others := missing_functions(target.attach_handles, card):
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


def _lock(conf: cfg.ConfigOpts, name: str) -> pathlib.Path:
    return pathlib.Path(conf.state_path, "cards", f"{name}.lock")
