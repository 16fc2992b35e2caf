# SPDX-License-Identifier: Apache-2.0
"""Checks of the values that drivers report: what databases can store and Placement can name.

Each function except :func:`is_same_function` raises a ValueError or TypeError for a wrong value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cyborg.common import program_modes

#: The common facts, attributes with the same meaning in every driver: the key and the type of its
#: value. ``memory_mib`` and, for storage, ``capacity_mib`` are mebibytes; ``pci_address`` is
#: ``0000:3b:00.0``; ``pcie_switch`` is the address of the upstream port of the switch above;
#: ``link_group`` is one text for all devices of a host that are linked to each other, and
#: ``nvlink_peers`` are the addresses to which NVLink leads, with ``nvlink_links`` links at least;
#: ``link`` is the speed that card and slot can do, with the lanes in use now: ``16.0 GT/s x16``.
FACTS: Mapping[str, type[str] | type[int]] = {
    "board_functions": int,
    "capacity_mib": int,
    "driver_version": str,
    "firmware": str,
    "link": str,
    "link_group": str,
    "memory_mib": int,
    "namespaces": int,
    "numa_node": int,
    "nvlink_links": int,
    "nvlink_peers": str,
    "pcie_switch": str,
    "pci_address": str,
    "product": str,
}

NAME_MAX = 255
#: The largest number that every database can store in a small column, and in a large one.
COUNT_MAX = 2**31 - 1
NUMBER_MAX = 2**63 - 1

#: Ids of functions and their vendors become parts of a trait.
_FUNCTION = re.compile(r"[A-Za-z0-9_.-]{0,128}", re.ASCII)
_FUNCTION_VENDOR = re.compile(r"[A-Z0-9_]{0,50}", re.ASCII)


def fact(key: str, value: object) -> None:
    """An attribute of a deployable; the type of a common fact is fixed."""
    if FACTS.get(key) is not int:
        storable(f"attribute {key}", value)
    else:
        number(f"attribute {key}", value, COUNT_MAX)


def program(mode: str | None, function: str | None, vendor: str) -> None:
    """The program mode, function and vendor of a deployable."""
    if mode is not None and mode not in program_modes.ALL:
        raise ValueError(f"program_mode {mode!r} is not one of {sorted(program_modes.ALL)}")
    if function is not None and mode is None:
        raise ValueError(f"function {function!r} is of a deployable without a program_mode")
    if function is not None:
        function_id(function)
    if not _FUNCTION_VENDOR.fullmatch(vendor):
        raise ValueError(f"function_vendor {vendor!r} is no part of a trait: use A-Z, 0-9 and _")


def function_id(function: str) -> None:
    """The id of a function."""
    if not _FUNCTION.fullmatch(function):
        raise ValueError(f"function {function!r} is no id: use letters, digits, '_', '.' and '-'")


def layout(name: str, accelerators: object) -> None:
    """The name of a layout, and how many accelerators there are with it."""
    function_id(name)
    if not (isinstance(accelerators, str) and re.fullmatch("[0-9]{1,5}", accelerators, re.ASCII)):
        raise ValueError(f"layout {name!r} must have a number as text, not {accelerators!r}")


def is_same_function(expected: str | None, shown: str | None) -> bool:
    """True if two ids are of one function. Hyphens and case are ignored; None fits every id."""
    if expected is None or shown is None:
        return True
    return expected.replace("-", "").lower() == shown.replace("-", "").lower()


def number(field_name: str, value: object, limit: int = NUMBER_MAX) -> None:
    """A whole number from 0 to the limit."""
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{field_name} must be a number from 0 to {limit}, not {value!r}")


def seconds(field_name: str, value: object) -> None:
    """A time that one can wait."""
    if type(value) not in {int, float} or not 0 <= value <= COUNT_MAX:  # type: ignore[operator]
        raise ValueError(f"{field_name} must be seconds from 0 to {COUNT_MAX}, not {value!r}")


def flag(field_name: str, value: object) -> None:
    """A truth value."""
    if not isinstance(value, bool):
        raise TypeError(f"{field_name} must be true or false, not {value!r}")


def items(field_name: str, value: object, kind: Any = object) -> tuple[Any, ...]:
    """A list of values of a type."""
    if not (isinstance(value, list | tuple) and all(isinstance(each, kind) for each in value)):
        raise TypeError(f"{field_name} must be a list, not {value!r}")
    return tuple(value)


def texts(field_name: str, values: object, limit: int = NAME_MAX) -> None:
    """Texts by texts, which have at most ``limit`` characters as JSON."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{field_name} must be a dictionary, not {values!r}")
    for each in (*values, *values.values()):
        storable(field_name, each)
    text(field_name, json.dumps(dict(values)), limit)


def text(field_name: str, value: object, limit: int) -> None:
    """A text that is not empty and has at most ``limit`` characters."""
    if not (isinstance(value, str) and 0 < len(value) <= limit):
        raise ValueError(f"{field_name} must be a text of 1 to {limit} characters, not {value!r}")
    storable(field_name, value)


def storable(field_name: str, value: object) -> None:
    """A text that every database takes. One that is refused would fail the report of the host."""
    if not isinstance(value, str):
        raise TypeError(f"{field_name} must be a text, not {value!r}")
    # A surrogate stands for a byte of sysfs that is no UTF-8.
    has_surrogates = not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)
    if has_surrogates or "\0" in value:
        raise ValueError(f"{field_name} holds what is no text: {value!r}")
