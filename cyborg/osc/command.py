# SPDX-License-Identifier: Apache-2.0
"""The base of all commands: options of lists, and columns that fit a terminal."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from cliff import columns as cliff_columns
from osc_lib import exceptions
from osc_lib.command import command

from cyborg.common import readable
from cyborg.osc import fitting
from cyborg.osc.api import TABLE, Api, Row

Shown = tuple[Sequence[str], Iterable[Any]]

#: How an option or an argument may name a device.
DEVICE = "Uuid, or name of one of its deployables"

#: Each list of the API by its path, and the fields of what replaces a member of a collection.
LISTS: Mapping[str, Any] = TABLE["lists"]
REPLACED: Mapping[str, Sequence[str]] = TABLE["replaced"]


class Nested(cliff_columns.FormattableColumn[Any]):
    """A list or an object: lines for people, and itself for machines."""

    def human_readable(self) -> str:
        """The address if it is the handle of a PCI function, otherwise a line for each value."""
        return readable.nested(self._value)


class Text(cliff_columns.FormattableColumn[str]):
    """A text that a terminal would take for orders, such as one of a hostile host."""

    def human_readable(self) -> str:
        """The text with the names of such characters."""
        return readable.printable(self._value)


class Time(cliff_columns.FormattableColumn[str]):
    """A time in UTC, which people see to the second, so that it fits a column."""

    def human_readable(self) -> str:
        """Date and time of day."""
        return readable.time(self._value)


class Empty(cliff_columns.FormattableColumn[None]):
    """Nothing, which people see as an empty field."""

    def human_readable(self) -> str:
        """An empty text."""
        return ""


class Command(command.Command):
    """A command with the accelerator API."""

    #: The argument that names what it is about, its help, and ``+`` if it may name several.
    argument: ClassVar[tuple[str, str] | None] = None
    nargs: ClassVar[str | None] = None

    @functools.cached_property
    def api(self) -> Api:
        """The accelerator API."""
        return Api(self.app.client_manager)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The parser of the command line."""
        parser = super().get_parser(prog_name)
        if self.argument is not None:
            name, text = self.argument
            metavar = f"<{name.replace('_', '-')}>"
            parser.add_argument(name, metavar=metavar, nargs=self.nargs, help=text)
        parser.set_defaults(fit_width=True)
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments and options."""


class ShowOne(Command, command.ShowOne):
    """A command that shows one thing."""


class _OfMembers(Command):
    """A command about members of a collection."""

    collection: ClassVar[str]
    argument: ClassVar[tuple[str, str]]
    #: The function that finds the name in a path for the argument.
    find: ClassVar[Callable[[Api, str], str]] = lambda _api, text: text

    def path(self, text: str) -> str:
        """The path of the member that the argument names."""
        return f"/{self.collection}/{type(self).find(self.api, text)}"


class Show(_OfMembers, ShowOne):
    """A command that shows a member of a collection."""

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """Show it."""
        return fields(self.api.call("GET", self.path(getattr(parsed_args, self.argument[0]))))


class Delete(_OfMembers):
    """A command that deletes members of a collection, each one that can be."""

    nargs = "+"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete them."""
        refused = []
        for text in getattr(parsed_args, self.argument[0]):
            try:
                self.api.call("DELETE", self.path(text))
            except exceptions.CommandError as exc:
                refused.append(str(exc))
        if refused:
            raise exceptions.CommandError("\n".join(refused))


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
            chosen = parsed_args.columns or getattr(parsed_args, "long", False)
            self.formatter = fitting.Fitted(self.formatter, may_drop=not chosen)
        return int(super().produce_output(parsed_args, column_names, data))


class Table(Command, _Fitted):
    """A command that shows a table."""


class Named(NamedTuple):
    """An option that names what an argument of the API has the uuid of."""

    option: str
    help: str
    find: Callable[[Api, str], str]


#: By the arguments of the API.
_NAMED = {
    "device_uuid": Named("--device", DEVICE, Api.device_uuid),
    "deployable_uuid": Named("--deployable", "Name or uuid", Api.deployable_uuid),
    "device_rp_uuid": Named(
        "--resource-provider",
        "Uuid of a resource provider, or name of a deployable",
        Api.provider_uuid,
    ),
    "instance": Named("--server", "Name or uuid", Api.server_uuid),
    "instance_uuid": Named("--server", "Name or uuid", Api.server_uuid),
    "project_id": Named("--project", "Name or id (admin only)", Api.project_id),
    "device_profile_name": Named("--device-profile", "Name", lambda _api, text: text),
}


