# SPDX-License-Identifier: Apache-2.0
"""The facts of PCI functions: those that cannot be read, as while a guest has a card, are kept."""

from __future__ import annotations

from cyborg.drivers import kept_facts
from cyborg.drivers.pci import facts
from cyborg.drivers.pci.snapshot import Facts, Function, Snapshot, ids_of


class KnownFacts:
    """The facts of functions since the agent started; names of products since the card came."""

    def __init__(self, kept: kept_facts.KeptFacts) -> None:
        self._kept = kept
        self._known: dict[tuple[str, ...], dict[str, str | int]] = {}

    def of(
        self, function: Function, functions: Snapshot, own: Facts, named: str | None
    ) -> dict[str, str | int]:
        """The facts of a function: ``own`` are of its driver, ``named`` is the operator's name."""
        shown = {name: value for name, value in own.items() if value is not None and value != ""}
        key = (function.address, *ids_of(function))
        place = " ".join(key)
        if "product" in shown:
            self._kept.set("product", place, shown["product"])
        elif function.has_guest_driver:
            # It is as the host's driver showed it before the guest came.
            kept = self._kept.get("product", place)
            shown |= {"product": kept} if isinstance(kept, str) else {}
        present = {**facts.attributes(function, functions), **shown}
        self._kept.check(function.address, present.get("serial"))
        if named is not None:
            present["product"] = named
        is_hidden = function.has_guest_driver or functions.is_partly_read(function)
        known = self._known.get(key, {}) if is_hidden else {}
        self._known[key] = {**known, **present}
        return self._known[key]
