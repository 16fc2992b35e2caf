# SPDX-License-Identifier: Apache-2.0
"""Where the cards of a simulated host sit, and what each of their functions is."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from cyborg.tests.simulated import cards, kernel_text

_PORT = {
    "id": "8086:2030",
    "subsystem": "8086:0000",
    "class": "060400",
    "driver": "pcieport",
    "bound": "pcieport",
    "attributes": {},
}
#: What a virtual function has in common with its physical one.
_SHARED = ("subsystem", "class", "numa", "mdev", "vgpu", "link")


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One PCI function: its place and the keys of its card. ``pf`` is set for a virtual one."""

    address: str
    path: str
    facts: Mapping[str, Any]
    pf: str | None = None
    names: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def fill(self, value: Any) -> Any:
        """A text of the card with its placeholders filled, in a mapping too."""
        if isinstance(value, str):
            return value.format_map(self.names) if "{" in value else value
        if isinstance(value, Mapping):
            return {self.fill(key): self.fill(each) for key, each in value.items()}
        return value


class Layout:
    """The functions of a host by address, in the order in which the kernel would find them.

    ``cards`` has the address of each card's first function. In ``named`` they are by the name in
    the host's file, or by the name of the card where it has none.
    """

    def __init__(self, host: Mapping[str, Any]) -> None:
        self.host = host
        self.functions: dict[str, Function] = {}
        self.cards: list[str] = []
        self.named: dict[str, list[str]] = {}
        self._of_driver: dict[str | None, int] = {}
        entries = host["cards"]
        for index, facts in enumerate(entries):
            self.add(facts, numa=index * host["numa_nodes"] // len(entries))

    def add(self, facts: Mapping[str, Any], numa: int = 0) -> list[Function]:
        """Put one more card into the host: a root port of its own, and its functions."""
        index = len(self.cards)
        domain, first = self._place(index, facts.get("address"))
        port_bus = (first >> 8) - 1
        numa = facts.get("numa", numa)
        added = self._ports({**facts, "numa": numa}, domain, port_bus)
        port = added[-1].path
        number = self._of_driver[facts["driver"]] = self._of_driver.get(facts["driver"], -1) + 1
        own = {key: value for key, value in facts.items() if key != "functions"}
        own["others"] = bool(facts.get("functions"))
        for position, more in enumerate([own, *facts.get("functions", ())]):
            address = kernel_text.address(domain, first + position)
            whole = {"vfs": 0, **more, "numa": numa}
            whole.setdefault("bound", whole.get("driver"))
            names = self._names(address, number, index, f"f{position}", whole)
            added.append(Function(address, f"{port}/{address}", whole, names=names))
        self.functions |= {function.address: function for function in added}
        card = kernel_text.address(domain, first)
        self.cards.append(card)
        self.named.setdefault(facts.get("name", facts["card"]), []).append(card)
        return added

    def virtual(self, pf: Function, number: int) -> Function:
        """The virtual function of this number that a physical one can have."""
        sriov = pf.facts["sriov"]
        domain, bus, rest = pf.address.split(":")
        device, function = rest.split(".")
        own = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        routing = own + sriov.get("offset", 1) + number * sriov.get("stride", 1)
        address = kernel_text.address(int(domain, 16), routing)
        facts = {key: pf.facts[key] for key in _SHARED if key in pf.facts}
        facts |= {"driver": sriov.get("driver"), "nodes": {}, **sriov}
        facts["bound"] = facts["driver"]
        index, port = pf.names["card"], f"{pf.names['port']}v{number}"
        names = self._names(address, pf.names["n"], index, port, facts, number)
        path = f"{pf.path.rpartition('/')[0]}/{address}"
        return Function(address, path, facts, pf.address, names)

    def _ports(self, facts: Mapping[str, Any], domain: int, bus: int) -> list[Function]:
        """The ports above a card that are not there yet; the last one is that of its slot."""
        address = kernel_text.address(domain, bus << 8)
        above, found = f"devices/pci{domain:04x}:{bus:02x}", []
        if "switch" in facts:
            number = facts["switch"]
            above = f"devices/pci{domain:04x}:00"
            for place in (number << 3, number << 8):  # the root port, the upstream port
                name = kernel_text.address(domain, place)
                above = f"{above}/{name}"
                if name not in self.functions:
                    found.append(Function(name, above, {**_PORT, "numa": facts["numa"]}))
        return [*found, Function(address, f"{above}/{address}", {**_PORT, "numa": facts["numa"]})]

    @staticmethod
    def _place(index: int, address: str | None) -> tuple[int, int]:
        """Domain, and bus, device and function as one number: eight buses for each card."""
        if address is not None:
            domain, bus, rest = address.split(":")
            device, function = rest.split(".")
            return int(domain, 16), int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        return index // 31, ((index % 31 + 1) * 8 + 1) << 8

    @staticmethod
    def _names(
        address: str, number: int, index: int, port: str, facts: Mapping[str, Any], virtual: int = 0
    ) -> dict[str, Any]:
        digest = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        return {
            "address": address,
            "card": index,
            "n": number,
            "port": port,
            "vf": virtual,
            "product": facts.get("product", ""),
            "irq": 32 + index,
            "block": number * 8,
            "block1": number * 8 + 1,
            "block2": number * 8 + 2,
            "netdev": f"ens{index + 1}{port}",
            "ifindex": 2 + int(digest[:6], 16),
            "mac": f"3c:fd:{digest[:2]}:{digest[2:4]}:{digest[4:6]}:{digest[6:8]}",
            "serial16": digest[:16],
            "uuid": uuid.UUID(digest[:32]),
        }


def load(spec: str | Mapping[str, Any]) -> Layout:
    """The layout of a host: by the name of a file in ``tests/data/hosts``, or by its facts."""
    return Layout(cards.host(spec))