class Lister(Command, _Fitted):
    """A list of a collection.

    A table has the columns of :attr:`short`. With ``--long``, and in the formats for machines, it
    has every field. The fields and the filters of the collection are those of the API.
    """

    collection: ClassVar[str]
    short: ClassVar[tuple[str, ...]]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what narrows the list."""
        parser.add_argument("--long", action="store_true", help="List additional fields")
        parser.add_argument("--limit", type=int, metavar="<count>", help="List at most so many")
        parser.add_argument("--marker", metavar="<uuid>", help="List items after this one")
        add_filters(parser, LISTS[self.collection]["arguments"])

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """List, in the columns that are wanted."""
        parsed = parsed_args
        for_people = parsed.formatter == "table" and not (parsed.columns or parsed.long)
        rest = (name for name in LISTS[self.collection]["fields"] if name not in self.short)
        columns = self.short if for_people else (*self.short, *rest)
        return table(columns, self.rows(parsed))

    def rows(self, parsed: argparse.Namespace) -> Iterator[Row]:
        """The rows that are wanted."""
        known = LISTS[self.collection]
        return self.api.list(self.collection, asked(self.api, known, parsed), known["key"])


def add_filters(parser: argparse.ArgumentParser, arguments: Mapping[str, Any]) -> None:
    """Add the options that narrow a list."""
    several = {"project_id", "all_projects"}
    projects = parser.add_mutually_exclusive_group() if several <= arguments.keys() else parser
    for name, argument in arguments.items():
        group = projects if name in several else parser
        if name in _NAMED:
            named = _NAMED[name]
            metavar = f"<{named.option[2:]}>"
            group.add_argument(named.option, dest=name, metavar=metavar, help=named.help)
        elif name == "all_projects":
            text = "All projects (admin only)"
            group.add_argument("--all-projects", action="store_true", default=None, help=text)
        elif argument.get("type") == "boolean":
            either, truth = parser.add_mutually_exclusive_group(), ["true", "false"]
            either.add_argument(
                f"--{name}", nargs="?", const="true", choices=truth, help=argument["help"]
            )
            text = "Only the others"
            either.add_argument(
                f"--no-{name}", dest=name, action="store_const", const="false", help=text
            )
        elif name not in {"limit", "marker"}:
            choices, metavar = argument.get("choices"), f"<{option(name)[2:]}>"
            add = {"choices": choices} if choices else {"metavar": metavar}
            group.add_argument(option(name), help=argument["help"], **add)


def asked(api: Api, known: Mapping[str, Any], parsed: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a list that the user has given.

    :raises CommandError: the microversion that is used lacks the list or one of them
    """
    wanted = given(parsed, *known["arguments"])
    api.need(known["since"], *(known["arguments"][name]["since"] for name in wanted))
    return {
        name: _NAMED[name].find(api, value) if name in _NAMED else value
        for name, value in wanted.items()
    }


def option(name: str) -> str:
    """The option for a field of the API."""
    return "--" + name.replace("_", "-")


def add_reason(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--reason``."""
    parser.add_argument("--reason", metavar="<text>", help=text)


def given(parsed: argparse.Namespace, *names: str) -> Row:
    """The arguments of these names that are given."""
    values = ((name, getattr(parsed, name)) for name in names)
    return {name: value for name, value in values if value is not None}


def reason(parsed: argparse.Namespace) -> dict[str, str] | None:
    """The body of a request that may have a reason."""
    return given(parsed, "reason") or None


def add_choice(group: Any, dest: str, **choices: str) -> None:
    """Add an option without a value for each of the choices, with its help, to a group."""
    for choice, text in choices.items():
        group.add_argument(
            f"--{choice}", dest=dest, action="store_const", const=choice, help=text
        )


def pairs(text: str) -> dict[str, str]:
    """An argument of the form ``key=value[,key=value...]``."""
    found = [part.partition("=") for part in text.split(",")]
    if not all(key and separator for key, separator, _value in found):
        raise argparse.ArgumentTypeError("it must be of the form key=value[,key=value]")
    return {key.strip(): value.strip() for key, _separator, value in found}


def add_group(parser: Any) -> None:
    """Add ``--group``."""
    parser.add_argument(
        "--group",
        dest="groups",
        metavar="<key=value>[,<key=value>...]",
        type=pairs,
        action="append",
        help="A request group, for example resources:FPGA=1,trait:CUSTOM_FAST=required (may be "
        "repeated)",
    )


def table(columns: Sequence[str], rows: Iterable[Row]) -> Shown:
    """These columns of some rows."""
    return columns, [tuple(shown(row.get(name)) for name in columns) for row in rows]


def shown(value: Any) -> Any:
    """A value for a column."""
    if value is None:
        return Empty(None)
    if isinstance(value, str) and readable.is_time(value):
        return Time(value)
    if isinstance(value, str) and readable.printable(value) != value:
        return Text(value)
    return Nested(value) if isinstance(value, (dict, list)) else value


def fields(row: Row) -> Shown:
    """Every field of a row, but for its links."""
    names = [name for name in row if name != "links"]
    return names, [shown(row[name]) for name in names]
