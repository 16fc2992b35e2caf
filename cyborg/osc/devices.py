# SPDX-License-Identifier: Apache-2.0
"""``accelerator device``: the cards of all hosts."""

from __future__ import annotations

import argparse
from typing import ClassVar

from osc_lib import exceptions

from cyborg.osc import command, removals


class List(command.Lister):
    """List devices."""

    collection = "devices"
    short = ("uuid", "type", "vendor", "hostname", "address", "status", "health")


class Show(command.ShowOne):
    """Show a device."""

    argument = ("device", command.DEVICE)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        uuid = self.api.device_uuid(parsed_args.device)
        return command.fields(self.api.call("GET", f"/devices/{uuid}"))


class Set(command.Command):
    """Take devices out of service or put them back; keep them from most guests or end that."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what it is about."""
        parser.add_argument("devices", metavar="<device>", nargs="+", help=command.DEVICE)
        either = parser.add_mutually_exclusive_group(required=True)
        either.add_argument(
            "--disable",
            dest="action",
            action="store_const",
            const="disable",
            help="Take it out of service; a guest that has it keeps it",
        )
        either.add_argument(
            "--enable", dest="action", action="store_const", const="enable", help="Offer it again"
        )
        for action, text in (
            ("taint", "Taint it: only profiles with accel:tolerate_taint get it"),
            ("untaint", "Give it to every profile again"),
        ):
            either.add_argument(
                f"--{action}", dest="action", action="store_const", const=action, help=text
            )
        parser.add_argument(
            "--reason", metavar="<text>", help="Why that is done; kept, and shown to others"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Do it."""
        action, reason = parsed_args.action, parsed_args.reason
        if reason is not None or action in {"taint", "untaint"}:
            self.api.need()
        if reason is not None and action not in {"disable", "taint"}:
            raise exceptions.CommandError("Give --reason with --disable or --taint only.")
        body = None if reason is None else {"reason": reason}
        for uuid in [self.api.device_uuid(text) for text in parsed_args.devices]:
            self.api.call("POST", f"/devices/{uuid}/{action}", body=body)


class Enable(command.Command):
    """Offer a device again."""

    action: ClassVar[str] = "enable"

    argument = ("device", command.DEVICE)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Do it."""
        self.api.call("POST", f"/devices/{self.api.device_uuid(parsed_args.device)}/{self.action}")


class Disable(Enable):
    """Give a device to nobody else; a guest that has it keeps it."""

    action = "disable"


class Delete(removals.Removal):
    """Remove the record of a device that is gone for good."""

    argument = ("device", command.DEVICE)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the device."""
        removals.add_force(parser)
        removals.add_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Remove it."""
        self.api.need()
        uuid = self.api.device_uuid(parsed_args.device)
        return self.remove(parsed_args, "DELETE", f"/devices/{uuid}")
