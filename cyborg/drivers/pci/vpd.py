# SPDX-License-Identifier: Apache-2.0
"""The name of a card in its Vital Product Data, which only root can read."""

from __future__ import annotations

import functools
import os

from cyborg.drivers.pci import sysfs
from cyborg.drivers.pci.snapshot import Function

#: The first item: its tag, then the length of the name in two bytes.
_NAME_TAG, _HEADER = 0x82, 3
_NAME_MAX = 255


def product_name(function: Function) -> str | None:
    """The name, or None if the card shows none."""
    path = f"{sysfs.DEVICES}/{function.address}/vpd"
    try:
        status = os.stat(path)  # noqa: PTH116 - pathlib takes longer
    except OSError:
        return None
    return _name(path, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _name(path: str, inode: int, changed: int) -> str | None:
    """Reading takes long on some cards, so each is read once, and again if it was replaced."""
    del inode, changed
    data = sysfs.beginning(path, _HEADER + _NAME_MAX)
    if len(data) < _HEADER or data[0] != _NAME_TAG:
        return None
    size = int.from_bytes(data[1:_HEADER], "little")
    text = data[_HEADER : _HEADER + size].decode("ascii", "replace")
    name = "".join(char if char.isprintable() and char != "\ufffd" else " " for char in text)
    return " ".join(name.split()) or None
