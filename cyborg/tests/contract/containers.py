# SPDX-License-Identifier: Apache-2.0
"""The rules for what a driver says that a container needs, as faults of what it said."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator

from cyborg.agent import discovery
from cyborg.drivers import base, container_facts, registry
from cyborg.drivers.pci import sysfs
from cyborg.tests.contract import passes

_UUIDS = ("11111111-2222-3333-4444-555555555555", "66666666-2222-3333-4444-555555555555")
_ENDING = "_" + _UUIDS[0].replace("-", "_").upper()
_CDI = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*=[A-Za-z0-9][A-Za-z0-9_.:-]*")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
#: Where the kernel tells of devices that have nodes.
_SHOWN = ("class/*/*", "devices/virtual/*/*", "devices/platform/*/*/*")


def on_this_host(entry_point: str, text: str) -> list[str]:
    """The faults of what a driver says of its devices on the host that this process sees."""
    loaded = registry.load(passes.configured(text, [entry_point], "host-1"))
    found = discovery.Discovery("host-1", loaded.drivers, timeout=60).run()
    return faults(loaded.drivers[entry_point], found.devices[entry_point])


def faults(driver: base.Driver, devices: Iterable[base.Device]) -> list[str]:
    """What is wrong with the needs of containers that use the first handle of each deployable."""
    found: list[str] = []
    for device in devices:
        for part in device.deployables:
            for reported in part.attach_handles[:1]:
                found += _of_handle(driver, device, reported)
    return found


def _of_handle(
    driver: base.Driver, device: base.Device, reported: base.AttachHandle
) -> Iterator[str]:
    known = reported.attach_type in container_facts.TYPES
    if not known and not isinstance(driver, base.Containable):
        return
    try:
        one, again, other = (
            container_facts.of(driver, _held(device, reported, uuid))
            for uuid in (_UUIDS[0], _UUIDS[0], _UUIDS[1])
        )
    except FileNotFoundError:
        return  # It is only there when it is prepared.
    where = f"{reported.attach_type} {base.place(reported.attach_info)}"
    if one != again:
        yield f"{where}: it says something else when it is asked again"
    for name in one.env.keys() & other.env.keys():
        yield f"{where}: two handles have the variable {name}"
    if not any(name.endswith(_ENDING) for name in one.env):
        yield f"{where}: no variable ends in {_ENDING}, so it is unknown which containers have it"
    yield from (f"{where}: {each}" for each in _of_edits(one))


def _held(device: base.Device, reported: base.AttachHandle, uuid: str) -> base.HeldHandle:
    return base.HeldHandle(
        attach_type=reported.attach_type,
        attach_info=reported.attach_info,
        uuid=uuid,
        arq="a",
        control_path=device.control_path,
    )


def _of_edits(edits: base.ContainerEdits) -> Iterator[str]:
    if len(set(edits.device_nodes)) != len(edits.device_nodes):
        yield "a node is named twice"
    for node in edits.device_nodes:
        if not node.startswith("/dev/") or ".." in node:
            yield f"{node} is no device node by its full path"
        elif not (node.startswith("/dev/vfio/") or _is_there(node)):
            yield f"{node} is not there"
    for name, value in edits.env.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
            yield f"{name!r} is no variable with a text"
    for path in (*(each.host_path for each in edits.mounts), *(each.path for each in edits.hooks)):
        if not path.startswith("/"):
            yield f"{path} is no full path"
    yield from (f"{each} is no CDI name" for each in edits.cdi_devices if not _CDI.fullmatch(each))


def _is_there(node: str) -> bool:
    """True if the host has the node, or its kernel tells of it."""
    if pathlib.Path(node).exists():
        return True
    name = node.removeprefix("/dev/")
    uevents = (each / "uevent" for glob in _SHOWN for each in pathlib.Path("/sys").glob(glob))
    return any(f"DEVNAME={name}" in (sysfs.optional(str(each)) or "").split() for each in uevents)
