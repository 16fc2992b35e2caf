# SPDX-License-Identifier: Apache-2.0
"""Identities of cards: which reported one is which known one; pure, like :mod:`.diff`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cyborg.db import models
from cyborg.drivers import base, identity, value_checks

_PLACE = ("domain", "bus", "device", "function")


def of_row(row: models.Device) -> identity.Identity:
    """The known identity of a card: its serial as it was shown last."""
    shown = [getattr(row, "identity", None)]
    if shown == [None]:
        attributes = (each for part in row.deployables for each in part.attributes)
        shown = [each.value for each in attributes if each.key == identity.SERIAL_KEY]
    return identity.of(shown, row.vendor, row.std_board_info)


def of_device(device: base.Device) -> identity.Identity:
    """The identity of a card as a report says it."""
    shown = (part.attributes.get(identity.SERIAL_KEY) for part in device.deployables)
    return identity.of(shown, device.vendor, device.std_board_info)


def serial_to_keep(row: models.Device | None, device: base.Device) -> str | None:
    """The serial of a card, also while a guest has it and only that of PCI is shown, or none."""
    now = of_device(device)
    was = of_row(row).serial if row is not None else None
    return was if was and (now.serial is None or now.is_of_pci) else now.serial


def is_other(row: models.Device, device: base.Device) -> bool:
    """A reported card at the place of a known one is certainly another.

    What is programmed may have another product id afterwards, and a part of a card has its own.
    """
    place = json.loads(row.control_path.cpid_info)
    if not place.keys() >= set(_PLACE):
        return False
    was, now = of_row(row), of_device(device)
    programs = any(getattr(part, "program_mode", None) for part in row.deployables)
    is_same_place = place == dict(device.control_path.cpid_info) and not device.being_written
    is_product = is_same_place and not programs and was.has_other_product(now)
    return is_product or was.has_other_serial(now)


def is_doubtful(device: base.Device) -> bool:
    """A card in the slot of another needs a look: a list by address may have meant that.

    One that is known by its serial does not; but a disk may have data.
    """
    return device.type in base.DISKS or of_device(device).serial is None


def nameless(card: identity.Identity) -> str | None:
    """The product of a card that only its address tells from others of it, or None."""
    return card.product if card.serial is None else None


def has_other_board(row: models.Device, device: base.Device) -> bool:
    """A card that shows no serial is on another board than the one that was there."""
    was, now = of_row(row), of_device(device)
    are_known = None not in (was.board, now.board) and None in (was.serial, now.serial)
    return are_known and was.board != now.board


#: What tells the paths apart of several cards that were at one place.
_WHOSE = f"{identity.WAS}by"

_Card = tuple[str, str | None, str, str]


def followed(
    known: Sequence[models.Device], devices: Sequence[base.Device]
) -> dict[int, models.Device]:
    """The rows of reported cards that are known by their serial, by the cards' numbers.

    The functions of a card may all show its serial. If several cards have the same, as where a
    vendor gives it to all, it tells nothing.
    """
    rows = _unique((of_row(row), at_home(row.control_path.cpid_info)) for row in known)
    shown = _unique((of_device(each), each.control_path.cpid_info) for each in devices)
    return {number: known[rows[card]] for card, number in shown.items() if card in rows}


def _unique(cards: Iterable[tuple[identity.Identity, Mapping[str, str]]]) -> dict[_Card, int]:
    found = [
        (card.serial, card.product, info["device"], info["function"])
        if card.serial and info.keys() >= set(_PLACE)
        else None
        for card, info in cards
    ]
    counts = Counter(found)
    return {card: n for n, card in enumerate(found) if card is not None and counts[card] == 1}


def at_home(info: str) -> dict[str, str]:
    """An info with the place that it had before another card came there."""
    parts = json.loads(info)
    parts.pop(_WHOSE, None)
    return {key.removeprefix(identity.WAS): value for key, value in parts.items()}


def apart(info: str, uuid: str) -> str:
    """A control path's info that no other card which was at its place has as well."""
    parts = json.loads(info)
    is_displaced = any(key.startswith(identity.WAS) for key in parts)
    return base.canonical_json(parts | {_WHOSE: uuid}) if is_displaced else info


def displaced(info: str) -> str:
    """An info without a place: nobody must take what is there now for the card."""
    return base.canonical_json({identity.WAS + key: value for key, value in at_home(info).items()})


def moved(info: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """An info of a function of a card that was on the bus of ``old`` and is on that of ``new``."""
    parts = at_home(info)
    if parts.get("domain") == old["domain"] and "bus" in parts:
        parts |= {"domain": new["domain"], "bus": _bus(parts["bus"], old, new)}
    return base.canonical_json(parts)


def _bus(bus: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """A bus of the card: virtual functions may be on those behind that of the card."""
    return f"{int(bus, 16) - int(old['bus'], 16) + int(new['bus'], 16):02x}"


def displaced_name(name: str, uuid: str) -> str:
    """A name for a deployable of such a card, which leaves the name to the card that came."""
    return f"{name[: value_checks.NAME_MAX - 1 - len(uuid)]}#{uuid}"


def name_at(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """The name that a deployable of such a card has now."""
    return re.sub(
        rf"_{old['domain']}:([0-9a-f]{{2}}):",
        lambda found: f"_{new['domain']}:{_bus(found[1], old, new)}:",
        name.partition("#")[0],
    )
