# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices that say to Kubernetes what :mod:`.inventory` has found. No I/O.

Each accelerator of a part is a device. Those of one part are equal, and Cyborg chooses which one a
claim gets; so devices of a part with several consume a counter that says how many are left of it.

A GPU with shares is one device that many claims have some of, where Kubernetes knows such devices.

A card that can have layouts has a device more for each: the whole card, in that layout. It consumes
all that is counted, so it excludes the accelerators of the present layout, and every other layout.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cyborg.kube import inventory
from cyborg.kube.inventory import OfferedPart

#: What Kubernetes permits: devices in a slice if they have taints or counters, sets of counters
#: in a slice, attributes and capacities of a device, bytes of a text, taints of a device.
_MOST_DEVICES, _MOST_SETS, _MOST_FACTS, _LONGEST, _MOST_TAINTS = 64, 8, 32, 64, 4
#: What taints say, the gravest first: one that there is no room for would change nothing.
_GRAVEST = (
    inventory.UNHEALTHY,
    inventory.MISSING,
    inventory.DRAINED,
    inventory.HOST_DOWN,
    inventory.CYBORG_DOWN,
    inventory.WITHHELD,
    inventory.DISABLED,
    inventory.PROGRAMMING,
    inventory.BLANK,
    inventory.IN_USE,
)
_ATTRIBUTE = re.compile(rf"({re.escape(inventory.STANDARD)}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
#: What semver.org calls a version, but for what may follow the numbers.
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)", re.ASCII)
_DEVICE = re.compile(
    r"[a-z0-9]+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(?:[0-9]+|layout-[0-9a-f]{8})",
    re.ASCII,
)
_COUNTER, _CARDS, _SHARES = "accelerators", "cards", "shares"
#: The field of devices that many claims have some of.
SHAREABLE = "allowMultipleAllocations"
#: Facts that are amounts of MiB, and the capacity that each is.
_CAPACITIES = {"memory_mib": "memory", "capacity_mib": "storage"}

Spec = dict[str, Any]


def bound(driver: str) -> str:
    """The condition of a device whose claim has what it wants."""
    return f"{driver}/programmed"


def failed(driver: str) -> str:
    """The condition of a device whose claim cannot have what it wants."""
    return f"{driver}/not-programmed"


def is_layout(device: str) -> bool:
    """True if a device is a whole card in a layout."""
    return "-layout-" in device


def names(part: OfferedPart) -> list[str]:
    """The names of a part's devices: labels of DNS."""
    return [*_single_names(part), *_layout_names(part)]


