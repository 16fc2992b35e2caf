# SPDX-License-Identifier: Apache-2.0
"""PCI functions as they are reported: devices with control paths and attach handles.

Creating and checking these takes longer than finding a function again, so they are cached.
"""

from __future__ import annotations

import functools
import json

from cyborg.drivers import base
from cyborg.drivers.pci.snapshot import Function, split


def device_of(
    function: Function,
    kind: str,
    deployables: tuple[base.Deployable, ...],
    *,
    place: str | None = None,
    product: str | None = None,
) -> base.Device:
    """A device whose control path is the function, or the address ``place`` if given.

    Its model is the ``product``, or that of its first deployable, as far as that is known.
    """
    if product is None and deployables:
        product = str(deployables[0].attributes.get("product") or "")
    board = {
        "product_id": function.device,
        "class": function.class_code,
        "subsystem_vendor_id": function.subsystem_vendor,
        "subsystem_id": function.subsystem_device,
    }
    return base.Device(
        type=kind,
        vendor=function.vendor,
        model=product or function.device,
        std_board_info=json.dumps(board),
        control_path=_path_to(place or function.address),
        deployables=deployables,
    )


def slice_of(function: Function, **which: str) -> base.AttachHandle:
    """The attach handle of a slice of the function, which a container gets by its device nodes."""
    info = {"pci_address": function.address, **which}
    return base.AttachHandle(attach_type=base.NODES, attach_info=info)


def handle_of(function: Function) -> base.AttachHandle:
    """The attach handle of the function itself."""
    return _handle_at(function.address)


@functools.lru_cache(maxsize=4096)
def _handle_at(address: str) -> base.AttachHandle:
    return base.AttachHandle(attach_type="PCI", attach_info=split(address))


@functools.lru_cache(maxsize=4096)
def _path_to(address: str) -> base.ControlPath:
    return base.ControlPath(cpid_type="PCI", cpid_info=split(address))
