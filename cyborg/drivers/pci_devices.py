# SPDX-License-Identifier: Apache-2.0
"""How PCI functions are reported: as devices, with control paths and attach handles.

To make and check the last two takes longer than to find the same function again, so they are kept.
"""

from __future__ import annotations

import functools
import json

from cyborg.drivers import base, pci


def device_of(
    function: pci.Function,
    functions: pci.Snapshot,
    kind: str,
    deployables: tuple[base.Deployable, ...],
    *,
    place: str | None = None,
) -> base.Device:
    """A device whose control path is the function, or another ``place``."""
    board = {
        "product_id": function.device,
        "class": function.class_code,
        "subsystem_vendor_id": function.subsystem_vendor,
        "subsystem_id": function.subsystem_device,
    }
    return base.Device(
        type=kind,
        vendor=function.vendor,
        model=functions.product(function) or function.device,
        std_board_info=json.dumps(board),
        control_path=_path_to(place or function.address),
        deployables=deployables,
    )


def handle_of(function: pci.Function) -> base.AttachHandle:
    """The handle by which the function itself is given to a guest."""
    return _handle_at(function.address)


@functools.lru_cache(maxsize=4096)
def _handle_at(address: str) -> base.AttachHandle:
    return base.AttachHandle(attach_type="PCI", attach_info=pci.split(address))


@functools.lru_cache(maxsize=4096)
def _path_to(address: str) -> base.ControlPath:
    return base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address))
