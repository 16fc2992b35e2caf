# SPDX-License-Identifier: Apache-2.0
"""Faults of NVIDIA GPUs (Xids), as NVIDIA's driver writes them to the kernel's log.

The log is read on, record by record, and never from a GPU: a process that keeps one open would keep
it from a guest.
"""

from __future__ import annotations

import re
import time

from oslo_config import cfg

from cyborg.drivers import kept_facts, kernel_log, pci

#: A record: its priority, number and microseconds since the host started, then the text.
_XID = re.compile(
    rb"^\d+,\d+,(?P<time>\d+),[^;]*;NVRM: Xid \(PCI:(?P<slot>[0-9a-fA-F:.]+)\): (?P<number>\d+)\b"
)
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
        self._log = kernel_log.KernelLog("[gpu_devices] unhealthy_xids")

    def read(self) -> None:
        """Take in what has been logged since the last call.

        :raises OSError: what is kept cannot be read; the log has it for the next call
        """
        if not self._numbers:
            return
        # The log shows a line once: none is taken that could not be noted.
        self._kept.all(_KIND)
        for line in self._log.lines():
            self._take(line)

    @property
    def problem(self) -> str | None:
        """Why the log cannot be read, or None."""
        return self._log.problem

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
        """When each Xid of a card was logged last, in seconds since the host started.

        Those that are kept count as well if it cannot be told when they were logged.
        """
        kept = self._kept.get(_KIND, slot)
        if not isinstance(kept, dict) or self._log.boot not in {"", kept.get("boot")}:
            return {}
        return dict(kept["logged"])

    def _take(self, line: bytes) -> None:
        word = kernel_log.WORD.match(line)
        found = _XID.match(line) or word
        slot = kernel_log.slot(found["slot"]) if found is not None else None
        if found is None or slot is None:
            return
        logged = self._of(slot)
        if word is not None:
            logged.clear()
        else:
            logged[str(int(found["number"]))] = int(found["time"]) // 1_000_000
        self._kept.set(_KIND, slot, {"boot": self._log.boot, "logged": logged})
