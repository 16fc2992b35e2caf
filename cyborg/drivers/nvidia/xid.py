# SPDX-License-Identifier: Apache-2.0
"""Which faults of NVIDIA GPUs (Xids) in the kernel's log make a GPU unhealthy.

The log is read, and never a GPU: a process that keeps one open would keep it from a guest.
"""

from __future__ import annotations

import time

from oslo_config import cfg

from cyborg.drivers import pci
from cyborg.drivers.pci import faults


class Xids:
    """The numbers that the operator has listed, and the log that has them."""

    def __init__(self, conf: cfg.ConfigOpts, log: faults.FaultLog) -> None:
        self._words = frozenset(f"Xid {each}" for each in conf.gpu_devices.unhealthy_xids)
        self._recovery = conf.gpu_devices.xid_recovery
        self._faults = log

    def read(self, functions: pci.Snapshot) -> None:
        """Take in what has been logged since the last pass.

        :raises OSError: what is kept cannot be read
        """
        if self._words:
            self._faults.read(functions)

    @property
    def problem(self) -> str | None:
        """Why the log cannot be read, or None."""
        why = self._faults.log.problem if self._words else None
        return f"[gpu_devices] unhealthy_xids has no effect: {why}" if why else None

    def why_unhealthy(self, function: pci.Function) -> str | None:
        """The Xids of the card that make it unhealthy, as a sentence, or None."""
        card = function.pf or function.address
        oldest = (time.monotonic() - self._recovery) * 1_000_000
        present = sorted(
            int(word.removeprefix("Xid "))
            for word, (when, _times) in self._faults.of(card).items()
            if word in self._words and (not self._recovery or when > oldest)
        )
        if not present:
            return None
        said, slot = ", ".join(map(str, present)), card.rpartition(".")[0]
        return f"NVIDIA's driver has logged Xid {said} for the GPU at {slot}"
