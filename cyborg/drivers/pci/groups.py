# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups: the kernel gives the functions of a group to one guest, or to none."""

from __future__ import annotations

from collections.abc import Set

from cyborg.drivers import base
from cyborg.drivers.pci.snapshot import Function, Snapshot, is_bridge


class Groups:
    """Of which IOMMU groups a driver has offered a function in a pass, and which."""

    def __init__(self) -> None:
        self._offered: dict[str, str] = {}

    def why_not(
        self, function: Function, together: Set[str], functions: Snapshot, foreign: Set[str]
    ) -> base.Refusal | None:
        """Why a function cannot be offered because of others in its group, or None.

        ``together`` are the functions that a guest gets with it.

        :raises OSError: not all functions of the group are known
        """
        functions.check_group(function)
        group = function.iommu_group
        others = functions.of_group(group or "")
        for other in others:
            if other.address not in together and _is_in_the_way(other):
                return _refusal(
                    f"the host's driver {other.driver} has {other.address} of its IOMMU group "
                    f"{group}, which a guest can only have as a whole"
                )
        taken = self._offered.get(group or "")
        # Of two drivers, the one with the first function of the group offers it.
        before = (
            each.address
            for each in others
            if each.address in foreign and each.address < function.address
        )
        other_address = next(before, None) if taken in {None, *together} else taken
        if other_address is None:
            return None
        return _refusal(
            f"it is in IOMMU group {group} with {other_address}, which is offered, and a guest can "
            "only have the group as a whole"
        )

    def take(self, function: Function) -> None:
        """Say that the function is offered."""
        if function.iommu_group is not None:
            self._offered.setdefault(function.iommu_group, function.address)


def _refusal(reason: str) -> base.Refusal:
    remedy = "bind the other function to vfio-pci, or list both with one board in [pci] device_spec"
    return base.Refusal(reason=reason, remedy=remedy)


def _is_in_the_way(function: Function) -> bool:
    """True if a function keeps the others of its IOMMU group from a guest."""
    # The kernel lets drivers share a group with a guest that do no DMA of the host's: these and
    # those of bridges. Other helpers, such as pci-pf-stub, igb_uio and xen-pciback, own the group.
    if function.driver in {None, "pci-stub"} or function.has_guest_driver:
        return False
    return not is_bridge(function)
