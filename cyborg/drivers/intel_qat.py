# SPDX-License-Identifier: Apache-2.0
"""Intel QuickAssist (QAT): compression and cryptography, mostly given out as virtual functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import pci

#: Generations by the ids of their physical functions.
_GENERATIONS = {
    "0435": 2,  # DH895xCC
    "18a0": 3,  # C4xxx
    "18ee": 2,  # 200xx
    "19e2": 2,  # C3xxx
    "37c8": 2,  # C62x
    "4940": 4,  # 4xxx
    "4942": 4,  # 401xx
    "4944": 4,  # 402xx
    "4946": 4,  # 420xx
    "4948": 6,  # 6xxx
    "6f54": 2,  # D15xx
}
_SERVICES = {"sym", "asym", "dc", "dcc"}


class IntelQatDriver(pci.PciDriver):
    """Reports QAT endpoints: each virtual function, or the endpoint if it has none."""

    match = tuple(pci.Match(vendor="8086", device=device) for device in _GENERATIONS)
    type = "QAT"
    resource_class = "CUSTOM_QAT"
    expose = "vfs"
    group = "intel_qat_driver"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The generation, and the services that the endpoint is configured for."""
        physical = functions[function.pf or function.address]
        yield f"CUSTOM_QAT_GEN{_GENERATIONS[physical.device]}"
        services = functions.text(physical.address, "qat/cfg_services") or ""
        for service in sorted(_SERVICES & set(services.split(";"))):
            yield f"CUSTOM_QAT_{service}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """The services in the kernel's words."""
        return {"qat_services": functions.text(function.pf or function.address, "qat/cfg_services")}

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The endpoint is down, or its firmware does not answer."""
        if functions.text(function.address, "qat/state") == "down":
            return f"QAT endpoint {function.address} is down"
        heartbeat = f"/sys/kernel/debug/qat_{function.driver}_{function.address}/heartbeat/status"
        if functions.text(function.address, heartbeat) == "-1":
            return f"The firmware of QAT endpoint {function.address} does not answer"
        return None
