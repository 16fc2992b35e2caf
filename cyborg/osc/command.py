# SPDX-License-Identifier: Apache-2.0
"""What the commands have in common: options of lists, and columns that fit a terminal."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from cliff import columns as cliff_columns
from osc_lib.command import command

from cyborg.osc import fitting
from cyborg.osc.api import Api, Row

Shown = tuple[Sequence[str], Iterable[Any]]

#: How an option or an argument may name a device.
DEVICE = "Uuid, or name of one of its deployables"

#: As the API writes a time.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_ADDRESS = ("domain", "bus", "device", "function")


class Nested(cliff_columns.FormattableColumn[Any]):
    """A list or an object: JSON for people, and itself for machines."""

    def human_readable(self) -> str:
        """The address if it is the handle of a PCI function, otherwise JSON."""
        value = self._value
        if isinstance(value, Mapping) and all(part in value for part in _ADDRESS):
            return "{domain}:{bus}:{device}.{function}".format(**value)
        return json.dumps(value) if value else ""


class Text(cliff_columns.FormattableColumn[str]):
    """A text that a terminal would take for orders, such as one of a hostile host."""

    def human_readable(self) -> str:
        """The text with the names of such characters."""
        return printable(self._value)


class Time(cliff_columns.FormattableColumn[str]):
    """A time in UTC, which people see to the second, so that it fits a column."""

    def human_readable(self) -> str:
        """Date and time of day."""
        return self._value[:19].replace("T", " ")


class Empty(cliff_columns.FormattableColumn[None]):
    """Nothing, which people see as an empty field."""

    def human_readable(self) -> str:
        """An empty text."""
        return ""


class Command(command.Command):
    """A command with the accelerator API."""

    @functools.cached_property
    def api(self) -> Api:
        """The accelerator API."""
        return Api(self.app.client_manager)


class _Fitting(Command):
    """A command whose tables fit the terminal."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.set_defaults(fit_width=True)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments and options."""
        raise NotImplementedError


class ShowOne(_Fitting, command.ShowOne):
    """A command that shows one thing."""


class _Fitted(command.Lister):
    """A list that fits the terminal."""

    def produce_output(
        self,
        parsed_args: argparse.Namespace,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
    ) -> int:
        """Write the list."""
        if parsed_args.formatter == "table":
            self.formatter = fitting.Fitted(self.formatter)
        return int(super().produce_output(parsed_args, column_names, data))


class Table(_Fitting, _Fitted):
    """A command that shows a table."""


class Lister(Command, _Fitted):
    """A list of a collection.

    A table has the columns of :attr:`short`. With ``--long``, and in the formats for machines,
    there are those of :attr:`rest` too.
    """

    collection: ClassVar[str]
    #: The key of the rows in an answer, if it is not the collection.
    key: ClassVar[str | None] = None
    #: Whether only the newest microversion has the collection.
    is_new: ClassVar[bool] = False
    short: ClassVar[tuple[str, ...]]
    rest: ClassVar[tuple[str, ...]] = ()
    #: Options that are sent as they are given: the field, and its help.
    filters: ClassVar[Mapping[str, str]] = {}
    #: Those of them that every microversion has.
    old_filters: ClassVar[frozenset[str]] = frozenset()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The parser of the command line."""
        parser = super().get_parser(prog_name)
        parser.set_defaults(fit_width=True)
        parser.add_argument("--long", action="store_true", help="List additional fields")
        parser.add_argument("--limit", type=int, metavar="<count>", help="List at most so many")
        parser.add_argument("--marker", metavar="<uuid>", help="List what follows this one")
        for name, text in self.filters.items():
            parser.add_argument(option(name), metavar=f"<{option(name)[2:]}>", help=text)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options."""

    def query(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """What the list is narrowed to by the command's own options; None for no matter what."""
        return {}

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """List."""
        wanted = {name: getattr(parsed_args, name) for name in ("limit", "marker", *self.filters)}
        given = {name for name, value in wanted.items() if value is not None}
        if self.is_new or given - self.old_filters:
            self.api.need()
        rows = self.api.list(self.collection, {**wanted, **self.query(parsed_args)}, self.key)
        return self.table(parsed_args, rows)

    def table(self, parsed: argparse.Namespace, rows: Iterable[Row]) -> Shown:
        """The columns that are wanted, of each row."""
        for_people = parsed.formatter == "table" and not (parsed.columns or parsed.long)
        columns = self.short if for_people else (*self.short, *self.rest)
        return columns, [tuple(shown(row.get(name)) for name in columns) for row in rows]


def option(name: str) -> str:
    """The option for a field of the API."""
    return "--" + name.replace("_", "-")


def flag(parser: argparse.ArgumentParser, name: str, yes: str, no: str) -> None:
    """Add ``--name`` and ``--no-name``; None without either."""
    either = parser.add_mutually_exclusive_group()
    dest = name.replace("-", "_")
    either.add_argument(f"--{name}", dest=dest, action="store_true", default=None, help=yes)
    either.add_argument(f"--no-{name}", dest=dest, action="store_false", default=None, help=no)


def shown(value: Any) -> Any:
    """A value for a column."""
    if value is None:
        return Empty(None)
    if isinstance(value, str) and _TIME.fullmatch(value):
        return Time(value)
    if isinstance(value, str) and printable(value) != value:
        return Text(value)
    return Nested(value) if isinstance(value, (dict, list)) else value


def printable(text: str) -> str:
    """A text without characters that a terminal obeys, but for the ends of lines."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def fields(row: Row) -> Shown:
    """Every field of a row, but for its links."""
    names = [name for name in row if name != "links"]
    return names, [shown(row[name]) for name in names]
