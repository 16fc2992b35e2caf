# SPDX-License-Identifier: Apache-2.0
"""Virtual GPUs in sysfs: mediated devices, and the types that newer cards' VFs are given.

Types say how many of them fit on a card (``max``). As on real cards, one type in use bars the
others unless the card is ``mixed``, and a virtual function holds one. A card in MIG mode (``mig``)
has room for types of slices only, one for each GPU instance that NVIDIA's tool has made, or as many
``parts`` of an instance with that ``profile``.
"""

from __future__ import annotations

import collections
import errno
import os
import re
import uuid
from collections.abc import Mapping
from typing import Any

from cyborg.tests.simulated.files import Files
from cyborg.tests.simulated.layout import Function

_TYPES = "mdev_supported_types"
_CREATABLE = "nvidia/creatable_vgpu_types"
_CURRENT = "nvidia/current_vgpu_type"
_INSTANCES = ".gpu_instances"
_SLICE = re.compile(r"-(\d+)-(\d+)C(ME)?$")
_SLICES = 7


def offer(files: Files, function: Function) -> None:
    """Show the types of a function that has just been bound to its driver."""
    facts, path = function.facts, function.path
    if "vgpu" in facts and function.pf is not None:
        files.put(f"{path}/{_CREATABLE}", "")
        files.put(f"{path}/{_CURRENT}", 0)
    if "mdev" not in facts or (facts["mdev"]["holders"] == "vfs") != (function.pf is not None):
        return
    for name, kind in facts["mdev"]["types"].items():
        place = f"{path}/{_TYPES}/{name}"
        files.directory(f"{place}/devices")
        files.put(f"{place}/available_instances", 0)
        files.put(f"{place}/create", "")
        files.put(
            f"{place}/description",
            f"num_heads=1, frl_config=60, framebuffer={kind['framebuffer']}M, "
            f"max_resolution=4096x2160, max_instance={kind['max']}",
        )
        files.put(f"{place}/device_api", "vfio-pci")
        files.put(f"{place}/name", kind["name"])
    files.link(f"class/mdev_bus/{function.address}", path)


def withdraw(files: Files, function: Function) -> None:
    """The function loses its driver; its directories go with the driver's other files."""
    files.unlink(f"class/mdev_bus/{function.address}")


def refresh(files: Files, pf: Function) -> None:
    """Work out what can still be made on each function of a card."""
    if "mdev" in pf.facts:
        _refresh_mdev(files, pf)
    if "vgpu" in pf.facts:
        _refresh_vgpu(files, pf)


def create(files: Files, type_path: str, text: str) -> str:
    """Make the mediated device of this UUID; the path of its directory."""
    try:
        name = str(uuid.UUID(text))
    except ValueError:
        raise OSError(errno.EINVAL, "no UUID") from None
    if name in files.names("bus/mdev/devices"):
        raise OSError(errno.EEXIST, "the UUID is in use")
    if int(files.read(f"{type_path}/available_instances")) < 1:
        raise OSError(errno.EUSERS, "no instance is available")
    parent = os.path.dirname(os.path.dirname(type_path))
    path = f"{parent}/{name}"
    files.device(path, "mdev", "DRIVER=vfio_mdev", {"remove": ""})
    files.link(f"{path}/mdev_type", type_path)
    files.link(f"{path}/driver", "bus/mdev/drivers/vfio_mdev")
    files.link(f"bus/mdev/drivers/vfio_mdev/{name}", path)
    files.link(f"{type_path}/devices/{name}", path)
    return path


def remove(files: Files, path: str) -> None:
    type_path = files.real(f"{path}/mdev_type")
    files.unlink(f"{type_path}/devices/{os.path.basename(path)}")
    files.drop(path)


def give(files: Files, vf: Function, text: str) -> None:
    """Give a virtual function the vGPU type of this number, or none for 0."""
    if text != "0":
        if text not in vf.facts["vgpu"]["types"]:
            raise OSError(errno.EINVAL, "no vGPU type")
        if files.read(f"{vf.path}/{_CURRENT}") != "0":
            raise OSError(errno.EBUSY, "the virtual function has a vGPU")
        if text not in _listed(files.read(f"{vf.path}/{_CREATABLE}")):
            raise OSError(errno.EINVAL, "the vGPU type cannot be made now")
    files.put(f"{vf.path}/{_CURRENT}", text)