def _single_names(part: OfferedPart) -> list[str]:
    return [f"{_prefix(part)}-{n}" for n in range(part.total // part.unit)]


def _layout_names(part: OfferedPart) -> dict[str, str]:
    """The layout that each device is which is a whole card, by its name."""
    # A name outlives a change of the list of layouts, and may have no points.
    digests = {each: hashlib.sha256(each.encode()).hexdigest()[:8] for each in part.layouts}
    return {f"{_prefix(part)}-layout-{digest}": each for each, digest in digests.items()}


def _prefix(part: OfferedPart) -> str:
    return f"{part.device_type.lower()}-{part.provider}"


def layout_of(part: OfferedPart, device: str) -> str | None:
    """The layout that a device of a part is; None if it is one of its accelerators."""
    return _layout_names(part).get(device)


def provider_of(device: str) -> str | None:
    """The resource provider of the device of that name; None if it is no name of ours."""
    match = _DEVICE.fullmatch(device)
    return match[1] if match else None


def specs(
    parts: Iterable[OfferedPart],
    driver: str,
    node: str,
    *,
    evict_unhealthy: bool,
    binding_conditions: bool = True,
    shareable: bool = True,
) -> dict[str, Spec]:
    """The wanted slices of the pool of a node: what each says of its content, by its name.

    How often the pool has changed is not in them. Unless devices can be ``shareable``, each share
    of a GPU is a device.
    """
    known = sorted(parts, key=lambda part: part.provider)
    shared = [_counter_set(part) for part in known if _is_counted(part, shareable=shareable)]
    devices = [
        each | (_waited_for(part, driver) if binding_conditions else {})
        for part in known
        for each in _devices(part, driver, evict=evict_unhealthy, shareable=shareable)
    ]
    counters = [{"sharedCounters": chunk} for chunk in _chunks(shared, _MOST_SETS)]
    content = [{"devices": chunk} for chunk in _chunks(devices, _MOST_DEVICES)]
    prefix = f"{node}-{driver}"
    named = {f"{prefix}-counters-{n}": each for n, each in enumerate(counters)}
    named |= {f"{prefix}-devices-{n}": each for n, each in enumerate(content)}
    pool = {"name": node, "resourceSliceCount": len(named)}
    head = {"driver": driver, "nodeName": node, "pool": pool}
    return {name: head | each for name, each in named.items()}


def _chunks(items: Sequence[Spec], most: int) -> Iterator[list[Spec]]:
    rest = iter(items)
    while chunk := list(itertools.islice(rest, most)):
        yield chunk


def _is_counted(part: OfferedPart, *, shareable: bool) -> bool:
    is_several = part.total // part.unit > 1 and not (shareable and part.is_shares)
    return is_several or bool(part.layouts)


def _counter_set(part: OfferedPart) -> Spec:
    amounts = {_COUNTER: part.left} | ({_CARDS: 1} if part.layouts else {})
    return {"name": _set_name(part), "counters": _amounts(amounts)}


def _amounts(amounts: Mapping[str, int]) -> Spec:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}


def _set_name(part: OfferedPart) -> str:
    return f"provider-{part.provider}"


def _devices(
    part: OfferedPart, driver: str, *, evict: bool, shareable: bool
) -> Iterator[Spec]:
    if shareable and part.is_shares:
        yield _shareable(part, driver, evict=evict)
        return
    common: Spec = {
        "attributes": dict(_attributes(part)),
        "capacity": {key: {"value": amount} for key, amount in _capacities(part).items()},
    }
    single = common | _taints(part.closed, driver, evict=evict)
    if _is_counted(part, shareable=shareable):
        single |= _consumes(part, {_COUNTER: part.unit})
    for name in _single_names(part):
        yield {"name": name, **single}
    whole = common | _taints(_closed_for_layouts(part), driver, evict=evict)
    for name, layout in _layout_names(part).items():
        capacity = {_COUNTER: {"value": str(part.layouts[layout])}}
        yield {
            "name": name,
            **whole,
            # What the card has in another layout is no fact of it in this one.
            "attributes": dict(_attributes(part, layout)),
            "capacity": capacity,
            **_consumes(part, {_COUNTER: part.total, _CARDS: 1}),
        }


def _shareable(part: OfferedPart, driver: str, *, evict: bool) -> Spec:
    """A GPU of which claims have shares: one, unless they ask for more."""
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    # A claim would take all of any other capacity.
    capacity = {_SHARES: {"value": str(part.total), "requestPolicy": policy}}
    return {
        "name": _single_names(part)[0],
        SHAREABLE: True,
        "attributes": dict(_attributes(part)),
        "capacity": capacity,
        **_taints(part.closed, driver, evict=evict),
    }


def shares_of(result: Mapping[str, Any]) -> int | None:
    """How many shares of a device Kubernetes has allocated; None if it is no such device."""
    amounts = result.get("consumedCapacity") or {}
    found = [amount for key, amount in amounts.items() if key.rpartition("/")[2] == _SHARES]
    return int(found[0]) if found else None


def _waited_for(part: OfferedPart, driver: str) -> Spec:
    """The conditions for which pods of a device that can be programmed wait."""
    if part.mode is None:
        return {}
    return {
        "bindsToNode": True,
        "bindingConditions": [bound(driver)],
        "bindingFailureConditions": [failed(driver)],
    }


def _closed_for_layouts(part: OfferedPart) -> set[str]:
    """Why a card can be given no layout. All of it must be free, and it may have none yet."""
    closed = set(part.closed) - {inventory.BLANK, inventory.IN_USE}
    return closed | ({inventory.IN_USE} if part.left < part.total else set())


def _taints(closed: Iterable[str], driver: str, *, evict: bool) -> Spec:
    gravest = sorted(closed, key=_GRAVEST.index)[:_MOST_TAINTS]
    taints = [_taint(what, driver, evict=evict) for what in sorted(gravest)]
    return {"taints": taints} if taints else {}


def _consumes(part: OfferedPart, amounts: Mapping[str, int]) -> Spec:
    return {
        "consumesCounters": [{"counterSet": _set_name(part), "counters": _amounts(amounts)}]
    }


def _taint(what: str, driver: str, *, evict: bool) -> Spec:
    evicts = evict and what == inventory.UNHEALTHY
    return {"key": f"{driver}/{what}", "effect": "NoExecute" if evicts else "NoSchedule"}


def _attributes(part: OfferedPart, layout: str | None = None) -> Iterator[tuple[str, Spec]]:
    """The first of its facts, and then of its traits, that there is room for."""
    known = _known(part)
    if layout is not None:
        of_present = set(part.traits) | {"function_id", "function_name", inventory.PCI_BUS_ID}
        known = {key: value for key, value in known.items() if key not in of_present}
        known = {"layout": layout, **known}
    fitting = [(key, value) for key, value in known.items() if _ATTRIBUTE.fullmatch(key)]
    for key, value in fitting[: _MOST_FACTS - len(_capacities(part))]:
        yield key, _typed(value)


def told(part: OfferedPart, device: str, address: str | None) -> dict[str, Spec]:
    """The attributes of a device as its pod is told them, with the address of its function."""
    exact = {inventory.PCI_BUS_ID: {"string": address}} if address else {}
    attributes = exact | dict(_attributes(part, layout_of(part, device))) | exact
    return dict(list(attributes.items())[:_MOST_FACTS])


def left_out(part: OfferedPart) -> list[str]:
    """The facts and traits of a part that Kubernetes has no room or no name for."""
    published = dict(_attributes(part))
    return sorted(key for key in _known(part) if key not in published)


def _known(part: OfferedPart) -> dict[str, str | int | bool]:
    # A share has the memory of its card with others, so it is no capacity that it could use up.
    hidden = {} if part.is_shares else _CAPACITIES
    facts = {key: value for key, value in part.facts.items() if key not in hidden}
    return facts | dict.fromkeys(sorted(part.traits), True)


def _typed(value: str | int | bool) -> Spec:  # noqa: FBT001 - it is a value
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if len(value) <= _LONGEST and _VERSION.fullmatch(value):
        return {"version": value}
    # The server counts bytes, and refuses the whole slice if there is one too many.
    return {"string": value.encode()[:_LONGEST].decode(errors="ignore")}


def _capacities(part: OfferedPart) -> dict[str, str]:
    found = {_COUNTER: str(part.unit)}
    for fact, name in _CAPACITIES.items():
        if isinstance(value := part.facts.get(fact), int):
            found[name] = _quantity(value)
    return found


def _quantity(mib: int) -> str:
    """An amount as Kubernetes writes it: in the largest unit of which it is a whole number."""
    if mib == 0:
        return "0"
    units = ["Ei", "Pi", "Ti", "Gi", "Mi"]
    while mib % 1024 == 0 and len(units) > 1:
        units.pop()
        mib //= 1024
    return f"{mib}{units[-1]}"
