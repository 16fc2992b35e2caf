# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH110, PTH120, PTH208
# pathlib takes several times as long, and a pass reads thousands of files.
"""The walk of the PCI bus, which reads the few facts that drivers match on."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from cyborg.drivers.pci import sysfs
from cyborg.drivers.pci.snapshot import BRIDGE, Function, Snapshot, slot, split
from cyborg.drivers.pci.sysfs import DEVICES

_ID_WIDTH = 4
_VFS_MAX = 0xFFFF
_SENTENCE_MAX = 300


def scan() -> Snapshot:
    """Read every PCI function of this host.

    A function that cannot be read is among the snapshot's ``faults``.

    :raises OSError: the bus could not be read, so a function that is absent need not be gone
    """
    bus = pathlib.Path(DEVICES).parent.parent
    if not bus.is_dir():
        raise OSError(f"{bus} is absent: sysfs is not mounted")
    functions: dict[str, dict[str, Any]] = {}
    faults: dict[str, str] = {}
    for name in sorted(_listed()):
        try:
            read = _read_twice(name)
        except _UnreadableFile as exc:
            faults[name] = str(exc)
            continue
        if read is not None:
            functions[name] = read
    _set_late_pfs(functions)
    _leave_out_cards(functions, faults)
    doubtful = _doubtful(functions, faults)
    vfs: dict[str, list[str]] = {}
    for function in functions.values():
        if function["pf"]:
            vfs.setdefault(function["pf"], []).append(function["address"])
    found = (
        Function(**facts, vfs=tuple(vfs.get(name, ()))) for name, facts in functions.items()
    )
    return Snapshot(found, faults=faults, doubtful=doubtful)


class _UnreadableFile(Exception):
    """A file of a function that is on the bus cannot be read."""


def _listed() -> set[str]:
    try:
        return set(os.listdir(DEVICES))
    except FileNotFoundError:
        if os.path.lexists(os.path.dirname(DEVICES)):
            raise
        return set()  # a host without PCI


def _read_twice(address: str) -> dict[str, Any] | None:
    """The facts of a function, or None if it vanished meanwhile.

    A function that is being removed or added may be half there, so it is tried once more.
    """
    with contextlib.suppress(_UnreadableFile):
        return _read(address)
    try:
        return _read(address)
    except _UnreadableFile:
        if os.path.exists(f"{DEVICES}/{address}"):
            raise
        return None


def _read(address: str) -> dict[str, Any]:
    """The facts of a function."""
    path = f"{DEVICES}/{address}"
    name = "uevent"
    try:
        properties = dict(
            line.split("=", 1) for line in sysfs.text(f"{path}/uevent").splitlines() if "=" in line
        )
        vendor, product = _pair(properties["PCI_ID"])
        subsystem_vendor, subsystem_device = _pair(properties.get("PCI_SUBSYS_ID", "0:0"))
        class_code = f"{int(properties['PCI_CLASS'], 16):06x}"
        name = "numa_node"
        numa_node = int(sysfs.if_there(f"{path}/{name}") or -1)
        name = "physfn"
        pf = sysfs.link_if_there(f"{path}/{name}")
        name = "sriov_totalvfs"
        total = 0 if pf else _count(sysfs.if_there(f"{path}/{name}") or "0")
        name = "iommu_group"
        group = _group(f"{path}/{name}")
        name = "net"
        netdevs = tuple(sysfs.names(f"{path}/{name}")) if class_code.startswith("02") else ()
        name = "boot_vga"
        boot_vga = pf is None and _is_screen(f"{path}/{name}", class_code)
    except (OSError, KeyError, ValueError) as exc:
        raise _UnreadableFile(f"{path}/{name} cannot be read: {exc!r}"[:_SENTENCE_MAX]) from exc
    return {
        "address": address,
        "vendor": vendor,
        "device": product,
        "subsystem_vendor": subsystem_vendor,
        "subsystem_device": subsystem_device,
        "class_code": class_code,
        "driver": properties.get("DRIVER"),
        "numa_node": numa_node if numa_node >= 0 else None,
        "pf": pf,
        "sriov_totalvfs": total,
        "iommu_group": group,
        "boot_vga": boot_vga,
        "netdevs": netdevs,
    }


def _pair(text: str) -> tuple[str, str]:
    first, second = (f"{int(part, 16):04x}" for part in text.split(":"))
    if len(first) > _ID_WIDTH or len(second) > _ID_WIDTH:
        raise ValueError(f"{text[:40]!r} are not ids")
    return first, second


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count <= _VFS_MAX:
        raise ValueError(f"{text[:40]!r} is not a number of virtual functions")
    return count


def _group(path: str) -> str | None:
    """The number of the IOMMU group, to which a link leads, or None if there is no link."""
    group = sysfs.link_if_there(path)
    if group is not None and not group.isdecimal():
        raise ValueError(f"{group[:40]!r} is no IOMMU group")
    return group


def _is_screen(path: str, class_code: str) -> bool:
    """True if the host was booted with the graphics card. Each with VGA shows that."""
    if not class_code.startswith("03"):
        return False
    text = sysfs.text(path).strip() if class_code.startswith("0300") else sysfs.if_there(path)
    if text not in {"0", "1", None}:
        raise ValueError(f"{text[:40]!r} is neither 0 nor 1")
    return text == "1"


def _doubtful(
    functions: Mapping[str, Mapping[str, Any]], faults: Mapping[str, str]
) -> dict[str, str]:
    """IOMMU groups that may have functions of which that is not known, each with a sentence.

    If the group of such a function is not known, it may be that of any function of its slot.
    """
    found: dict[str, str] = {}
    for name, fault in faults.items():
        group = sysfs.link(f"{DEVICES}/{name}/iommu_group")
        key = f"group {group}" if group is not None and group.isdecimal() else f"slot {slot(name)}"
        found.setdefault(key, f"PCI function {name}: {fault}")
    grouped = {slot(name) for name, facts in functions.items() if facts["iommu_group"]}
    for name, facts in functions.items():
        if facts["iommu_group"] is None and slot(name) in grouped:
            found.setdefault(f"slot {slot(name)}", f"{DEVICES}/{name}/iommu_group is missing")
    return found


def _leave_out_cards(functions: dict[str, dict[str, Any]], faults: dict[str, str]) -> None:
    """Leave out the whole card of a function that cannot be read.

    A physical function of which not all virtual ones are known could pass for a whole card.
    """
    for name, facts in functions.items():
        pf = facts["pf"]
        if pf is not None and pf not in functions:
            why = faults.get(pf) or f"{DEVICES}/{name}/physfn: {pf} is not on the bus"
            faults[name] = f"its card is not known: {why}"
        elif pf is not None and not functions[pf]["sriov_totalvfs"]:
            faults[name] = f"its card is not known: {DEVICES}/{pf}/sriov_totalvfs shows none"
    cards = _cards_of(faults, functions) if faults else {}
    for name, facts in functions.items():
        part = cards.get(name) or cards.get(facts["pf"] or "")
        if part is not None and name not in faults:
            faults[name] = f"its card is not known: {faults[part]}"
    for name in faults:
        functions.pop(name, None)


def _cards_of(
    faults: Mapping[str, str], functions: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """The physical functions of virtual ones that cannot be read, by the links on both sides."""
    cards = {pf: name for name in faults if (pf := sysfs.link(f"{DEVICES}/{name}/physfn"))}
    for name, facts in functions.items():
        with contextlib.suppress(OSError):
            for each in sysfs.names(f"{DEVICES}/{name}") if facts["sriov_totalvfs"] else ():
                vf = sysfs.link(f"{DEVICES}/{name}/{each}") if each.startswith("virtfn") else None
                if vf is not None and vf in faults:
                    cards.setdefault(name, vf)
    return cards


def _set_late_pfs(functions: dict[str, dict[str, Any]]) -> None:
    """Set ``pf`` of virtual functions that have no link to their physical function yet.

    The kernel makes the link a moment after the function, which looks like a whole card until then.
    Its address is one that the physical function announces for its virtual functions.
    """
    pfs = [facts for facts in functions.values() if facts["sriov_totalvfs"]]
    vf_device = functools.cache(_vf_device)
    for facts in functions.values():
        bridge = str(facts["class_code"]).startswith(BRIDGE)
        if facts["pf"] or facts["sriov_totalvfs"] or bridge:
            continue
        for pf in pfs:
            fits = facts["vendor"] == pf["vendor"] and facts["device"] == vf_device(pf["address"])
            if fits and _is_vf_address(facts, pf):
                facts["pf"] = pf["address"]


def _vf_device(pf: str) -> str | None:
    """The device id of a physical function's virtual ones, which the kernel does not pad."""
    text = sysfs.optional(f"{DEVICES}/{pf}/sriov_vf_device")
    return text.lower().zfill(4) if text else None


def _is_vf_address(facts: dict[str, object], pf: dict[str, object]) -> bool:
    domain, number = _routing_id(str(facts["address"]))
    pf_domain, pf_number = _routing_id(str(pf["address"]))
    if domain != pf_domain or number <= pf_number:
        return False
    path = f"{DEVICES}/{pf['address']}"
    offset = _number(f"{path}/sriov_offset") or 0
    stride = _number(f"{path}/sriov_stride") or 1
    index, rest = divmod(number - pf_number - offset, stride)
    return offset > 0 and rest == 0 and 0 <= index < int(str(pf["sriov_totalvfs"]))


def _number(path: str) -> int | None:
    text = sysfs.optional(path)
    return int(text) if text is not None and text.isdecimal() else None


def _routing_id(address: str) -> tuple[str, int]:
    parts = split(address)
    device = int(parts["device"], 16) << 3 | int(parts["function"], 16)
    return parts["domain"], int(parts["bus"], 16) << 8 | device
