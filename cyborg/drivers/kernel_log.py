# SPDX-License-Identifier: Apache-2.0
"""The kernel's log, record by record, and what an administrator writes to it."""

from __future__ import annotations

import errno
import os
import re
import weakref
from collections.abc import Iterator

from cyborg.drivers.pci import sysfs

#: Each read returns one record, from the oldest that the kernel still has.
PATH = "/dev/kmsg"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_RECORD_MAX = 8192
#: What an administrator writes when a card can be used again: its slot, and microseconds since the
#: host started.
WORD = re.compile(
    rb"^\d+,\d+,(?P<time>\d+),[^;]*;cyborg: (?P<slot>[0-9a-fA-F:.]+) is healthy\b"
)
_SLOT = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(\.\d)?")


class KernelLog:
    """One reader of the log, who goes on where it was."""

    def __init__(self) -> None:
        self._log: int | None = None
        #: Which start of the host the log is of; empty while that is not known.
        self.boot = ""
        #: Why the log cannot be read, or None.
        self.problem: str | None = None

    def lines(self) -> Iterator[bytes]:
        """The lines that have been added to the log."""
        self.problem = None
        try:
            self.boot = self.boot or _boot_id()
            yield from self._read()
        except OSError as exc:
            self.problem = (
                f"{exc.filename or PATH} cannot be read: {exc.strerror}; give the agent CAP_SYSLOG"
            )

    def _read(self) -> Iterator[bytes]:
        if self._log is None:
            self._log = os.open(PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._log)
        while True:
            try:
                record = os.read(self._log, _RECORD_MAX)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the kernel has overwritten the next record
            if not record:
                return
            yield from record.splitlines()


def _boot_id() -> str:
    text = sysfs.text(_BOOT_ID).strip()
    if not sysfs.UUID.fullmatch(text):
        raise OSError(errno.EINVAL, "it holds no UUID", _BOOT_ID)
    return text


def slot(text: bytes) -> str | None:
    """Domain, bus and device, as in the addresses of the slot's functions."""
    found = _SLOT.fullmatch(text.decode("ascii").lower())
    if found is None:
        return None
    return f"{found['domain'][-8:].lstrip('0').zfill(4)}:{found['bus']}:{found['device']}"
