# SPDX-License-Identifier: Apache-2.0
"""``accelerator allocation``: all that a consumer that is no server has."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator, Mapping

from osc_lib import exceptions

from cyborg.common import handle_words
from cyborg.osc import command, containers
from cyborg.osc.api import Api, Row

#: How an argument may name a consumer.
_WHO = "Uuid, or name if no other consumer has it"
_PLACING = "pack: fill hosts in use first; spread: the least used"
#: The state of a dry run without room.
_IMPOSSIBLE = "Impossible"
#: Keys of ``--part``, beside those of a request group, and the fields of the request.
_PART = {
    "profile": "device_profile_name",
    "count": "count",
    "hosts": "hosts",
    "provider": "device_rp_uuid",
}


class List(command.Lister):
    """List the allocations of consumers that are no servers."""

    collection = "allocations"
    short = ("name", "type", "state", "hosts", "lease_ends_at", "uuid")

    def rows(self, parsed: argparse.Namespace) -> Iterator[Row]:
        """The rows, with what people call a consumer in columns of their own."""
        for row in super().rows(parsed):
            yield row | {key: row["consumer"][key] for key in ("name", "type")}


class _Shown(command.ShowOne):
    """A command that shows an allocation, or what a container takes of it."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add how to show it."""
        containers.add_options(parser)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; text for a container is written as it is."""
        if parsed_args.text_for is not None and parsed_args.formatter == "table":
            parsed_args.formatter = "value"
        return int(super().run(parsed_args))

    def shown(self, allocation: Row, parsed_args: argparse.Namespace) -> command.Shown:
        """The fields, or the text for a container."""
        wanted = parsed_args.text_for
        if wanted is None:
            return command.fields(allocation)
        return (wanted,), (containers.text(self.api, allocation, parsed_args),)


class Show(_Shown):
    """Show what a consumer has."""

    argument = ("consumer", _WHO)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        consumer = self.api.consumer_uuid(parsed_args.consumer)
        return self.shown(self.api.call("GET", f"/allocations/{consumer}"), parsed_args)


class Create(_Shown):
    """Allocate all that a consumer needs, or nothing.

    Without --consumer each call is for a new consumer.
    """

    _has_no_room = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is needed, for whom and where."""
        super().add_arguments(parser)
        _add_needs(parser)
        text = "Type of the consumer, in capitals (default: USER)"
        parser.add_argument("--type", metavar="<type>", default="USER", help=text)
        parser.add_argument("--name", metavar="<name>", help="A name for people")
        parser.add_argument(
            "--consumer", metavar="<uuid>", help="Uuid of the consumer; without it a new one"
        )
        parser.add_argument(
            "--nqn",
            metavar="<nqn>",
            help="NQN by which the consumer's host connects to remote NVMe",
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
        either = parser.add_mutually_exclusive_group()
        text = "Only say whether there is room; exit status 1 if there is none"
        either.add_argument("--dry-run", action="store_true", default=None, help=text)
        text = "Wait until it is ready, and say how far it is"
        either.add_argument("--wait", action="store_true", help=text)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; a dry run that finds no room fails."""
        status = super().run(parsed_args)
        return status or int(self._has_no_room)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Allocate it."""
        self.api.need()
        who: Row = {
            "uuid": parsed_args.consumer or str(uuid.uuid4()),
            "type": parsed_args.type,
            "name": parsed_args.name,
            **command.given(parsed_args, "nqn"),
        }
        body = {
            "consumer": who,
            **_needs(self.api, parsed_args),
            **command.given(parsed_args, "hosts", "placing", "lease_seconds", "dry_run"),
        }
        allocation: Row = self.api.call("POST", "/allocations", body=body)
        self._has_no_room = allocation["state"] == _IMPOSSIBLE
        if parsed_args.wait:
            allocation = containers.ready(self.api, allocation)
        return self.shown(allocation, parsed_args)


def _add_needs(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument(
        "device_profile",
        metavar="<profile>",
        nargs="*",
        default=[],
        help="Device profile by name; of several the first one that there is room for",
    )
    command.add_group(either)
    either.add_argument(
        "--shares",
        dest="groups",
        metavar="<number>",
        type=_shares,
        help="Number of shares of one GPU, for containers; shares of a GPU are not isolated "
        "from each other",
    )
    either.add_argument(
        "--part",
        dest="parts",
        metavar="<key=value>[,<key=value>...]",
        type=command.pairs,
        action="append",
        help="One of several parts that are allocated together, each on one host: "
        "profile=<name> or keys of a request group, and perhaps count=, hosts= and "
        "provider= (may be repeated)",
    )
    text = "How often it is wanted, on one host or several"
    parser.add_argument("--count", type=int, metavar="<number>", help=text)
    text = "Resource provider that is to serve all of it: uuid, or name of a deployable"
    parser.add_argument("--provider", metavar="<provider>", help=text)


def _shares(number: str) -> list[Row]:
    """The request group of so many shares."""
    return [{f"resources:{handle_words.SHARE_CLASS}": str(int(number))}]


def _needs(api: Api, parsed: argparse.Namespace) -> Row:
    """The fields of the request that say what is needed."""
    often = command.given(parsed, "count", "provider")
    if parsed.parts:
        if often:
            raise exceptions.CommandError("Say count= and provider= in each --part.")
        return {"parts": [_part(api, part) for part in parsed.parts]}
    if "provider" in often:
        often["device_rp_uuid"] = api.provider_uuid(often.pop("provider"))
    names = parsed.device_profile
    needs: list[Row] = [{"device_profile_name": name} for name in names]
    needs = needs or [{"groups": parsed.groups}]
    needs = [{"parts": [need | often]} for need in needs] if often else needs
    return {"alternatives": needs} if names else needs[0]


def _part(api: Api, given: Mapping[str, str]) -> Row:
    """A part of the request, of an argument of ``--part``."""
    group = {key: value for key, value in given.items() if ":" in key}
    part: Row = {"groups": [group]} if group else {}
    for key in given.keys() - group.keys():
        value = given[key]
        if key not in _PART or (key == "count" and not value.isdecimal()):
            raise exceptions.CommandError(
                f"--part: {key}={value} is none of {', '.join(f'{name}=' for name in _PART)} with "
                "a value, and no key of a request group."
            )
        number = int(value) if key == "count" else value
        part[_PART[key]] = api.provider_uuid(value) if key == "provider" else number
    return part


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
    """Delete allocations: the consumers give their accelerators back."""

    argument = ("consumer", _WHO)
    nargs = "+"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Give it back."""
        for consumer in [self.api.consumer_uuid(text) for text in parsed_args.consumer]:
            self.api.call("DELETE", f"/allocations/{consumer}")
