# SPDX-License-Identifier: Apache-2.0
"""Readings of the sensors of a device, as its kernel driver shows them (hwmon).

Each is read only now, and never kept: a device that cannot be read has no reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cyborg.drivers.pci import sysfs
from cyborg.drivers.pci.snapshot import Function

_TEMPERATURE = re.compile(r"temp\d+_input")
#: In microwatts. A driver has one of them, or both.
_POWERS = ("power1_input", "power1_average")
_NUMBER_MAX = 20


def hwmon(function: Function, *below: str) -> dict[str, float]:
    """The highest temperature, in degrees Celsius, and the power in watts, where it shows them.

    ``below`` are further directories of the function with sensors.
    """
    found: dict[str, float] = {}
    for folder in _sensors(function.address, below):
        names = [name for name in _names(folder) if _TEMPERATURE.fullmatch(name)]
        read = [number(f"{folder}/{name}") for name in names]
        degrees = [each / 1000 for each in read if each is not None]
        powers = [number(f"{folder}/{name}") for name in _POWERS]
        watts = [each / 1_000_000 for each in powers if each is not None]
        if degrees:
            found["temperature_celsius"] = max([*degrees, found.get("temperature_celsius", -273)])
        if watts:
            found["power_watts"] = watts[0]
    return found


def number(path: str) -> int | None:
    """The number that a file holds, or None."""
    text = sysfs.beginning(path, _NUMBER_MAX).strip()
    return int(text) if re.fullmatch(rb"-?\d{1,18}", text) else None


def errors(function: Function) -> dict[str, float]:
    """ECC errors of all blocks of a card together, as amdgpu counts them (``ras``)."""
    folder = f"{sysfs.DEVICES}/{function.address}/ras"
    texts = [
        sysfs.beginning(f"{folder}/{name}", 200)
        for name in _names(folder)
        if name.endswith("_err_count")
    ]
    found: dict[str, float] = {}
    for kind, key in (("uncorrectable", rb"ue"), ("correctable", rb"ce")):
        line = re.compile(key + rb": (\d{1,18})\b")
        counts = [int(count) for text in texts for count in line.findall(text)]
        if counts:
            found[f"ecc_{kind}_errors"] = sum(counts)
    return found


def file(function: Function, name: str) -> int | None:
    """The number in a file of a function, or None."""
    return number(f"{sysfs.DEVICES}/{function.address}/{name}")


def _sensors(address: str, below: Iterable[str]) -> Iterator[str]:
    """The directories with sensors: below ``hwmon``, or, of a device of a class, right below it."""
    for path in ("hwmon", *below):
        folder = f"{sysfs.DEVICES}/{address}/{path}"
        yield from (f"{folder}/{name}" for name in _names(folder) if name.startswith("hwmon"))


def _names(folder: str) -> list[str]:
    try:
        return sysfs.names(folder)
    except OSError:
        return []
