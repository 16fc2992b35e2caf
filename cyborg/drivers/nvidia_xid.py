# SPDX-License-Identifier: Apache-2.0
"""Faults of NVIDIA GPUs (Xids), as NVIDIA's driver writes them to the kernel's log.

The log is read on, record by record, and never from a GPU: a process that keeps one open would keep
it from a guest.
"""

from __future__ import annotations

import os
import pathlib
import re
import time
from collections.abc import Iterator

from oslo_config import cfg

from cyborg.drivers import kept_facts, pci

#: Each read returns one record, from the oldest that the kernel still has.
KERNEL_LOG = "/dev/kmsg"
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_RECORD_MAX = 8192
#: A record: its priority, number and microseconds since the host started, then the text.
_XID = re.compile(
    rb"^\d+,\d+,(?P<time>\d+),[^;]*;NVRM: Xid \(PCI:(?P<slot>[0-9a-fA-F:.]+)\): (?P<number>\d+)\b"
)
#: What an administrator writes to the log when a card can be used again.
_WORD = re.compile(rb"^\d+,\d+,\d+,[^;]*;cyborg: (?P<slot>[0-9a-fA-F:.]+) is healthy\b")
_SLOT = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(\.\d)?")
_KIND = "xid"


class XidLog:
    """The Xids since the host started that make a GPU unhealthy, by the slot of the GPU.

    They are kept for the next agent too, as the kernel forgets the oldest records. A reboot ends
    them.
    """

    def __init__(self, conf: cfg.ConfigOpts, kept: kept_facts.KeptFacts) -> None:
        self._numbers = frozenset(conf.gpu_devices.unhealthy_xids)
        self._recovery = conf.gpu_devices.xid_recovery
        self._kept = kept
        self._log: int | None = None
        self._boot = ""
        #: Why the log cannot be read, or None.
        self.problem: str | None = None

    def read(self) -> None:
        """Take in what has been logged since the last call."""
        if not self._numbers:
            return
        self.problem = None
        try:
            self._boot = self._boot or _BOOT_ID.read_text(encoding="ascii").strip()
            for line in self._lines():
                self._take(line)
        except OSError as exc:
            self.problem = (
                f"[gpu_devices] unhealthy_xids has no effect: {KERNEL_LOG} cannot be read: "
                f"{exc.strerror}; give the agent CAP_SYSLOG"
            )

    def why_unhealthy(self, function: pci.Function) -> str | None:
        """The Xids of the card that make it unhealthy, as a sentence, or None."""
        slot = (function.pf or function.address).rpartition(".")[0]
        logged = self._of(slot)
        oldest = time.monotonic() - self._recovery
        present = sorted(
            int(number)
            for number, when in logged.items()
            if int(number) in self._numbers and (not self._recovery or when > oldest)
        )
        if not present:
            return None
        said = ", ".join(map(str, present))
        return f"NVIDIA's driver has logged Xid {said} for the GPU at {slot}"

    def _of(self, slot: str) -> dict[str, int]:
        """When each Xid of a card was logged last, in seconds since the host started."""
        kept = self._kept.get(_KIND, slot)
        if not isinstance(kept, dict) or kept.get("boot") != self._boot:
            return {}
        return dict(kept["logged"])

    def _take(self, line: bytes) -> None:
        word = _WORD.match(line)
        found = _XID.match(line) or word
        slot = _slot(found["slot"]) if found is not None else None
        if found is None or slot is None:
            return
        logged = self._of(slot)
        if word is not None:
            logged.clear()
        else:
            logged[str(int(found["number"]))] = int(found["time"]) // 1_000_000
        self._kept.set(_KIND, slot, {"boot": self._boot, "logged": logged})

    def _lines(self) -> Iterator[bytes]:
        """The lines that have been added to the log.

        :raises OSError: it cannot be read
        """
        if self._log is None:
            self._log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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


def _slot(text: bytes) -> str | None:
    """Domain, bus and device, as in the addresses of the slot's functions."""
    found = _SLOT.fullmatch(text.decode("ascii").lower())
    if found is None:
        return None
    return f"{found['domain'][-8:].lstrip('0').zfill(4)}:{found['bus']}:{found['device']}"
