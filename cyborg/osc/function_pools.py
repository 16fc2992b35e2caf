# SPDX-License-Identifier: Apache-2.0
"""``accelerator function pool`` and ``accelerator function miss``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from cyborg.osc import command
from cyborg.osc.api import Api, Row

#: What a request says of a pool.
_SENT = command.REPLACED["function_pools"]


class List(command.Lister):
    """List function pools, with the slots of each."""

    collection = "function_pools"
    short = ("name", "function_id", "wanted", "ready", "used", "pending", "reason")


class Misses(command.Lister):
    """List pools with recent misses, and how many slots were missed."""

    collection = "function_pools"
    short = ("name", "function_id", "misses", "wanted", "ready")

    def rows(self, parsed: argparse.Namespace) -> Iterator[Row]:
        """The pools that were missed."""
        return (row for row in super().rows(parsed) if row["misses"])


class Show(command.ShowOne):
    """Show a function pool."""

    argument = ("pool", "Name or uuid")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        return command.fields(self.api.pool(parsed_args.pool))


class Create(command.ShowOne):
    """Create a function pool: slots of a function that are programmed ahead of demand."""

    argument = ("name", "Name; no two pools have the same")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the fields of a pool."""
        _add_fields(parser, needed=True)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Create it."""
        self.api.need()
        body = {"name": parsed_args.name, **self.given(parsed_args)}
        return command.fields(self.api.call("POST", "/function_pools", body=body))

    def given(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """The fields that are given, as a request says them."""
        given = {name: getattr(parsed, name, None) for name in _SENT if name != "name"}
        given["image_uuid"] = parsed.image and self.api.image_uuid(parsed.image)
        return {name: value for name, value in given.items() if value is not None}


class Set(Create):
    """Change a function pool."""

    argument = ("pool", "Name or uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the pool and what is to change."""
        parser.add_argument("--name", metavar="<name>", help="New name")
        _add_fields(parser, needed=False)
        parser.add_argument("--any-trait", action="store_true", help="Ask for no trait any more")
        parser.add_argument("--any-host", action="store_true", help="Use every host")
        parser.add_argument("--newest-image", action="store_true", help="Write the newest image")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Change it."""
        pool = self.api.pool(parsed_args.pool)
        body = {name: pool[name] for name in _SENT}
        forgotten = {
            "traits": [] if parsed_args.any_trait else body["traits"],
            "hosts": None if parsed_args.any_host else body["hosts"],
            "image_uuid": None if parsed_args.newest_image else body["image_uuid"],
        }
        body |= forgotten | self.given(parsed_args)
        body["name"] = parsed_args.name or body["name"]
        body = {name: value for name, value in body.items() if value is not None}
        return command.fields(self.api.call("PUT", f"/function_pools/{pool['uuid']}", body=body))


def _uuid(api: Api, text: str) -> str:
    return str(api.pool(text)["uuid"])


class Delete(command.Delete):
    """Delete function pools; what is programmed stays so."""

    collection = "function_pools"
    argument = ("pool", "Name or uuid")
    find = _uuid


class Miss(command.Table):
    """Report a request for a function that no free device ran; its pools grow for a while."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the function, or what asks for it."""
        either = parser.add_mutually_exclusive_group(required=True)
        either.add_argument("--function-id", metavar="<id>", help="The function that was missed")
        either.add_argument(
            "--device-profile", metavar="<profile>", help="Name of the profile that found no host"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Report it, and list the pools that count it."""
        self.api.need()
        profile, function = parsed_args.device_profile, parsed_args.function_id
        body = {"device_profile_name": profile} if profile else {"function_id": function}
        found = self.api.call("POST", "/function_misses", body=body)["function_pools"]
        if not found:
            sys.stderr.write("No function pool counts this.\n")
        return command.table(("uuid", "name"), found)


def _add_fields(parser: argparse.ArgumentParser, *, needed: bool) -> None:
    parser.add_argument(
        "--function-id", metavar="<id>", required=needed, help="Id of the function"
    )
    parser.add_argument(
        "--free", metavar="<count>", type=int, required=needed, help="Slots that are to be free"
    )
    parser.add_argument(
        "--max-devices",
        metavar="<count>",
        type=int,
        required=needed,
        help="The most deployables that may run it",
    )
    parser.add_argument("--description", metavar="<text>", help="A text for people")
    parser.add_argument(
        "--image", metavar="<image>", help="Name or uuid of the image; otherwise the newest one"
    )
    parser.add_argument("--hosts", metavar="<pattern>", help="Which hosts, for example fpga-*")
    parser.add_argument(
        "--trait",
        dest="traits",
        metavar="<trait>",
        action="append",
        help="A trait that a deployable must have (may be repeated)",
    )
