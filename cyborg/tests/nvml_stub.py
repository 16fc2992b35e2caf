# SPDX-License-Identifier: Apache-2.0
"""Stands for nvidia-ml-py, under its name in a folder with a file ``gpus``: what GPUs show.

It notes in ``opened`` which GPUs were opened. A value of null is a sensor that a GPU has not, and a
text says why NVML refuses it.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any

NVML_INIT_FLAG_NO_ATTACH = 2
NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
NVML_VOLATILE_ECC = 0

_HERE = pathlib.Path(__file__).parent
_GPUS = json.loads((_HERE / "gpus").read_text())
sys.stderr.write(_GPUS.get("warns", ""))


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801 - its name there
    pass


class _Memory:
    def __init__(self, used: int) -> None:
        self.used = used


def nvmlInitWithFlags(flags: int) -> None:  # noqa: N802
    assert flags == NVML_INIT_FLAG_NO_ATTACH
    time.sleep(_GPUS.get("sleep", 0))


def nvmlDeviceGetHandleByPciBusId(address: str) -> str:  # noqa: N802
    with (_HERE / "opened").open("a") as file:
        file.write(f"{address}\n")
    if address not in _GPUS:
        raise NVMLError("Not Found")
    return address


def _value(card: str, name: str) -> Any:
    value = _GPUS[card].get(name)
    if value is None:
        raise NVMLError_NotSupported("Not Supported")
    if isinstance(value, str):
        raise NVMLError(value)
    return value


def nvmlDeviceGetTemperature(card: str, sensor: int) -> int:  # noqa: N802
    assert sensor == NVML_TEMPERATURE_GPU
    found: int = _value(card, "temperature")
    return found


def nvmlDeviceGetPowerUsage(card: str) -> int:  # noqa: N802
    found: int = _value(card, "milliwatts")
    return found


def nvmlDeviceGetMemoryInfo(card: str) -> _Memory:  # noqa: N802
    return _Memory(_value(card, "used"))


def nvmlDeviceGetTotalEccErrors(card: str, kind: int, since: int) -> int:  # noqa: N802
    assert since == NVML_VOLATILE_ECC
    found: int = _value(card, ("corrected", "uncorrected")[kind])
    return found
