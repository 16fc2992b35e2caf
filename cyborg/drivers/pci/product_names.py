# SPDX-License-Identifier: Apache-2.0
"""Names of PCI products from the system's ``pci.ids``, for people to read.

Nothing is decided by a name, since another edition of the file may have other names.
"""

from __future__ import annotations

import functools
import logging
import pathlib
import re
from collections.abc import Mapping

LOG = logging.getLogger(__name__)

#: Where distributions keep the file (package pci.ids or hwdata).
PATHS: tuple[pathlib.Path, ...] = (
    pathlib.Path("/usr/share/misc/pci.ids"),
    pathlib.Path("/usr/share/hwdata/pci.ids"),
)

_MARKETING = re.compile(r"\[([^\[\]]+)\]\s*$")


def find(vendor: str, device: str) -> str | None:
    """The name under which a product is sold, or None if the system does not know it."""
    for path in PATHS:
        try:
            changed = path.stat().st_mtime_ns
            name = _product(path, changed, vendor, device)
        except FileNotFoundError:
            continue
        except OSError as exc:
            _log(f"Products have no names from {path}: {exc}")
            continue
        if name is not None:
            return name
    return None


@functools.cache
def _log(sentence: str) -> None:
    """Log a sentence once, not at every pass."""
    LOG.warning("%s", sentence)


@functools.lru_cache(maxsize=1024)
def _product(path: pathlib.Path, changed: int, vendor: str, device: str) -> str | None:
    name = _products(path, changed, vendor).get(device)
    found = _MARKETING.search(name or "")
    return found.group(1).strip() if found else name


@functools.lru_cache(maxsize=64)
def _products(path: pathlib.Path, changed: int, vendor: str) -> Mapping[str, str]:
    """One vendor's products. ``changed`` is the file's time stamp, so a new file is read again."""
    text = path.read_text(encoding="utf-8", errors="replace")
    _before, _line, after = f"\n{text}".partition(f"\n{vendor}  ")
    products = {}
    for line in after.splitlines()[1:]:
        if line and not line.startswith(("\t", "#")):
            break
        if line.startswith("\t") and not line.startswith("\t\t"):
            device, _blanks, name = line.strip().partition("  ")
            products[device] = name.strip()
    return products
