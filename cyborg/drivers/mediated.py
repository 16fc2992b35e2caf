# SPDX-License-Identifier: Apache-2.0
"""Mediated devices as attach handles: what every driver that offers them has in common.

A handle names a type and a number, and stands for no device before it is held. Then the step
:meth:`HostSteps.prepare` creates the device under the handle's own uuid, so that whoever knows the
handle finds the device, and :meth:`HostSteps.clean` removes it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from cyborg.drivers import base, privileged

#: More of a type than any parent can have: a driver that says so counts nothing.
_MOST = 10_000

_PARENTS = pathlib.Path("/sys/class/mdev_bus")


class HostSteps:
    """The abilities Preparable and Cleanable, for handles made by :func:`handles`.

    The control path of their device must name the parent, by its PCI address in parts or, where it
    is no PCI function, as ``parent``.
    """

    def prepare(self, handle: base.HeldHandle) -> None:
        """Create the handle's mediated device, unless it is there."""
        privileged.create_mdev(
            _parent(handle.control_path), handle.attach_info["asked_type"], handle.uuid
        )

    def clean(self, handle: base.HeldHandle) -> None:
        """Remove the handle's mediated device, unless it is gone."""
        privileged.remove_mdev(handle.uuid)


def handles(
    mdev_type: str, count: int, place: Mapping[str, str] = MappingProxyType({})
) -> tuple[base.AttachHandle, ...]:
    """Attach handles for as many mediated devices of a type; ``place`` tells their parent.

    :raises ValueError: they are too many to be true
    """
    if count > _MOST:
        raise ValueError(f"There cannot be {count} mediated devices of type {mdev_type}")
    return tuple(
        base.AttachHandle(
            attach_type="MDEV",
            attach_info={
                **place,
                "asked_type": mdev_type,
                "vgpu_mark": f"{mdev_type}_{number}",
            },
        )
        for number in range(count)
    )


def created(parent: str, mdev_type: str) -> tuple[str, ...]:
    """The uuids of a parent's mediated devices of a type: what a deployable has ``prepared``."""
    devices = _PARENTS / parent / "mdev_supported_types" / mdev_type / "devices"
    try:
        return tuple(sorted(path.name for path in devices.iterdir()))
    except FileNotFoundError:
        return ()  # the parent has just vanished, or never had such a type


def _parent(path: base.ControlPath) -> str:
    place = path.cpid_info
    if "parent" in place:
        return place["parent"]
    return "{domain}:{bus}:{device}.{function}".format_map(place)
