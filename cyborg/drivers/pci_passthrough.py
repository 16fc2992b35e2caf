# SPDX-License-Identifier: Apache-2.0
"""Any PCI device that the operator lists, given to guests as it is."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

from oslo_config import cfg

from cyborg.drivers import base, device_spec, pci

LOG = logging.getLogger(__name__)

_RESOURCE_CLASS = "CUSTOM_PCI"
#: Names of vendors in traits; any other vendor's trait has its id.
_VENDORS = {
    "1002": "AMD",
    "10de": "NVIDIA",
    "10ee": "XILINX",
    "144d": "SAMSUNG",
    "15b3": "MELLANOX",
    "19e5": "HUAWEI",
    "1bd4": "INSPUR",
    "8086": "INTEL",
}


class PciPassthroughDriver:
    """Reports the functions that ``[pci] device_spec`` matches, one device each."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._specs = device_spec.parse(conf.pci.device_spec)
        self._said: set[tuple[str, str]] = set()

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every matching function that can be given to a guest."""
        if not self._specs:
            return
        functions = host.pci
        offered = {}
        for function in functions.values():
            spec = device_spec.first_match(self._specs, function, functions)
            if spec is None:
                continue
            reason = pci.reason_to_keep(function)
            if reason is None:
                offered[function.address] = spec
            else:
                self._say(function, reason)
        for address, spec in offered.items():
            function = functions[address]
            if offered.keys() & set(function.vfs):
                # A guest that gets the PF takes the VFs from the others.
                self._say(function, "its virtual functions are offered instead")
            else:
                yield _device(host.name, function, spec)

    def _say(self, function: pci.Function, reason: str) -> None:
        """Log once what will be so at every pass."""
        if (function.address, reason) not in self._said:
            self._said.add((function.address, reason))
            LOG.info("PCI device %s is not offered: %s", function.address, reason)


def _device(host: str, function: pci.Function, spec: device_spec.Spec) -> base.Device:
    place = pci.split(function.address)
    vendor = _VENDORS.get(function.vendor, function.vendor.upper())
    traits = (
        "OWNER_CYBORG",
        f"CUSTOM_PCI_{vendor}",
        f"CUSTOM_PCI_PRODUCT_ID_{function.device.upper()}",
        *spec.traits,
    )
    deployable = base.Deployable(
        name=f"{host}_{function.address}",
        resource_class=spec.resource_class or _RESOURCE_CLASS,
        num_accelerators=1,
        attach_handles=(base.AttachHandle(attach_type="PCI", attach_info=place),),
        traits=tuple(dict.fromkeys(traits)),
        attributes=_attributes(function),
    )
    board = {
        "product_id": function.device,
        "class": function.class_code,
        "subsystem_vendor_id": function.subsystem_vendor,
        "subsystem_id": function.subsystem_device,
    }
    return base.Device(
        type="PCI",
        vendor=function.vendor,
        model=function.device,
        std_board_info=json.dumps(board),
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=place),
        deployables=(deployable,),
    )


def _attributes(function: pci.Function) -> dict[str, str | int]:
    """Facts beside the traits, under Nova's names where Nova has one."""
    attributes: dict[str, str | int] = {"dev_type": "type-PCI"}
    if function.pf is not None:
        attributes = {"dev_type": "type-VF", "parent_addr": function.pf}
    elif function.sriov_totalvfs:
        attributes = {"dev_type": "type-PF"}
    if function.numa_node is not None:
        attributes["numa_node"] = function.numa_node
    if function.driver is not None:
        attributes["driver"] = function.driver
    return attributes
