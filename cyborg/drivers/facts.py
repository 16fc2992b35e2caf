# SPDX-License-Identifier: Apache-2.0
"""Traits for schedulers, made from the facts that drivers state in the same words."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping

import os_traits

#: Facts of which a device profile may want a certain value. A link changes its speed to save
#: power, and an address names one device; neither is something to schedule by.
_WORDS = ("product", "firmware", "driver_version")
_SIZES = {"memory_mib": "MEMORY", "capacity_mib": "CAPACITY"}

_NAME_MAX = 255
_GIB = 1024


def traits_of(attributes: Mapping[str, str | int]) -> tuple[str, ...]:
    """The traits that follow from a deployable's attributes, sorted; all are legal.

    Sizes are rounded to whole GiB, so that two cards of one product, whose firmware keeps a
    little memory for itself, have the same trait: ``CUSTOM_MEMORY_GIB_80``. Words become
    ``CUSTOM_PRODUCT_A100_PCIE_40GB``. What says nothing in the letters of a trait is left out.
    """
    found = set()
    for key in _WORDS:
        words = _symbol(str(attributes.get(key, "")))
        if words:
            found.add(trait(f"{key}_{words}"))
    for key, name in _SIZES.items():
        mib = attributes.get(key)
        if isinstance(mib, int) and mib > 0:
            found.add(trait(f"{name}_{_size(mib)}"))
    node = attributes.get("numa_node")
    if isinstance(node, int):
        found.add(trait(f"NUMA_NODE_{node}"))
    return tuple(sorted(found))


def trait(name: str) -> str:
    """The name itself where it is a standard or a legal custom trait, else a custom one of it.

    Placement refuses any other, and with it the whole provider.

    :raises ValueError: nothing in the name could stand in a trait
    """
    if name in _STANDARD or _CUSTOM.fullmatch(name):
        return name
    symbol = _symbol(name.removeprefix("CUSTOM_"))
    if not symbol:
        raise ValueError(f"{name!r} has nothing of which a trait could be made")
    custom = f"CUSTOM_{symbol}"
    if len(custom) <= _NAME_MAX:
        return custom
    # Two long names stay two.
    digest = hashlib.sha256(symbol.encode()).hexdigest()[:16].upper()
    return f"{custom[: _NAME_MAX - 17]}_{digest}"


_STANDARD = frozenset(os_traits.get_traits())
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")


@functools.lru_cache(maxsize=4096)
def _symbol(text: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", text.upper()).strip("_")


def _size(mib: int) -> str:
    return f"MIB_{mib}" if mib < _GIB else f"GIB_{(mib + _GIB // 2) // _GIB}"
