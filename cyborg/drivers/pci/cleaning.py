# SPDX-License-Identifier: Apache-2.0
"""Reset a PCI function after use, so that its next guest finds nothing of the last one.

``[cleaning]`` says for which resource classes. The kernel resets a single function by what
``reset_method`` names (Documentation/ABI/testing/sysfs-bus-pci). A reset of the whole bus is only
used for a function that is alone on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from cyborg.conf import cleaning
from cyborg.drivers import base, privileged
from cyborg.drivers.pci import facts
from cyborg.drivers.pci.snapshot import Function, Snapshot, join
from cyborg.drivers.pci.walk import scan

LOG = logging.getLogger(__name__)

#: What ``[cleaning]`` says of a resource class of the driver.
Policy = Callable[[str], str]

#: Methods that reset one function and leave its neighbours alone.
_OF_ONE_FUNCTION = frozenset({"device_specific", "acpi", "flr", "af_flr", "pm"})

#: What the codes of all classes of mass storage begin with: what is on a disk survives a reset.
_STORAGE = "01"


def why_not_resettable(function: Function, functions: Snapshot) -> str | None:
    """Why the kernel cannot reset this function alone, or None if it can."""
    methods = facts.reset_methods(function, functions)
    if _OF_ONE_FUNCTION.intersection(methods):
        return None
    if not methods:
        return f"the kernel has no way to reset PCI function {function.address}"
    bus = function.address.rpartition(":")[0]
    others = [each for each in functions if each.rpartition(":")[0] == bus]
    if len(others) > 1:
        return f"a reset of PCI function {function.address} would reset its neighbours too"
    return None


def arranged(
    policy: Policy,
    deployable: base.Deployable,
    members: Sequence[Function],
    functions: Snapshot,
) -> base.Deployable:
    """The deployable, which is cleaned by a reset if that is wanted and possible.

    If it is required, and not possible any more, what a guest has of it must not be free unclean.
    """
    wanted = policy(deployable.resource_class)
    if deployable.cleans or wanted == cleaning.OFF:
        return deployable
    if wanted != cleaning.REQUIRED and any(why_not_resettable(each, functions) for each in members):
        return deployable
    return replace(deployable, cleans=True)


def is_function(handle: base.AttachHandle) -> bool:
    """True if a reset of a PCI function cleans the handle: of a share, that of its card does."""
    return handle.attach_type != base.NODES or base.SHARE_KEY in handle.attach_info


def why_unclean(policy: Policy, device: base.Device, functions: Snapshot) -> str | None:
    """Why a device must not be given out since it could not be cleaned, or None."""
    for deployable in device.deployables:
        has_own_way = deployable.clean_erases or deployable.prepares
        if policy(deployable.resource_class) != cleaning.REQUIRED or has_own_way:
            continue
        for handle in deployable.attach_handles:
            if not is_function(handle):
                return "[cleaning] requires that it is cleaned after use, and nothing does that"
            function = functions.get(join(handle.attach_info))
            if function is None:
                continue
            if function.class_code.startswith(_STORAGE):
                return (
                    "[cleaning] requires that it is erased after use, and a reset does not erase "
                    f"the disks of PCI function {function.address}"
                )
            reason = why_not_resettable(function, functions)
            if reason is not None:
                return f"[cleaning] requires that it is reset after use, and {reason}"
    return None


def reset(handle: base.HeldHandle) -> None:
    """Reset the function of a handle. The caller sees to it that no other of its card is cleaned.

    :raises RuntimeError: it is not on the bus, in use, or cannot be reset alone
    :raises OSError: the kernel's error
    """
    address = join(handle.attach_info)
    functions = scan()
    function = functions.get(address)
    if function is None:
        raise RuntimeError(f"PCI function {address} is not on the bus")
    reason = functions.use(function) or _used_part(function, functions)
    reason = reason or why_not_resettable(function, functions)
    if reason is not None:
        raise RuntimeError(f"PCI function {address} is not reset: {reason}")
    LOG.info("Resetting PCI function %s", address)
    privileged.reset_function(address)


def _used_part(function: Function, functions: Snapshot) -> str | None:
    """The guest that would lose a virtual function by the reset of its card, or None."""
    for vf in function.vfs:
        if vf in functions and functions[vf].has_guest_driver:
            return f"its virtual function {vf} is kept for a guest"
    return None
