# SPDX-License-Identifier: Apache-2.0
"""Partitions of AMD GPUs in sysfs: ROCm's nodes, and the devices of all but the first of each.

As in ``amdgpu_gfx.c``, ``amdgpu_xcp.c`` and ``kfd_topology.c``. How the memory is divided changes
when the driver is loaded again.
"""

from __future__ import annotations

import errno

from cyborg.tests.simulated.files import Files
from cyborg.tests.simulated.layout import Function

_NODES = "devices/virtual/kfd/kfd/topology/nodes"
#: How many dies the GPU has, and how many partitions are made of them.
_DIES = 8
_PARTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": _DIES}
_ASKED = ".asked_memory_partitions"


def offer(files: Files, function: Function) -> None:
    """Show the partitions of a GPU that has just been bound to its driver."""
    if "available_compute_partition" not in function.facts.get("attributes", {}):
        return
    files.put("devices/virtual/kfd/kfd/uevent", "MAJOR=236\nMINOR=0\nDEVNAME=kfd")
    asked = f"{_ASKED}/{function.address}"
    if files.path(asked).exists():
        files.put(f"{function.path}/current_memory_partition", files.read(asked))
    _show(files, function)


def divide(files: Files, function: Function, kind: str, mode: str) -> None:
    """Write how a GPU computes, or how its memory is divided from the next start of the driver."""
    known = files.read(f"{function.path}/available_{kind}_partition").split(", ")
    if mode not in known:
        raise OSError(errno.EINVAL, "no such partition")
    if function.facts.get("busy"):
        raise OSError(errno.EBUSY, "a process has the GPU open")
    if kind == "memory":
        files.put(f"{_ASKED}/{function.address}", mode)
        return
    files.put(f"{function.path}/current_compute_partition", mode)
    _show(files, function)


def _show(files: Files, function: Function) -> None:
    card = function.names["n"]
    for number in range(_DIES):
        node, own = f"{_NODES}/{card * _DIES + number + 1}", _device(card, number)
        for place in (node, own, f"{function.path}/drm/renderD{128 + card * _DIES + number}"):
            if files.path(place).exists():
                files.drop(place)
    parts = _PARTS[files.read(f"{function.path}/current_compute_partition")]
    domain, bus, _rest = function.address.split(":")
    for number in range(parts):
        minor = 128 + card * _DIES + number
        location = number << 28 | int(bus, 16) << 8
        files.put(
            f"{_NODES}/{card * _DIES + number + 1}/properties",
            f"simd_count 304\nnum_xcc {_DIES // parts}\nlocation_id {location}\n"
            f"domain {int(domain, 16)}\ndrm_render_minor {minor}",
        )
        place = _device(card, number) if number else function.path
        for name in ([f"card{minor - 128}"] if number else []) + [f"renderD{minor}"]:
            uevent = f"MAJOR=226\nMINOR=0\nDEVNAME=dri/{name}"
            files.device(f"{place}/drm/{name}", "drm", uevent, {})


def _device(card: int, number: int) -> str:
    return f"devices/platform/amdgpu_xcp_{card * _DIES + number}"
