# SPDX-License-Identifier: Apache-2.0
"""Attach handles of mediated devices, for every driver that offers them.

A handle names a type and a number; there is no device for it until an ARQ holds it. Then the step
:meth:`HostSteps.prepare` creates the device with the handle's uuid, by which Nova finds it, and
:meth:`HostSteps.clean` removes it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from cyborg.drivers import base, pci, privileged

#: More devices of a type than any parent can have; a larger count is an error.
_MOST = 10_000

_PARENTS = pathlib.Path("/sys/class/mdev_bus")


class HostSteps:
    """The abilities Preparable and Cleanable, for handles made by :func:`handles`.

    A handle must name the parent: by the parts of its PCI address, or as ``parent`` if it is no PCI
    function. Else the control path of its device must.
    """

    def prepare(self, handle: base.HeldHandle) -> None:
        """Create the handle's mediated device, unless it exists."""
        privileged.create_mdev(
            _parent(handle), handle.attach_info["asked_type"], handle.uuid
        )

    def clean(self, handle: base.HeldHandle) -> None:
        """Remove the handle's mediated device, if it exists."""
        privileged.remove_mdev(handle.uuid)


def handles(
    mdev_type: str, count: int, parent: Mapping[str, str] = MappingProxyType({})
) -> tuple[base.AttachHandle, ...]:
    """Attach handles for ``count`` mediated devices of a type; ``parent`` has keys of their parent.

    :raises ValueError: no parent can have so many
    """
    if count > _MOST:
        raise ValueError(f"There cannot be {count} mediated devices of type {mdev_type}")
    return tuple(
        base.AttachHandle(
            attach_type="MDEV",
            attach_info={
                **parent,
                "asked_type": mdev_type,
                "vgpu_mark": f"{mdev_type}_{number}",
            },
        )
        for number in range(count)
    )


def created(parent: str, mdev_type: str) -> tuple[str, ...]:
    """The uuids of a parent's mediated devices of a type, for ``prepared`` of a deployable."""
    devices = _PARENTS / parent / "mdev_supported_types" / mdev_type / "devices"
    try:
        return tuple(sorted(path.name for path in devices.iterdir()))
    except FileNotFoundError:
        return ()  # the parent has just vanished, or has no such type


def _parent(handle: base.HeldHandle) -> str:
    for info in (handle.attach_info, handle.control_path.cpid_info):
        if "parent" in info:
            return info["parent"]
        if "domain" in info:
            break
    return pci.join(info)
