# SPDX-License-Identifier: Apache-2.0
"""``accelerator summary``: how many accelerators there are, and how many are free."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from cliff import columns as cliff_columns

from cyborg.osc import command

_FIELDS = command.LISTS["summary"]["fields"]
#: The columns that people see, the most important first: a narrow terminal leaves out the last.
_HEADERS = {
    "hostname": "host",
    "resource_class": "class",
    "total": "total",
    "used": "used",
    "free": "free",
    "out_of_service": "out",
    "preparing": "preparing",
}
#: Green, red and yellow, for numbers that are not 0.
_COLOURS = {"free": 32, "out_of_service": 31, "preparing": 33}
_SUM = "all hosts"


class _Coloured(cliff_columns.FormattableColumn[int]):
    """A number in a colour for people, and itself for machines."""

    def __init__(self, value: int, colour: int) -> None:
        super().__init__(value)
        self._colour = colour

    def human_readable(self) -> str:
        """The number between the orders that begin and end the colour."""
        return f"\x1b[{self._colour}m{self._value}\x1b[0m"


class Summary(command.Table):
    """Show how many accelerators each host has, and how many are used, free or out of service.

    The last rows are the sums of all hosts. "out" counts those out of service. "preparing" counts
    those that are cleaned or programmed, or are without the program that they need.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what narrows the summary."""
        parser.set_defaults(limit=None, marker=None)
        command.add_filters(parser, command.LISTS["summary"]["arguments"])

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it, page after page."""
        query = command.asked(self.api, command.LISTS["summary"], parsed_args)
        pages = list(self.api.answers("summary", query, "summary"))
        rows = [row for page in pages for row in page["summary"]]
        if parsed_args.formatter != "table" or parsed_args.columns:
            return command.table(_FIELDS, rows)
        rows += [{"hostname": _SUM, **row} for row in pages[-1]["totals"]]
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            rows = [_coloured(row) for row in rows]
        return [*_HEADERS.values()], command.table([*_HEADERS], rows)[1]


def _coloured(row: Mapping[str, Any]) -> dict[str, Any]:
    colours = {name: colour for name, colour in _COLOURS.items() if row[name]}
    return {**row} | {name: _Coloured(row[name], colour) for name, colour in colours.items()}
