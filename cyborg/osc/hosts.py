# SPDX-License-Identifier: Apache-2.0
"""``accelerator host``: drain a host before maintenance, and see who still uses it."""

from __future__ import annotations

import argparse
import urllib.parse
from typing import Any, ClassVar

from cliff import columns as cliff_columns

from cyborg.osc import command, waiting
from cyborg.osc.api import Api, Row


class _Host(command.ShowOne):
    argument = ("host", "Name of the host")
    #: The action on the host, if any, and whether it takes a reason.
    action: ClassVar[str | None] = None
    takes_reason: ClassVar[bool] = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the reason."""
        if self.takes_reason:
            command.add_reason(parser, "Why; kept, and shown to others")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Ask, and show the host."""
        self.api.need()
        path = f"/hosts/{urllib.parse.quote(parsed_args.host, safe='')}"
        if self.action is None:
            return _shown(self.api.call("GET", path))
        body = command.reason(parsed_args) if self.takes_reason else None
        host: Row = self.api.call("POST", f"{path}/{self.action}", body=body)
        waits = getattr(parsed_args, "wait", False)
        return _shown(_empty(self.api, path) if waits else host)


class Show(_Host):
    """Show whether a host is drained, and who uses its accelerators."""


class Drain(_Host):
    """Give out no accelerator of a host any more; servers keep what they have."""

    action = "drain"
    takes_reason = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the reason and the wait."""
        super().add_arguments(parser)
        parser.add_argument(
            "--wait",
            action="store_true",
            help="Wait until nobody uses its accelerators, and none is being programmed",
        )


class Undrain(_Host):
    """Give the accelerators of a drained host out again."""

    action = "undrain"


class Taint(_Host):
    """Taint a host: only profiles with accel:tolerate_taint get its accelerators."""

    action = "taint"
    takes_reason = True


class Untaint(_Host):
    """Give the accelerators of a tainted host to every profile again."""

    action = "untaint"


def _empty(api: Api, path: str) -> Row:
    """The host when nobody uses or programs it; each change is written to stderr."""
    def left(host: Row) -> list[str]:
        still = _left(host)
        return [f"{still} {host['name']}"] if still and host["drained"] else []

    return waiting.for_end(
        api.looks(path),
        lambda host: not left(host),
        left,
        "The host stays drained; `host show` says who still uses it, `host undrain` ends it.",
    )


def _left(host: Row) -> str:
    """The users of a host, as the subject of a sentence; empty if there are none."""
    numbers = {
        "accelerator requests use": host["in_use"],
        "operations program": host["programming"],
    }
    return " and ".join(f"{number} {what}" for what, number in numbers.items() if number)


class _Operations(cliff_columns.FormattableColumn[list[dict[str, Any]]]):
    def human_readable(self) -> str:
        # One uuid a line: cliff cuts what is too wide, also within a uuid.
        return "\n".join(
            f"{one['uuid']} is {one['state']},\n  for {one['asked_by']}" for one in self._value
        )


class _Users(cliff_columns.FormattableColumn[list[dict[str, Any]]]):
    def human_readable(self) -> str:
        return "\n".join(
            f"{user['instance_uuid']} of project {user['project_id']}:\n"
            f"  {user['arq_uuid']} is {user['state']}"
            for user in self._value
        )


def _shown(host: Row) -> command.Shown:
    lines: Row = {"users": _Users(host["users"])}
    if "operations" in host:
        lines["operations"] = _Operations(host["operations"])
    return command.fields(host | lines)
