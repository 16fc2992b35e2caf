# SPDX-License-Identifier: Apache-2.0
"""Accelerators in ``/sys/class/accel`` that are no PCI functions: of a system on chip, or USB.

A container gets the device nodes; a guest cannot have them. The path of such a device below
``/sys/devices`` stays the same over reboots, and the number of its node need not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cyborg.drivers import base, trait_names
from cyborg.drivers.pci import kinds, sysfs

_CLASS = "/sys/class/accel"
_ROOT = "/sys/devices/"
#: Longer ones do not fit where paths are kept.
_PATH_MAX = 200


def devices(host: str) -> Iterator[base.Device]:
    """Each of them, with one handle for all its nodes.

    :raises OSError: they cannot be listed
    """
    found = set()
    for name in sysfs.listing(_CLASS):
        place = os.path.realpath(f"{_CLASS}/{name}")
        parent = place.removesuffix(f"/accel/{name}").removeprefix(_ROOT)
        is_one = place.startswith(_ROOT) and not parent.startswith("virtual/")
        if is_one and kinds.function_of(place) is None and len(parent) <= _PATH_MAX:
            found.add(parent)
    for path in sorted(found):
        yield _device(host, path)


def is_one(device: base.Device) -> bool:
    """True if it is such a device."""
    return device.control_path.cpid_type == base.SYSFS


def _device(host: str, path: str) -> base.Device:
    place = f"{_ROOT}{path}"
    driver = sysfs.link(f"{place}/driver") or "unknown"
    bus = sysfs.link(f"{place}/subsystem") or "unknown"
    # USB describes the device; its interfaces have the drivers.
    usb = os.path.dirname(place) if bus == "usb" else place  # noqa: PTH120 - as sysfs.py
    compatible = (sysfs.optional(f"{place}/of_node/compatible") or "").partition("\0")[0]
    maker, _, part = compatible.partition(",")
    vendor = sysfs.optional(f"{usb}/idVendor") or maker or bus
    product = sysfs.optional(f"{usb}/product") or part or driver
    shown = {"product": product, "serial": sysfs.optional(f"{usb}/serial")}
    numa = sysfs.optional(f"{place}/numa_node") or ""
    attributes = {key: value for key, value in shown.items() if value}
    (kind,) = trait_names.legal_names([f"CUSTOM_ACCEL_{driver}"])
    part_of_host = base.Deployable(
        name=f"{host}_{path.replace('/', ':')}",
        resource_class=kind,
        num_accelerators=1,
        attach_handles=(base.AttachHandle(attach_type=base.NODES, attach_info={"path": path}),),
        traits=trait_names.legal_names(["OWNER_CYBORG", f"CUSTOM_ACCEL_{bus}"]),
        attributes={**attributes, **({"numa_node": int(numa)} if numa.isdecimal() else {})},
    )
    return base.Device(
        type="AICHIP",
        vendor=vendor,
        model=product,
        control_path=base.ControlPath(cpid_type=base.SYSFS, cpid_info={"path": place}),
        deployables=(part_of_host,),
    )
