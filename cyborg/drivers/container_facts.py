# SPDX-License-Identifier: Apache-2.0
"""The needs of a container that uses an attach handle, as the kernel says them.

A function that VFIO has is reached through its IOMMU group or its own node, and so is a mediated
device. Of any other function the device nodes are given that its driver has made for it, and those
that programs need beside them. No node is given that the kernel does not show.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cyborg.drivers import base, pci
from cyborg.drivers.pci import sysfs

_DEVICES = pathlib.Path("/sys/devices")
_FUNCTIONS = pathlib.Path(sysfs.DEVICES)
_MEDIATED = pathlib.Path("/sys/bus/mdev/devices")
#: Devices of the whole host have their folders in one of these.
_OF_HOST = (pathlib.Path("/sys/devices/virtual"), pathlib.Path("/sys/class"))
_KFD_NODES = "/sys/devices/virtual/kfd/kfd/topology/nodes"
#: Nodes that programs need beside those of a function, by its driver, or vendor and class.
_BESIDE = {
    "amdgpu": ("kfd",),
    "0x19e5 0x1200": ("davinci_manager", "devmm_svm", "hisi_hdc"),
}
_HUAWEI, _DAVINCI = "0x19e5", re.compile(r"/dev/davinci[0-9]+")
#: Nodes of these subsystems, and what is below them, reach the board or all of the card, such as
#: its voltages, its firmware or its clock, and not the accelerator alone.
_NEVER = frozenset(
    {
        *("drm_dp_aux_dev", "fwctl", "gpio", "i2c-dev", "infiniband_mad"),
        *("mei", "mtd", "ptp", "spidev", "xrt_mgmt", "xrt_user"),
    }
)
#: Levels below a function at which its driver makes devices; a disk's partition is on the fourth.
_DEPTH = 5

#: The types of handles that the kernel knows.
TYPES = frozenset({"MDEV", "PCI", base.NODES})


def of(driver: base.Driver, handle: base.HeldHandle) -> base.ContainerEdits:
    """The needs of a container, as the driver says them, or else the kernel.

    :raises FileNotFoundError: the handle is not on the host
    """
    if base.SHARE_KEY in handle.attach_info:
        # Its nodes are those of the whole card.
        handle = replace(handle, attach_type="PCI")
    if isinstance(driver, base.Containable):
        return driver.container_edits(handle)
    return of_kernel(handle)


def of_kernel(handle: base.HeldHandle) -> base.ContainerEdits:
    """The needs of a container, as the kernel says them.

    :raises FileNotFoundError: the handle is not on the host
    """
    if handle.attach_type == "MDEV":
        return _of_mediated(handle.uuid)
    if handle.attach_type == base.NODES:
        return _of_path(handle.attach_info.get("path", ""), handle.uuid)
    return _of_function(pci.join(handle.attach_info), handle.uuid)


def _of_path(path: str, uuid: str) -> base.ContainerEdits:
    """The nodes of the accelerators that a device below ``/sys/devices`` has itself."""
    place = os.path.realpath(_DEVICES / path)
    if not path or place != str(_DEVICES / path):
        raise ValueError(f"{path!r} is not a path below {_DEVICES}")
    pathlib.Path(place).stat()
    return of_folder(f"{place}/accel", {"CYBORG_PATH": path}, uuid)


def of_folder(
    place: str, said: dict[str, str], uuid: str, beside: Iterable[str] = ()
) -> base.ContainerEdits:
    """The nodes of the devices in a folder of sysfs, and nodes of the whole host beside them.

    ``said`` is what the container's environment tells of the handle.

    :raises FileNotFoundError: there is no device
    """
    nodes = set(_nodes(place, 1))
    if not nodes:
        raise FileNotFoundError(f"{place} has no device nodes now")
    nodes.update(node for name in beside for node in _of_host(name))
    return base.ContainerEdits(device_nodes=tuple(sorted(nodes)), env=named(said, uuid))


def _of_mediated(uuid: str) -> base.ContainerEdits:
    if not sysfs.UUID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is not a uuid")
    place = _MEDIATED / uuid
    place.stat()
    return _through_vfio(place, uuid, {"CYBORG_MDEV": uuid})


def _of_function(address: str, uuid: str) -> base.ContainerEdits:
    if not sysfs.ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is not the address of a PCI function")
    place = _FUNCTIONS / address
    place.stat()
    said = {"CYBORG_PCI": address}
    driver = sysfs.link(str(place / "driver")) or ""
    if "vfio" in driver or sysfs.names(str(place / "vfio-dev")):
        return _through_vfio(place, uuid, said)
    nodes = {*_nodes(os.path.realpath(place), _DEPTH), *_beside(place, driver)}
    if any(each.startswith("/dev/infiniband/uverbs") for each in nodes):
        nodes.update(_of_host("rdma_cm"))
    if driver == "amdgpu":
        nodes.update(_partitions(address))
    if sysfs.optional(f"{place}/vendor") == _HUAWEI:
        nodes.update(_davinci(driver, nodes))
    return base.ContainerEdits(device_nodes=tuple(sorted(nodes)), env=named(said, uuid))


def _beside(place: pathlib.Path, driver: str) -> Iterator[str]:
    """Nodes of the whole host that programs need for a function."""
    kind = " ".join((sysfs.optional(f"{place}/{name}") or "")[:6] for name in ("vendor", "class"))
    rdma = ("rdma_cm",) if sysfs.names(f"{place}/infiniband") else ()
    for name in (*_BESIDE.get(driver, ()), *_BESIDE.get(kind, ()), *rdma):
        yield from _of_host(name)


def _of_host(name: str) -> Iterator[str]:
    for folder in _OF_HOST:
        for each in folder.glob(f"*/{name}"):
            yield from _node(str(each))


def _partitions(address: str) -> Iterator[str]:
    """Render nodes of a GPU's partitions, which are devices of the platform, not of the function.

    ROCm's driver tells which are the GPU's. Where it tells nothing, they are the only one's.
    """
    minors = [each.get("drm_render_minor", "") for each in partitions(address).values()]
    others = filter(sysfs.ADDRESS.fullmatch, sysfs.names("/sys/bus/pci/drivers/amdgpu"))
    for minor in minors if sysfs.names(_KFD_NODES) or len([*others]) > 1 else ("*",):
        for each in pathlib.Path("/sys/devices").glob(f"platform/amdgpu_xcp*/drm/renderD{minor}"):
            yield from _node(str(each))


def partitions(address: str) -> dict[int, dict[str, str]]:
    """The properties that ROCm's driver shows of a GPU's partitions, by their numbers."""
    domain, bus, rest = address.split(":")
    place = int(domain, 16), int(bus, 16) << 5 | int(rest[:2], 16)
    found = {}
    for name in sysfs.names(_KFD_NODES):
        shown = _properties(f"{_KFD_NODES}/{name}/properties", " ")
        where, of_domain = (shown.get(key, "") for key in ("location_id", "domain"))
        if where.isdecimal() and (int(of_domain or 0), int(where) >> 3 & 0x1FFF) == place:
            # Older kernels have the partition in the place of the function, which is 0.
            found[int(where) >> 28 or int(where) & 7] = shown
    return dict(sorted(found.items()))


def of_partition(address: str, number: int, uuid: str) -> base.ContainerEdits:
    """The nodes of a partition of a GPU, whether its own device has them or the function.

    :raises FileNotFoundError: there is no such partition now
    """
    render = f"renderD{partitions(address).get(number, {}).get('drm_render_minor')}"
    places = [_FUNCTIONS / address / "drm", *_DEVICES.glob("platform/amdgpu_xcp*/drm")]
    place = next((each for each in places if (each / render).exists()), None)
    if place is None:
        raise FileNotFoundError(f"GPU {address} has no partition {number} now")
    said = {"CYBORG_PARTITION": f"{address} {number}"}
    return of_folder(str(place), said, uuid, _BESIDE["amdgpu"])


def _davinci(driver: str, nodes: Iterable[str]) -> Iterator[str]:
    """The node of the host's only Ascend card, where the driver makes it beside the function.

    Of several cards the kernel does not say which has which node, so none gets any.
    """
    if any(_DAVINCI.fullmatch(each) for each in nodes):
        return
    found = [node for name in _OF_HOST for node in name.glob("*/davinci[0-9]*")]
    others = filter(sysfs.ADDRESS.fullmatch, sysfs.names(f"/sys/bus/pci/drivers/{driver}"))
    if len({each.name for each in found}) == 1 and len([*others]) == 1:
        yield from _node(str(found[0]))


def _through_vfio(
    place: pathlib.Path, uuid: str, said: dict[str, str]
) -> base.ContainerEdits:
    group = sysfs.link(str(place / "iommu_group"))
    folder = f"{place}/vfio-dev"
    own = [node for name in sysfs.names(folder) for node in _node(f"{folder}/{name}")]
    if own:
        own = [*dict.fromkeys(_of_host("iommu")), *own]
        # With iommufd the kernel may have no nodes of groups.
        if not any((each / "vfio" / str(group)).exists() for each in _OF_HOST):
            group = None
    if group is not None:
        said = {**said, "CYBORG_VFIO_GROUP": group}
        own = ["/dev/vfio/vfio", f"/dev/vfio/{group}", *own]
    return base.ContainerEdits(device_nodes=tuple(own), env=named(said, uuid))


def named(said: dict[str, str], uuid: str) -> dict[str, str]:
    """Names with the handle's uuid, as a container may have several."""
    ending = uuid.replace("-", "_").upper()
    return {f"{name}_{ending}": value for name, value in said.items()}


def _nodes(place: str, depth: int) -> Iterator[str]:
    """The device nodes of what is below a folder of sysfs, but for other PCI functions."""
    for name in sysfs.names(place):
        below = f"{place}/{name}"
        if sysfs.ADDRESS.fullmatch(name) or pathlib.Path(below).is_symlink():
            continue
        if not pathlib.Path(below).is_dir():
            continue
        if sysfs.link(f"{below}/subsystem") in _NEVER:
            continue
        yield from _node(below)
        if depth > 1:
            yield from _nodes(below, depth - 1)


def _node(place: str) -> Iterator[str]:
    """The node of a device, if it has one."""
    name = _properties(f"{place}/uevent", "=").get("DEVNAME")
    if name is not None:
        # Some of the kernel's names have the folder before them.
        yield f"/dev/{name.removeprefix('/dev/')}"


def _properties(path: str, between: str) -> dict[str, str]:
    lines = (sysfs.optional(path) or "").splitlines()
    return dict(line.partition(between)[::2] for line in lines)
