# SPDX-License-Identifier: Apache-2.0
"""Places of PCI functions, as Kubernetes' standard attributes name them."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any

DEVICES = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ROOT = re.compile(r"/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/", re.ASCII)
_PARTS = ("domain", "bus", "device", "function")


def address(info: Mapping[str, Any]) -> str | None:
    """The address that an attach handle names, such as ``0000:3b:00.0``; None if it names none."""
    domain, bus, device, function = (str(info.get(part, "")) for part in _PARTS)
    text = f"{domain:0>4}:{bus:0>2}:{device:0>2}.{function}".lower()
    return text if _ADDRESS.fullmatch(text) else None


def root(function: str) -> str | None:
    """The root complex of the function at an address; None if this machine has none there."""
    if not _ADDRESS.fullmatch(function):
        return None
    try:
        target = str(pathlib.Path(DEVICES, function).readlink())
    except OSError:
        return None
    # Behind a bridge of its own, such as VMD, there may be a second one: the first counts.
    match = _ROOT.search(target)
    return match[1] if match else None
