# SPDX-License-Identifier: Apache-2.0
"""What a host has built from its devices for itself: bridges and bonds, volumes and RAID."""

from __future__ import annotations

from cyborg.tests.simulated.files import Files
from cyborg.tests.simulated.layout import Layout

_DEVICE_MAPPER = 253


def write(files: Files, layout: Layout) -> None:
    """Write them all, over the cards' devices, which are there already."""
    for number, (name, ports) in enumerate(layout.host.get("bridges", {}).items(), 1):
        path = f"devices/virtual/net/{name}"
        attributes = {"address": f"02:00:00:00:00:{number:02x}", "operstate": "up", "type": 1}
        uevent = f"DEVTYPE=bridge\nINTERFACE={name}\nIFINDEX={90 + number}"
        files.device(path, "net", uevent, attributes)
        for port in ports:
            below = files.real(f"class/net/{port}")
            files.link(f"{path}/lower_{port}", below)
            files.link(f"{below}/upper_{name}", path)
            files.link(f"{below}/master", path)
    for number, (name, parts) in enumerate(layout.host.get("volumes", {}).items()):
        path = f"devices/virtual/block/{name}"
        dev = f"{_DEVICE_MAPPER}:{number}"
        uevent = f"MAJOR={_DEVICE_MAPPER}\nMINOR={number}\nDEVNAME={name}\nDEVTYPE=disk"
        attributes = {"dev": dev, "size": 2048, "dm/name": name}
        files.device(path, "block", uevent, attributes, ["holders", "slaves"])
        for part in parts:
            below = files.real(f"class/block/{part}")
            files.link(f"{path}/slaves/{part}", below)
            files.link(f"{below}/holders/{name}", path)
