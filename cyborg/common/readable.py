# SPDX-License-Identifier: Apache-2.0
"""Values of the API as people read them, in a terminal and in the dashboard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: As the API writes a time.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_ADDRESS = ("domain", "bus", "device", "function")


def printable(text: str) -> str:
    """A text without characters that a terminal obeys, but for the ends of lines."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def is_time(text: str) -> bool:
    """True if the API wrote it as a time."""
    return _TIME.fullmatch(text) is not None


def time(text: str) -> str:
    """A time of the API in UTC, to the second, so that it fits a column."""
    return text[:19].replace("T", " ")


def address(value: Any) -> str | None:
    """The address of the PCI function that a handle is; None if it is none."""
    if isinstance(value, Mapping) and all(part in value for part in _ADDRESS):
        return printable("{domain}:{bus}:{device!s:0>2}.{function}".format(**value))
    return None


def nested(value: Any) -> str:
    """The address if it is the handle of a PCI function, otherwise a line for each value."""
    return address(value) or "\n".join(_lines(value))


def _lines(value: Any, name: str = "") -> list[str]:
    """A line for each value in one of JSON, after the name that leads there; none for nothing."""
    if isinstance(value, Mapping):
        return _lines_of_object(value, name)
    if isinstance(value, list):
        return _lines_of_list(value, name)
    if value is None or value == "":
        return []
    text = str(value).lower() if isinstance(value, bool) else str(value)
    line = f"{name} = {text}" if name else text
    return [printable(line).replace("\n", "\\n")]


def _lines_of_object(value: Mapping[str, Any], name: str) -> list[str]:
    place = address(value)
    lines = [] if place is None else _lines(place, name)
    for key, each in value.items():
        if place is None or key not in _ADDRESS:
            lines += _lines(each, f"{name}.{key}" if name else key)
    return lines


def _lines_of_list(value: Sequence[Any], name: str) -> list[str]:
    parts = [lines for each in value if (lines := _lines(each, name))]
    if len(parts) > 1 and isinstance(value[0], (dict, list)):
        parts = [[f"- {part[0]}", *(f"  {line}" for line in part[1:])] for part in parts]
    return [line for part in parts for line in part]
