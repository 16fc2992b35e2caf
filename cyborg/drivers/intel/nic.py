# SPDX-License-Identifier: Apache-2.0
"""Intel network cards. Their virtual functions are given out with a physical network."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from oslo_config import cfg

from cyborg.conf import drivers as options
from cyborg.drivers import pci
from cyborg.drivers.pci import device_spec, nic

LOG = logging.getLogger(__name__)

_DEVICES = (
    "1572",  # X710 SFP+
    "1574",
    "158[0-9ab]",  # XL710, XXV710, X710
    "15ff",  # X710-T
    "0cf8",  # X710-N3000
    "0d58",  # XXV710-N3000
    "37c[ef]",  # X722
    "37d[0-3]",
    "159[123ab]",  # E810
    "188[a-f]",  # E823
    "189[0-9a]",  # E822
)


class IntelNicDriver(nic.NetworkCards):
    """Reports Intel's network cards, with networks from sections of the configuration."""

    match = tuple(
        pci.Match(vendor="8086", device=device, class_code="02*") for device in _DEVICES
    )
    group = "nic_devices"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        #: The physical network and the functions of each interface that the operator maps.
        self._networks: dict[str, str] = {}
        self._functions: dict[str, tuple[str, ...]] = {}
        self._addresses: set[str] = set()
        for name in conf.nic_devices.enabled_nic_types:
            section = options.register_nic_type(conf, name)
            for network, port in _pairs(name, section.physical_device_mappings):
                self._networks.setdefault(port, network)
            for function, port in _pairs(name, section.function_device_mappings):
                self._functions[port] = (*self._functions.get(port, ()), function)
            self._addresses.update(each.strip().lower() for each in section.device_addresses)

    def _fits(self, function: pci.Function, functions: pci.Snapshot) -> bool:
        """All cards, or only those that the operator names."""
        return not self._addresses or not self._addresses.isdisjoint(
            {function.address, function.pf or function.address}
        )

    def unmatched(self, functions: pci.Snapshot) -> Sequence[str]:
        """As any driver's, and of the sections' lists."""
        known = {name for each in functions.values() for name in each.netdevs}
        ports = self._networks.keys() | self._functions.keys()
        option = "a section of [nic_devices] enabled_nic_types"
        return [
            *super().unmatched(functions),
            *device_spec.absent(self._addresses, functions, option),
            *(f"{each} of {option} is no interface here" for each in sorted(ports - known)),
        ]

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The kind of function, and what the operator maps to the port."""
        yield from self.role_traits(function)
        ports = _ports(function, functions)
        for port in ports:
            yield from (f"CUSTOM_{name}" for name in self._functions.get(port, ()))
        network = self.network(function, functions)
        if network is not None:
            yield f"CUSTOM_{network}"

    def network(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """As the sections map the interfaces of the port."""
        known = self._networks
        ports = _ports(function, functions)
        return next((known[port] for port in ports if port in known), None)


def _ports(function: pci.Function, functions: pci.Snapshot) -> tuple[str, ...]:
    """The network interfaces of a function's port."""
    return functions.get(function.pf or function.address, function).netdevs


def _pairs(section: str, mappings: Iterable[str]) -> Iterator[tuple[str, str]]:
    """``name:port|port`` as pairs. A malformed mapping is logged and left out."""
    for mapping in mappings:
        name, colon, ports = mapping.partition(":")
        if not (name.strip() and colon and ports.strip()):
            LOG.error("[%s] %r is no mapping such as physnet1:ens1f0|ens2f0", section, mapping)
            continue
        for port in ports.split("|"):
            yield name.strip(), port.strip()
