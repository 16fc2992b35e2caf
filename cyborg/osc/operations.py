# SPDX-License-Identifier: Apache-2.0
"""``accelerator operation``, and the wait for the end of one."""

from __future__ import annotations

import argparse

from cliff import columns as cliff_columns
from osc_lib import exceptions

from cyborg.common import readable
from cyborg.osc import command, waiting
from cyborg.osc.api import Api, Row


class List(command.Lister):
    """List the operations that program deployables."""

    collection = "operations"
    short = ("uuid", "state", "created_at", "error", "deployable_uuid")


class Show(command.ShowOne):
    """Show an operation and its history."""

    argument = ("operation", "Uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the operation."""
        parser.add_argument("--wait", action="store_true", help="Wait until it has ended")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        self.api.need()
        if parsed_args.wait:
            return shown(wait(self.api, parsed_args.operation))
        return shown(self.api.call("GET", f"/operations/{parsed_args.operation}"))


class Cancel(command.Command):
    """Cancel operations before their write has begun."""

    argument = ("operation", "Uuid")
    nargs = "+"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Cancel them."""
        self.api.need()
        for uuid in parsed_args.operation:
            self.api.call("DELETE", f"/operations/{uuid}")


class _History(cliff_columns.FormattableColumn[list[dict[str, str]]]):
    def human_readable(self) -> str:
        lines = (f"{event['at']} {event['text']}" for event in self._value)
        return "\n".join(map(readable.printable, lines))


def shown(operation: Row) -> command.Shown:
    """An operation with one line for each entry of its history."""
    return command.fields({**operation, "history": _History(operation["history"])})


def wait(api: Api, uuid: str) -> Row:
    """The operation when it has succeeded; meanwhile its history is written to stderr.

    :raises CommandError: it failed
    """
    operation = waiting.for_end(
        api.looks(f"/operations/{uuid}"),
        lambda row: row["ended_at"] is not None,
        lambda row: [f"{event['at'][11:19]} {event['text']}" for event in row["history"]],
        f"Operation {uuid} goes on; `operation show {uuid} --wait` waits for it again.",
    )
    if operation["error"] is not None:
        raise exceptions.CommandError(f"Operation {uuid} failed: {operation['error']}")
    return operation
