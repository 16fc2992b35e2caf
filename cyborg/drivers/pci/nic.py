# SPDX-License-Identifier: Apache-2.0
"""Network cards of any vendor: virtual functions for ports, as the operator lists them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from oslo_config import cfg

from cyborg.drivers import base, pci
from cyborg.drivers.pci import devices

LOG = logging.getLogger(__name__)

_BOOLEANS = frozenset({"true", "false"})


class NetworkCards(pci.PciDriver):
    """The base of the drivers of network cards: each virtual function, or the port itself.

    A subclass says to which physical network a function leads.
    """

    type = "NIC"
    resource_class = "CUSTOM_NIC"
    expose = "vfs"

    def network(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The physical network of the function's port, or None."""
        raise NotImplementedError

    def extra_info(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
        """Further keys of the attach handle."""
        return {}

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """The physical network that the port is connected to."""
        return {"physical_network": self.network(function, functions)}

    def handle(self, function: pci.Function, functions: pci.Snapshot) -> base.AttachHandle:
        """The function with its physical network, which Nova needs."""
        handle = devices.handle_of(function)
        network = self.network(function, functions)
        named = {} if network is None else {"physical_network": network}
        more = {**named, **self.extra_info(function, functions)}
        return replace(handle, attach_info={**handle.attach_info, **more}) if more else handle

    def role_traits(self, function: pci.Function) -> Iterator[str]:
        """The kind of function."""
        yield "CUSTOM_PF" if function.pf is None else "CUSTOM_VF"
        if function.pf is not None:
            yield "HW_NIC_SRIOV"


class NicDriver(NetworkCards):
    """Reports the ports with SR-IOV that ``[nic_driver] device_spec`` lists.

    The keys ``physical_network``, ``trusted`` and ``remote_managed`` are those of Nova's.
    """

    match = (pci.Match(class_code="02*"),)
    listed = True
    group = "nic_driver"
    unfit = ("it has no SR-IOV", "SR-IOV in the firmware, or [pci] device_spec")
    own_keys = MappingProxyType(
        {"physical_network": None, "trusted": _BOOLEANS, "remote_managed": _BOOLEANS}
    )

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        for number, spec in enumerate(self._specs, 1):
            if not spec.exclude and "physical_network" not in spec.own:
                LOG.warning(
                    "Object %d of %s has no physical_network: Nova fails the guest of a port that "
                    "gets such a function",
                    number,
                    self.option,
                )

    def _fits(self, function: pci.Function, functions: pci.Snapshot) -> bool:
        return function.pf is not None or function.sriov_totalvfs > 0

    def network(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """As the operator's list says of the function."""
        return self.own(function, functions).get("physical_network")

    def extra_info(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
        """The tags under Nova's names, if they are set."""
        own = self.own(function, functions)
        return {key: own[key] for key in ("trusted", "remote_managed") if key in own}

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, the kind of function, its network, and what it may do."""
        yield "OWNER_CYBORG"
        yield from self.role_traits(function)
        own = self.own(function, functions)
        if own.get("trusted") == "true":
            yield "HW_NIC_SRIOV_TRUSTED"
        if own.get("remote_managed") == "true":
            yield "CUSTOM_NIC_REMOTE_MANAGED"
        if "physical_network" in own:
            yield f"CUSTOM_{own['physical_network']}"
