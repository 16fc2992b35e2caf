# SPDX-License-Identifier: Apache-2.0
"""Sensors and error counters of NVIDIA GPUs that stay with the host.

A GPU that is given out whole is never opened, as an open one cannot be taken from the host. The
others are read by a process of their own beside the passes, so each pass has what was read since
the one before; a GPU that hangs stops no pass.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping

from oslo_config import cfg

from cyborg import metrics
from cyborg.drivers import kept_facts, pci
from cyborg.drivers.nvidia import nvml_reader

#: What runs the reader; ``-I``: nothing of the directory that the agent was started in.
_COMMAND = [sys.executable, "-I", nvml_reader.__file__]
#: Seconds after which a reader is killed, and then given up.
_TIMEOUT, _KILLED_WAIT = 20.0, 1.0
_OUTPUT_MAX = 200
#: The kind of the kept facts.
_KIND = "ecc"

Readings = Mapping[str, Mapping[str, float]]


class Sensors:
    """The readings of the GPUs since the last pass."""

    def __init__(self, conf: cfg.ConfigOpts, kept: kept_facts.KeptFacts) -> None:
        self._errors_max: int = conf.gpu_devices.ecc_uncorrectable_errors
        self.is_wanted: bool = conf.gpu_devices.read_sensors and (
            metrics.may_be_read(conf) or self._errors_max > 0
        )
        self._kept = kept
        self._reader: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: frozenset[str] = frozenset()
        self._shown: Readings = {}
        self._read: tuple[Readings, str | None] = {}, None
        #: Why not all are read, or None.
        self.problem: str | None = None

    def take(self) -> None:
        """Begin a pass with what was read since the last one; what is older is not shown."""
        if self._is_reading():
            self._shown, self.problem = {}, "NVML does not answer"
        else:
            self._shown, self.problem = self._read
            self._read = {}, None
        if self.problem is not None:
            self.problem = f"[gpu_devices] read_sensors: {self.problem}"
        for address, found in self._shown.items():
            if "ecc_uncorrectable_errors" in found:
                self._kept.set(_KIND, address, int(found["ecc_uncorrectable_errors"]))

    def want(self, addresses: Collection[str]) -> None:
        """Say which GPUs are to be read."""
        self._asked = frozenset(addresses)

    def ask(self) -> None:
        """Have them read for the next pass."""
        if self._asked and not self._is_reading():
            chosen = sorted(self._asked)[: metrics.READINGS_MAX]
            self._reader = threading.Thread(
                target=self._call, args=(chosen,), name="nvml", daemon=True
            )
            self._reader.start()

    def of(self, address: str) -> Mapping[str, float]:
        """The readings of a GPU; none if it was not read since the last pass."""
        return self._shown.get(address, {})

    def why_unhealthy(self, function: pci.Function) -> str | None:
        """That a GPU has had errors of its memory, by the last count that was read of it."""
        address = function.pf or function.address
        if address not in self._asked or not self._errors_max:
            return None
        count = self._kept.get(_KIND, address)
        if not isinstance(count, int) or count < self._errors_max:
            return None
        return f"The GPU {address} has had uncorrectable errors of its memory (ECC)"

    def _is_reading(self) -> bool:
        if self._reader is not None and self._reader.is_alive():
            return True
        # One that could not be killed: the kernel has it in a call to the GPU.
        return self._child is not None and self._child.poll() is None

    def _call(self, addresses: list[str]) -> None:
        try:
            self._read = self._run(addresses)
        except (OSError, ValueError, LookupError, TypeError) as exc:
            self._read = {}, f"the reader of NVML has failed: {exc}"

    def _run(self, addresses: list[str]) -> tuple[Readings, str | None]:
        self._child = child = subprocess.Popen(  # noqa: S603 - our own program
            [*_COMMAND, *addresses],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
        )
        try:
            output, _ = child.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_KILLED_WAIT)
            return {}, "NVML does not answer"
        if child.returncode:
            said = " ".join(output.decode(errors="replace").split())[-_OUTPUT_MAX:]
            raise ValueError(f"it ended with {child.returncode}: {said}")
        # The library may have warned before.
        answer = json.loads(output.splitlines()[-1])
        found = {
            address: {
                name: value
                for name, value in answer["readings"].get(address, {}).items()
                if name in metrics.DEVICE_READINGS and isinstance(value, float)
            }
            for address in addresses
        }
        return found, answer["problem"]
