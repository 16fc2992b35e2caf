# SPDX-License-Identifier: Apache-2.0
"""The few files below ``/proc`` that tell what a host needs for itself, or what a card is."""

from __future__ import annotations

import pathlib

from cyborg.tests.simulated.files import Files
from cyborg.tests.simulated.layout import Layout

_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"

_PROC = "22 1 0:21 / /proc rw,relatime shared:13 - proc proc rw"
#: The address of the loopback interface, and the beginning of one that others can reach.
_LOOPBACK = "00000000000000000000000000000001 01 80 10 80       lo"
_GLOBAL = "fd000000000000000000000000000001 02 40 00 80"


def write(root: pathlib.Path, layout: Layout, sys: Files) -> None:
    """Write ``root/proc`` for a host whose ``sys`` is complete."""
    files = Files(root / "proc")
    files.directory("")
    for function in layout.functions.values():
        for name, text in function.fill(function.facts.get("proc", {})).items():
            files.put(name, text.rstrip("\n"))
    mounts = [
        (_number(sys, partition), path, partition)
        for path, partition in layout.host.get("mounts", {}).items()
    ]
    table = [f"/dev/{partition} {path} ext4 rw,relatime 0 0" for _, path, partition in mounts]
    info = [
        f"{30 + line} 1 {number} / {path} rw,relatime shared:1 - ext4 /dev/{partition} rw"
        for line, (number, path, partition) in enumerate(mounts)
    ]
    for owner in ("self", "1"):
        files.put(f"{owner}/mounts", "\n".join([*table, "proc /proc proc rw,relatime 0 0"]))
        files.put(f"{owner}/mountinfo", "\n".join([*info, _PROC]))
    files.put("mounts", "\n".join(table))
    swaps = ["Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"]
    swaps += [
        f"/dev/{name}   partition\t8388604\t\t0\t\t-2" for name in layout.host.get("swaps", ())
    ]
    files.put("swaps", "\n".join(swaps))
    device = layout.host.get("default_route")
    row = f"{device}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0"
    files.put("net/route", f"{_ROUTES}\n{row}" if device else _ROUTES)
    files.put("net/ipv6_route", "")
    addresses = [f"{_GLOBAL} {name}" for name in layout.host.get("ipv6", ())]
    files.put("net/if_inet6", "\n".join([_LOOPBACK, *addresses]))


def _number(sys: Files, partition: str) -> str:
    return sys.read(f"class/block/{partition}/dev")
