# SPDX-License-Identifier: Apache-2.0
"""What a container needs to use an attach handle, as the kernel says it.

A function that VFIO has is reached through its IOMMU group, and so is a mediated device. Of any
other function the device nodes are given that its driver has made for it.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator

from cyborg.drivers import base, pci
from cyborg.drivers.pci import sysfs

_FUNCTIONS = pathlib.Path("/sys/bus/pci/devices")
_MEDIATED = pathlib.Path("/sys/bus/mdev/devices")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MDEV = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Nodes of these subsystems reach the board, such as its voltages, and not the accelerator.
_NEVER = frozenset({"i2c-dev", "drm_dp_aux_dev"})
#: Levels below a function at which its driver makes devices; a disk's partition is on the fourth.
_DEPTH = 5

#: The types of handles that the kernel knows.
TYPES = frozenset({"MDEV", "PCI"})


def of(driver: base.Driver, handle: base.HeldHandle) -> base.ContainerEdits:
    """What a container needs: what the driver says, or else the kernel.

    :raises FileNotFoundError: the handle is not on the host
    """
    if isinstance(driver, base.Containable):
        return driver.container_edits(handle)
    if handle.attach_type == "MDEV":
        return _of_mediated(handle.uuid)
    return _of_function(pci.join(handle.attach_info), handle.uuid)


def _of_mediated(uuid: str) -> base.ContainerEdits:
    if not _MDEV.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is no uuid")
    place = _MEDIATED / uuid
    place.stat()
    return _through_vfio(place, uuid, {"CYBORG_MDEV": uuid})


def _of_function(address: str, uuid: str) -> base.ContainerEdits:
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is no address of a PCI function")
    place = _FUNCTIONS / address
    place.stat()
    said = {"CYBORG_PCI": address}
    driver = sysfs.link(str(place / "driver")) or ""
    if "vfio" in driver or sysfs.names(str(place / "vfio-dev")):
        return _through_vfio(place, uuid, said)
    nodes = sorted({*_nodes(os.path.realpath(place), _DEPTH)})
    return base.ContainerEdits(device_nodes=tuple(nodes), env=_named(said, uuid))


def _through_vfio(
    place: pathlib.Path, uuid: str, said: dict[str, str]
) -> base.ContainerEdits:
    group = sysfs.link(str(place / "iommu_group"))
    if group is None:
        return base.ContainerEdits(env=_named(said, uuid))
    return base.ContainerEdits(
        device_nodes=("/dev/vfio/vfio", f"/dev/vfio/{group}"),
        env=_named({**said, "CYBORG_VFIO_GROUP": group}, uuid),
    )


def _named(said: dict[str, str], uuid: str) -> dict[str, str]:
    """Names with the handle's uuid, as a container may have several."""
    ending = uuid.replace("-", "_").upper()
    return {f"{name}_{ending}": value for name, value in said.items()}


def _nodes(place: str, depth: int) -> Iterator[str]:
    """The device nodes of what is below a folder of sysfs, but for other PCI functions."""
    for name in sysfs.names(place):
        below = f"{place}/{name}"
        if _ADDRESS.fullmatch(name) or pathlib.Path(below).is_symlink():
            continue
        if not pathlib.Path(below).is_dir():
            continue
        properties = dict(
            line.partition("=")[::2] for line in (sysfs.optional(f"{below}/uevent") or "").split()
        )
        if "DEVNAME" in properties and sysfs.link(f"{below}/subsystem") not in _NEVER:
            # Some of the kernel's names have the folder before them.
            yield f"/dev/{properties['DEVNAME'].removeprefix('/dev/')}"
        if depth > 1:
            yield from _nodes(below, depth - 1)
