# SPDX-License-Identifier: Apache-2.0
"""Intel DSA, which copies memory, and IAA, which compresses it: functions of the processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import base, pci

#: Kinds by the ids of their functions, as the kernel's driver idxd knows them.
_KINDS = {
    "0b25": "DSA",
    "0cfe": "IAA",
    "11fb": "DSA",
    "1212": "DSA",
    "1216": "IAA",
}
#: How the host's driver names the devices of the two kinds, below the function.
_NAMES = ("dsa", "iax")
_ENABLED, _HALTED = "enabled", "halted"
_STATES = (_ENABLED, _HALTED, "disabled")


class IntelDsaDriver(pci.PciDriver):
    """Reports each function whole, unless the host has enabled it for itself."""

    match = tuple(pci.Match(vendor="8086", device=device) for device in _KINDS)
    type = "PCI"
    resource_class = "CUSTOM_DSA"
    group = "intel_dsa_driver"

    def resource(self, function: pci.Function) -> str:
        """One class for each of the two kinds."""
        return f"CUSTOM_{_KINDS[function.device]}"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner and the product."""
        del functions
        yield "OWNER_CYBORG"
        yield f"CUSTOM_{_KINDS[function.device]}_PRODUCT_ID_{function.device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """The numbers of its queues and engines, and its version."""
        path = _shown(function, functions)
        if path is None:
            return {}
        return {
            "work_queues": functions.text(function.address, f"{path}/max_work_queues"),
            "engines": functions.text(function.address, f"{path}/max_engines"),
            "firmware": functions.text(function.address, f"{path}/version"),
        }

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """The host uses it itself."""
        path, state = _shown(function, functions), _state(function, functions)
        if state != _ENABLED:
            return None
        remedy = f"accel-config disable-device {path}"
        return base.Refusal(reason=f"the host has enabled {path}", remedy=remedy)

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The device has met an error that it cannot go on after."""
        if _state(function, functions) != _HALTED:
            return None
        return f"{_shown(function, functions)} of PCI function {function.address} has halted"


def _state(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The state of the function's device, or None if the host's driver has not made one.

    :raises OSError, ValueError: it cannot be told
    """
    path = _shown(function, functions)
    if path is None:
        return None
    return functions.required_state(function.address, f"{path}/state", _STATES)


def _shown(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The name of the device that the host's driver has made of the function, or None."""
    names = functions.names(function.address, "")
    return next((name for name in names if name.startswith(_NAMES)), None)
