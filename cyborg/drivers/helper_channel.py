# SPDX-License-Identifier: Apache-2.0
"""Channels of oslo.privsep that tell their callers when a helper dies.

The kernel resets a connection whose other end is closed before it has read all. The library takes
only the plain end of a connection for the death of a helper, so a caller would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from oslo_privsep import comm, daemon


class Telling(comm.ClientChannel):
    """A channel for which a connection that was reset has ended."""

    def _reader_main(self, reader: Iterable[Any]) -> None:
        super()._reader_main(_until_reset(reader))  # type: ignore[arg-type]


class _Rootwrap(Telling, daemon.RootwrapClientChannel):
    """The channel to a helper that is a command."""


def use() -> None:
    """Let the contexts of this process use such channels."""
    daemon.RootwrapClientChannel = _Rootwrap  # type: ignore[misc]


def _until_reset(messages: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from messages
    except ConnectionResetError:
        return
