# SPDX-License-Identifier: Apache-2.0
"""``accelerator host key``: with which keys a host signs its messages."""

from __future__ import annotations

import argparse
import urllib.parse

from cyborg.osc import command

#: The argument of each command.
_HOST = ("host", "Name of the host")


def _path(host: str) -> str:
    return f"/hosts/{urllib.parse.quote(host, safe='')}/keys"


class Enroll(command.ShowOne):
    """Enrol a public key of a host; messages signed with it are trusted."""

    argument = _HOST

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the key."""
        parser.add_argument(
            "key", metavar="<public-key>", help="The public key, from cyborg-agent key"
        )
        parser.add_argument(
            "--node",
            metavar="<node>",
            help="Name of the host's node, if that is another name than the host's with or "
            "without a domain",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Enrol it."""
        self.api.need()
        body = {"public_key": parsed_args.key, **command.given(parsed_args, "node")}
        return command.fields(self.api.call("POST", _path(parsed_args.host), body=body))


class List(command.Table):
    """List the keys of a host."""

    argument = _HOST

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """List them."""
        self.api.need()
        found = self.api.call("GET", _path(parsed_args.host))["keys"]
        return command.table(command.LISTS["hosts/{host}/keys"]["fields"], found)


class Revoke(command.Command):
    """Revoke a key of a host; messages signed with it are refused."""

    argument = _HOST

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add which keys."""
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--key", metavar="<fingerprint>", help="Revoke this key")
        which.add_argument("--all", action="store_true", help="Revoke every key of the host")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Revoke it."""
        self.api.need()
        query = {"fingerprint": parsed_args.key}
        self.api.call("DELETE", _path(parsed_args.host), query=query)
