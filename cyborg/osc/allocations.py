# SPDX-License-Identifier: Apache-2.0
"""``accelerator allocation``: all that a consumer that is no server has."""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from cyborg.osc import command
from cyborg.osc.api import Api

#: How an argument may name a consumer.
_WHO = "Uuid, or name if no other consumer has it"
_PLACING = "pack: fill hosts in use first; spread: the least used"


class List(command.Lister):
    """List the allocations of consumers that are no servers."""

    collection = "allocations"
    short = ("uuid", "consumer", "state", "hosts", "lease_ends_at")


class Show(command.Show):
    """Show what a consumer has."""

    collection = "allocations"
    argument = ("consumer", _WHO)
    find = Api.consumer_uuid


class Create(command.ShowOne):
    """Allocate all that a consumer needs, or nothing."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is needed, for whom and where."""
        parser.add_argument(
            "device_profile",
            metavar="<profile>",
            nargs="+",
            help="Device profile by name; of several the first one that there is room for",
        )
        text = "Type of the consumer, in capitals (default: USER)"
        parser.add_argument("--type", metavar="<type>", default="USER", help=text)
        parser.add_argument("--name", metavar="<name>", help="A name for people")
        parser.add_argument(
            "--consumer", metavar="<uuid>", help="Uuid of the consumer; without it a new one"
        )
        parser.add_argument("--hosts", metavar="<pattern>", help="Which hosts; * is any text")
        parser.add_argument("--placing", choices=["pack", "spread"], help=_PLACING)
        parser.add_argument(
            "--lease",
            dest="lease_seconds",
            type=int,
            metavar="<seconds>",
            help="Release it after so many seconds unless it is renewed",
        )
        parser.add_argument(
            "--dry-run", action="store_true", default=None, help="Only say whether there is room"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Allocate it."""
        self.api.need()
        given = {
            name: getattr(parsed_args, name)
            for name in ("hosts", "placing", "lease_seconds", "dry_run")
        }
        who: dict[str, Any] = {
            "uuid": parsed_args.consumer or str(uuid.uuid4()),
            "type": parsed_args.type,
            "name": parsed_args.name,
        }
        body = {
            "consumer": who,
            "alternatives": [
                {"device_profile_name": name} for name in parsed_args.device_profile
            ],
            **{name: value for name, value in given.items() if value is not None},
        }
        return command.fields(self.api.call("POST", "/allocations", body=body))


class Renew(command.ShowOne):
    """Renew the lease of an allocation."""

    argument = ("consumer", _WHO)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the consumer and the length."""
        parser.add_argument(
            "--lease",
            type=int,
            metavar="<seconds>",
            help="New length in seconds (default: the length it had)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Renew it."""
        consumer = self.api.consumer_uuid(parsed_args.consumer)
        body = {} if parsed_args.lease is None else {"lease_seconds": parsed_args.lease}
        return command.fields(self.api.call("POST", f"/allocations/{consumer}/renew", body=body))


class Delete(command.Command):
    """Give back what consumers have."""

    argument = ("consumer", _WHO)
    nargs = "+"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Give it back."""
        for consumer in [self.api.consumer_uuid(text) for text in parsed_args.consumer]:
            self.api.call("DELETE", f"/allocations/{consumer}")
