# SPDX-License-Identifier: Apache-2.0
"""What a host and its cards are made of: the YAML files in ``tests/data``, merged to plain values.

A card has these keys, and any of them may be given again where a host lists the card:

``id``, ``subsystem``
    ``vendor:device``
``class``
    six digits
``driver``
    the driver made for it, bound unless the host says otherwise; ``module`` is its kernel module
``sriov``
    ``total``, ``offset`` and ``stride``; ``id``, ``driver`` and ``nodes`` are the VFs'
``mdev``
    ``types`` and where they hang (``holders``: pf or vfs); ``mixed``: several types on one card
``vgpu``
    ``types`` that are written to a VF's ``nvidia/current_vgpu_type``; ``mig``: it is in MIG mode
``link``
    ``speed`` and ``width`` the card could have; ``now_speed`` and ``now_width`` what it has
``attributes``, ``nodes``
    files and child devices that exist while the card's own driver is bound; the path of a child
    is below the function's, or with ``/`` below ``devices/virtual``
``files``, ``proc``
    further files below ``/sys`` and ``/proc``
``sanitize``
    how an NVMe controller erases itself: what it ``can`` (crypto, block), how often it ``asks``
    for patience meanwhile, how that ``ends`` (done, failed); with ``detached``, a number, it can
    detach namespaces from itself, and so many are
``functions``
    further functions of the card
``group``
    functions with the same name here are in one IOMMU group; every other one has its own
``base``
    the card that these keys are merged over; null takes a key away

A host lists ``cards``: a name, or the keys above with ``card``, ``count``, ``name`` (for the
tests), ``address``, ``numa``, ``switch``, the number (1 to 7) of the PCIe switch that it is behind,
and ``vfs``, how many are enabled. It may have ``numa_nodes``,
``mounts`` (a path and its partition), ``swaps``, ``volumes`` and ``bridges`` (a name and what it
is made of), ``default_route`` (a network device), and ``iommu: false``.
"""

from __future__ import annotations

import copy
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

#: Where the hosts and the cards are.
DATA = pathlib.Path(__file__).parent.parent / "data"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def host(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """A host by the name of its file, or by what such a file holds; every card is whole."""
    facts = _read(DATA / "hosts" / f"{spec}.yaml") if isinstance(spec, str) else dict(spec)
    entries: list[dict[str, Any]] = [
        {"card": each} if isinstance(each, str) else each for each in facts["cards"]
    ]
    whole = [card(entry) for entry in entries for _ in range(entry.get("count", 1))]
    return {"numa_nodes": 2, **facts, "cards": whole}


def card(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A card of a host: the named card with the entry's own keys over it.

    ``bound`` is the driver that it has now.
    """
    own = {key: value for key, value in entry.items() if key not in {"count", "driver"}}
    result = merged(_card(entry["card"]), own)
    return {"driver": None, **result, "bound": entry.get("driver", result.get("driver"))}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below``, mappings key by key; null takes a key away."""
    result = dict(copy.deepcopy(below))
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _card(name: str) -> dict[str, Any]:
    own = _cards()[name]
    if "base" not in own:
        return own
    return merged(_card(own["base"]), {key: own[key] for key in own if key != "base"})


@functools.cache
def _cards() -> dict[str, dict[str, Any]]:
    return {
        name: keys
        for path in sorted((DATA / "cards").glob("*.yaml"))
        for name, keys in _read(path).items()
    }


def _read(path: pathlib.Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        facts: dict[str, Any] = yaml.load(file, _LOADER)
    return facts
