# SPDX-License-Identifier: Apache-2.0
"""The devices among the PCI functions of a node, and their kinds: as Cyborg's drivers say.

A driver of ``[agent] enabled_drivers`` takes all that it would take on a host. Of the others that
are installed only those functions count that are no disks, networks or bridges. What Ironic itself
calls an accelerator is a device, too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from oslo_config import cfg

from cyborg.drivers import base, function_owners, pci, registry
from cyborg.drivers.pci import product_names
from cyborg.ironic.facts import Accelerator, NodeFunctions

LOG = logging.getLogger(__name__)

#: The name in the place of a driver for what Ironic alone knows.
_NO_DRIVER = "ironic"
_UNKNOWN_TYPE = "PCI"


@dataclass(slots=True)
class NodeDevices:
    """The devices of a node, each with its driver, and sentences about what is none."""

    devices: dict[str, tuple[str, base.Device]] = field(default_factory=dict)
    #: How many accelerators no driver knows, by their class.
    unknown: int = 0
    notes: list[str] = field(default_factory=list)


class Finder:
    """Asks the drivers that are installed here."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        enabled = conf.agent.enabled_drivers
        loaded = registry.load(conf) if enabled else registry.Registry(drivers={}, errors={})
        self._enabled = loaded.drivers
        self._others = registry.load_others(conf)

    def find(self, inventory: NodeFunctions, accelerators: Sequence[Accelerator]) -> NodeDevices:
        """The devices of a node."""
        found = NodeDevices(notes=list(inventory.notes))
        # A host's own disks are not those of the node.
        functions = pci.Snapshot(
            inventory.functions.values(), _NoFiles(), used={}, volumes={}
        )
        owners = function_owners.assign(dict(self._exactness(functions, found.notes)))
        of_ironic = {each.address: each for each in accelerators}
        for address, function in sorted(functions.items()):
            driver = owners.of.get(address)
            if driver is not None:
                _add(found, driver, self._described(driver, function, functions, of_ironic))
            elif address not in of_ironic:
                found.unknown += pci.may_be_accelerator(function)
        for each in accelerators:
            if each.address not in owners.of:
                _add(found, _NO_DRIVER, _device_of_ironic(each))
        return found

    def _exactness(
        self, functions: pci.Snapshot, notes: list[str]
    ) -> Iterator[tuple[str, function_owners.Exactness]]:
        for name, driver in {**self._enabled, **self._others}.items():
            if not isinstance(driver, base.Matching):
                continue
            try:
                matched = function_owners.of(driver, functions)
            except Exception as exc:
                LOG.warning("Driver %s does not say what it claims", name, exc_info=True)
                notes.append(f"driver {name} was not asked, {type(exc).__name__}: {exc}")
                continue
            yield name, {
                address: exactness
                for address, exactness in matched.items()
                if address in functions
                and (name in self._enabled or pci.may_be_accelerator(functions[address]))
            }

    def _described(
        self,
        name: str,
        function: pci.Function,
        functions: pci.Snapshot,
        of_ironic: Mapping[str, Accelerator],
    ) -> base.Device:
        driver = self._enabled.get(name) or self._others[name]
        if isinstance(driver, pci.PciDriver):
            device = driver.described(function, functions)
        else:
            device = _device(
                _UNKNOWN_TYPE, function.vendor, function.device, function.address, None
            )
        said = of_ironic.get(function.address)
        if device.model == function.device and said is not None and said.text:
            device = replace(device, model=said.text)
        if function.numa_node is not None:
            info = json.dumps({"numa_node": function.numa_node})
            device = replace(device, vendor_board_info=info)
        return device


class _NoFiles(pci.Details):
    """The sysfs of a machine that is not this one: no file of it can be read."""

    def read(self, address: str, path: str) -> str:
        raise FileNotFoundError(f"{address}/{path}")

    def names(self, address: str, path: str) -> Iterable[str]:
        raise FileNotFoundError(f"{address}/{path}")

    def exists(self, address: str) -> bool:
        return True

    def location(self, address: str) -> str:
        raise FileNotFoundError(address)


def _add(found: NodeDevices, driver: str, device: base.Device) -> None:
    """Add a device; one of several functions is added once."""
    found.devices.setdefault(device.control_path.place, (driver, device))


def _device_of_ironic(each: Accelerator) -> base.Device:
    kind = each.type if each.type in base.DEVICE_TYPES else _UNKNOWN_TYPE
    return _device(kind, each.vendor, each.device, each.address, each.text)


def _device(
    kind: str, vendor: str, device: str, address: str, text: str | None
) -> base.Device:
    return base.Device(
        type=kind,
        vendor=vendor,
        model=text or product_names.find(vendor, device) or device,
        std_board_info=json.dumps({"product_id": device}),
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address)),
        deployables=(),
    )