def divide(files: Files, pf: Function, profiles: str) -> None:
    """Give a card in MIG mode these GPU instances, by their profiles with commas, and no others."""
    wanted = profiles.split(",") if profiles else []
    if not pf.facts["vgpu"].get("mig"):
        raise OSError(errno.EINVAL, "the card is not in MIG mode")
    if any(files.read(f"{path}/{_CURRENT}") != "0" for path in _holders(files, pf, each=True)):
        raise OSError(errno.EBUSY, "a virtual function has a vGPU")
    if sum(int(profile.partition("g")[0]) for profile in wanted) > _SLICES:
        raise OSError(errno.ENOSPC, "the card has too few slices")
    files.put(f"{_INSTANCES}/{pf.address}", profiles)
    _refresh_vgpu(files, pf)


def _refresh_mdev(files: Files, pf: Function) -> None:
    types = pf.facts["mdev"]["types"]
    each = pf.facts["mdev"]["holders"] == "vfs"
    holders = [path for path in _holders(files, pf, each=each) if files.names(f"{path}/{_TYPES}")]
    made = {
        path: sum(len(files.names(f"{path}/{_TYPES}/{name}/devices")) for name in types)
        for path in holders
    }
    used: collections.Counter[str] = collections.Counter()
    for path in holders:
        for name in types:
            used[name] += len(files.names(f"{path}/{_TYPES}/{name}/devices"))
    for name in types:
        room = _room(pf.facts["mdev"], name, used)
        for path in holders:
            here = (0 if made[path] else min(1, room)) if each else room
            files.put(f"{path}/{_TYPES}/{name}/available_instances", here)


def _refresh_vgpu(files: Files, pf: Function) -> None:
    facts = pf.facts["vgpu"]
    current = {
        path: files.read(f"{path}/{_CURRENT}")
        for path in _holders(files, pf, each=True)
        if files.path(f"{path}/{_CURRENT}").exists()
    }
    used = collections.Counter(number for number in current.values() if number != "0")
    creatable = [
        f"{number:<5} : {kind['name']}"
        for number, kind in facts["types"].items()
        if (_instances(files, pf, number, used) if facts.get("mig") else _room(facts, number, used))
    ]
    for path, number in current.items():
        listed = ["ID    : vGPU Name", *creatable] if number == "0" and creatable else []
        files.put(f"{path}/{_CREATABLE}", "\n".join(listed))


def _instances(files: Files, pf: Function, number: str, used: Mapping[str, int]) -> int:
    """How much room the GPU instances have left for a type, whose parts may share one in time."""
    place = f"{_INSTANCES}/{pf.address}"
    kind = pf.facts["vgpu"]["types"][number]
    slices = _SLICE.search(kind["name"])
    if ("profile" not in kind and slices is None) or not files.path(place).exists():
        return 0
    units, memory, media = slices.groups() if slices is not None else ("", "", None)
    profile = kind.get("profile", f"{units}g.{memory}gb{'+me' if media else ''}")
    return files.read(place).split(",").count(profile) * kind.get("parts", 1) - used[number]


def _room(facts: Mapping[str, Any], name: str, used: Mapping[str, int]) -> int:
    others = any(count for other, count in used.items() if other != name)
    if others and not facts.get("mixed"):
        return 0
    fraction = sum(count / facts["types"][other]["max"] for other, count in used.items())
    return int((1 - fraction) * facts["types"][name]["max"] + 1e-9)


def _holders(files: Files, pf: Function, *, each: bool) -> list[str]:
    if not each:
        return [pf.path]
    links = [name for name in files.names(pf.path) if name.startswith("virtfn")]
    return [files.real(f"{pf.path}/{name}") for name in links]


def _listed(text: str) -> set[str]:
    return {line.split(":")[0].strip() for line in text.split("\n")[1:]}
