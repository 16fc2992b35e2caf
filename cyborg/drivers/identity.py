# SPDX-License-Identifier: Apache-2.0
"""The identity of a card: its serial, where it shows one, and its product.

An address names a slot, and firmware or a new card may number slots anew. So two cards are the same
if both show the same serial, and not the same if they show two, or are two products. Where neither
can be said the address counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

#: The attribute in which a driver reports the serial, WWID or UUID of a card.
SERIAL_KEY = "serial"
#: Texts that vendors have in the place of a serial, the same in all their cards.
_NO_SERIAL = re.compile(r"(?i)[0fx\W_]*|n/?a|none|null|(unknown|not |default|to be filled).*")
#: The PCI serial, which any driver's card may show while a guest has it. It is not the vendor's.
_OF_PCI = re.compile(r"(?i)([0-9a-f]{2}-){7}[0-9a-f]{2}")


#: The prefix of keys in an info that name no place any more, as another card is there.
WAS = "was_"


class Identity(NamedTuple):
    """The facts that tell a card from others; None for what is not known."""

    serial: str | None = None
    #: Vendor and product, and vendor and product of the board.
    product: str | None = None
    board: str | None = None

    def has_other_product(self, now: Identity) -> bool:
        """True if what is seen ``now`` is another product."""
        return None not in (self.product, now.product) and self.product != now.product

    def has_other_serial(self, now: Identity) -> bool:
        """True if both show a serial of the same kind, and not the same one."""
        if self.serial is None or now.serial is None or self.is_of_pci != now.is_of_pci:
            return False
        return self.serial != now.serial

    def to_wire(self, *, product: bool = True) -> dict[str, str]:
        """The facts that a host must find just before it does something to the card."""
        said = {SERIAL_KEY: self.serial, "product": self.product if product else None}
        return {key: value for key, value in said.items() if value is not None}

    @property
    def is_of_pci(self) -> bool:
        """True if the serial is that of PCI."""
        return _OF_PCI.fullmatch(self.serial or "") is not None


def of(shown: Iterable[object], vendor: str, board_info: str | None) -> Identity:
    """The identity of a card by the serials that its parts show and what is said of its board.

    If the parts do not show one and the same serial, it is not known.
    """
    texts = {str(each).strip() for each in shown if each is not None}
    serials = [text for text in texts if not _NO_SERIAL.fullmatch(text)]
    serial = serials[0] if len(serials) == 1 else None
    try:
        facts = dict(json.loads(board_info or "{}"))
    except (ValueError, TypeError):
        facts = {}
    board = (facts.get("subsystem_vendor_id"), facts.get("subsystem_id"))
    return Identity(serial, _joined((vendor, facts.get("product_id"))), _joined(board))


def _joined(ids: Iterable[object]) -> str | None:
    texts = [str(each or "").lower().removeprefix("0x") for each in ids]
    return ":".join(texts) if all(texts) else None
