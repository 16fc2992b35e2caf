# SPDX-License-Identifier: Apache-2.0
"""``accelerator host``: drain a host before maintenance, and see who still uses it."""

from __future__ import annotations

import argparse
import sys
import time
import urllib.parse
from typing import Any

from cliff import columns as cliff_columns

from cyborg.osc import command
from cyborg.osc.api import Api, Row

#: Seconds between two looks at a host that is drained.
_POLL = 1


class _Host(command.ShowOne):
    argument = ("host", "Name of the host")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Ask, and show the host."""
        self.api.need()
        path = f"/hosts/{urllib.parse.quote(parsed_args.host, safe='')}"
        return _shown(self.ask(path, parsed_args))

    def ask(self, path: str, parsed: argparse.Namespace) -> Row:
        """The host after the request."""
        raise NotImplementedError


class Show(_Host):
    """Show whether a host is drained, and who uses its accelerators."""

    def ask(self, path: str, parsed: argparse.Namespace) -> Row:
        """The host."""
        return _get(self.api, path)


class Drain(_Host):
    """Give out no accelerator of a host any more; servers keep what they have."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the reason and the wait."""
        super().add_arguments(parser)
        parser.add_argument("--reason", metavar="<text>", help="Why; kept, and shown to others")
        parser.add_argument(
            "--wait",
            action="store_true",
            help="Wait until nobody uses its accelerators, and none is being programmed",
        )

    def ask(self, path: str, parsed: argparse.Namespace) -> Row:
        """The host, when nobody uses it if that is waited for."""
        body = None if parsed.reason is None else {"reason": parsed.reason}
        host: Row = self.api.call("POST", f"{path}/drain", body=body)
        return _empty(self.api, path, host) if parsed.wait else host


class Undrain(_Host):
    """Give the accelerators of a drained host out again."""

    def ask(self, path: str, parsed: argparse.Namespace) -> Row:
        """The host afterwards."""
        host: Row = self.api.call("POST", f"{path}/undrain")
        return host


class Taint(_Host):
    """Taint a host: only profiles with accel:tolerate_taint get its accelerators."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the reason."""
        super().add_arguments(parser)
        parser.add_argument("--reason", metavar="<text>", help="Why; kept, and shown to others")

    def ask(self, path: str, parsed: argparse.Namespace) -> Row:
        """The host afterwards."""
        body = None if parsed.reason is None else {"reason": parsed.reason}
        host: Row = self.api.call("POST", f"{path}/taint", body=body)
        return host


class Untaint(_Host):
    """Give the accelerators of a tainted host to every profile again."""

    def ask(self, path: str, parsed: argparse.Namespace) -> Row:
        """The host afterwards."""
        host: Row = self.api.call("POST", f"{path}/untaint")
        return host


def _get(api: Api, path: str) -> Row:
    host: Row = api.call("GET", path)
    return host


def _empty(api: Api, path: str, host: Row) -> Row:
    """The host when nobody uses or programs it; each change is written to stderr."""
    shown = None
    while (left := _left(host)) and host["drained"]:
        if left != shown:
            shown = left
            sys.stderr.write(f"{left} {host['name']}\n")
            sys.stderr.flush()
        time.sleep(_POLL)
        host = _get(api, path)
    return host


def _left(host: Row) -> str:
    """Who has something of a host, as the subject of a sentence; empty if nobody has."""
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
            f"server {user['instance_uuid']} of project {user['project_id']}:\n"
            f"  {user['arq_uuid']} is {user['state']}"
            for user in self._value
        )


def _shown(host: Row) -> command.Shown:
    names, values = command.fields(host)
    table = dict(zip(names, values, strict=True)) | {"users": _Users(host["users"])}
    if "operations" in host:
        table["operations"] = _Operations(host["operations"])
    return names, list(table.values())
