# SPDX-License-Identifier: Apache-2.0
"""Reads the sensors of some NVIDIA GPUs with NVML, and prints them as JSON.

A program of its own: NVML does not return while a GPU hangs. It needs the package nvidia-ml-py, and
opens no GPU but those that are named.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any


def _readings(nvml: Any, address: str) -> tuple[dict[str, float], str | None]:
    """The readings of a card's sensors, and what is wrong with those that show none, or None."""
    card = nvml.nvmlDeviceGetHandleByPciBusId(address)
    volatile = nvml.NVML_VOLATILE_ECC

    def errors(kind: int) -> float:
        return float(nvml.nvmlDeviceGetTotalEccErrors(card, kind, volatile))

    reads: dict[str, Callable[[], float]] = {
        "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(
            card, nvml.NVML_TEMPERATURE_GPU
        ),
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(card).used,
        "ecc_correctable_errors": lambda: errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrectable_errors": lambda: errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    }
    found: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, read in reads.items():
        # A card need not have every sensor, and may show some of them to root only.
        try:
            found[name] = float(read())
        except nvml.NVMLError_NotSupported:
            continue
        except nvml.NVMLError as exc:
            refused[name] = str(exc)
    if not refused:
        return found, None
    reasons = ", ".join(dict.fromkeys(refused.values()))
    return found, f"NVML cannot read {', '.join(refused)} of GPU {address}: {reasons}"


def main(addresses: Sequence[str]) -> dict[str, Any]:
    """The readings by address, and what is wrong, as a sentence or None."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {"readings": {}, "problem": "the Python package nvidia-ml-py is not installed"}
    found: dict[str, dict[str, float]] = {}
    problem = None
    try:
        nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_ATTACH)
    except nvml.NVMLError as exc:
        return {"readings": {}, "problem": f"NVML cannot be used: {exc}"}
    for address in addresses:
        try:
            found[address], refused = _readings(nvml, address)
            problem = problem or refused
        except nvml.NVMLError as exc:
            problem = f"NVML cannot read GPU {address}: {exc}"
    return {"readings": found, "problem": problem}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])))
