# SPDX-License-Identifier: Apache-2.0
"""How many of a parent's mediated devices are ours to give."""

from __future__ import annotations

from collections.abc import Iterable

from cyborg.db import models
from cyborg.drivers import base

_MDEV = "MDEV"


def accelerators(
    deployable: base.Deployable, handles: Iterable[models.AttachHandle] = ()
) -> int:
    """How many accelerators a reported deployable has, less the devices that others made of it.

    A device of ours has the uuid of one of its ``handles``; libvirt and operators take others.
    """
    prepared = deployable.prepared or ()
    if all(handle.attach_type != _MDEV for handle in deployable.attach_handles):
        return deployable.num_accelerators
    others = set(prepared) - {handle.uuid for handle in handles}
    return max(0, deployable.num_accelerators - len(others))
