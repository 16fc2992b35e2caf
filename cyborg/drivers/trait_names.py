# SPDX-License-Identifier: Apache-2.0
"""Names of traits: legal ones, and those that follow from the common facts of deployables."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping

import os_traits

#: Facts that a device profile may ask for. A link changes its speed to save power, and an address
#: names one device; neither is something to schedule by.
_WORDS = ("product", "firmware", "driver_version", "compute_partition", "memory_partition")
_SIZES = {"memory_mib": "MEMORY", "capacity_mib": "CAPACITY"}

_NAME_MAX = 255
_GIB = 1024


def of_facts(attributes: Mapping[str, str | int]) -> tuple[str, ...]:
    """The traits that follow from a deployable's attributes, sorted; all are legal.

    Sizes are rounded to whole GiB, so that two cards of one product, whose firmware keeps a
    little memory for itself, have the same trait: ``CUSTOM_MEMORY_GIB_80``. Words become
    ``CUSTOM_PRODUCT_A100_PCIE_40GB``. A word without any letter or digit of a trait is left out.
    """
    found = set()
    for key in _WORDS:
        words = _symbol(str(attributes.get(key, "")))
        if words:
            found.add(legal(f"{key}_{words}"))
    for key, name in _SIZES.items():
        mib = attributes.get(key)
        if isinstance(mib, int) and mib > 0:
            found.add(legal(f"{name}_{_size(mib)}"))
    node = attributes.get("numa_node")
    if isinstance(node, int):
        found.add(legal(f"NUMA_NODE_{node}"))
    return tuple(sorted(found))


def legal_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as legal traits, each once."""
    return tuple(dict.fromkeys(map(legal, names)))


@functools.lru_cache(maxsize=4096)
def legal(name: str) -> str:
    """The name itself if it is a standard or a legal custom trait, else a custom trait made of it.

    Placement refuses any other, and the whole provider with it.

    :raises ValueError: the name has no letter or digit that a trait can have
    """
    if name in _STANDARD or _CUSTOM.fullmatch(name):
        return name
    symbol = _symbol(name.removeprefix("CUSTOM_"))
    if not symbol:
        raise ValueError(f"no trait could be made of {name!r}")
    custom = f"CUSTOM_{symbol}"
    if len(custom) <= _NAME_MAX:
        return custom
    # Two long names must stay different.
    digest = hashlib.sha256(symbol.encode()).hexdigest()[:16].upper()
    return f"{custom[: _NAME_MAX - 17]}_{digest}"


_STANDARD = frozenset(os_traits.get_traits())
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")


@functools.lru_cache(maxsize=4096)
def _symbol(text: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", text.upper()).strip("_")


def _size(mib: int) -> str:
    return f"MIB_{mib}" if mib < _GIB else f"GIB_{(mib + _GIB // 2) // _GIB}"
