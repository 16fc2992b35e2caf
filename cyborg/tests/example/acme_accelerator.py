# SPDX-License-Identifier: Apache-2.0
"""A driver for the accelerators of the (invented) vendor Acme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oslo_config import cfg

from cyborg.conf import drivers as options
from cyborg.drivers import pci


class AcmeDriver(pci.PciDriver):
    """Reports the virtual functions of each card, or the card while it has none."""

    match = (pci.Match(vendor="acce", class_code="1200*"),)
    type = "AICHIP"
    resource_class = "CUSTOM_ACME"
    expose = "vfs"
    group = "acme_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        conf.register_opts([options.device_spec("Acme accelerators")], group=self.group)
        super().__init__(conf)

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """What a device profile can ask for."""
        card = functions[function.pf or function.address]
        yield f"CUSTOM_ACME_{card.device}"
        if functions.text(card.address, "acme/crypto") == "on":
            yield "CUSTOM_ACME_CRYPTO"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """Facts that only Acme's kernel driver shows."""
        card = function.pf or function.address
        return {
            "firmware": functions.text(card, "acme/firmware"),
            "memory_mib": functions.number(card, "acme/memory_mib"),
        }

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The card is too hot, which only this driver can check."""
        if functions.text(function.address, "acme/overheated") == "1":
            return f"Acme card {function.address} is too hot"
        return None
