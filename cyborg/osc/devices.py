# SPDX-License-Identifier: Apache-2.0
"""``accelerator device``: the cards of all hosts."""

from __future__ import annotations

import argparse
from typing import ClassVar

from osc_lib import exceptions

from cyborg.osc import command, removals
from cyborg.osc.api import Api


class List(command.Lister):
    """List devices."""

    collection = "devices"
    short = ("hostname", "address", "type", "vendor", "status", "health", "uuid")


class Show(command.Show):
    """Show a device."""

    collection = "devices"
    argument = ("device", command.DEVICE)
    find = Api.device_uuid


class Set(command.Command):
    """Enable or disable devices; taint devices or remove the taint."""

    argument = ("device", command.DEVICE)
    nargs = "+"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is done, and why."""
        command.add_choice(
            parser.add_mutually_exclusive_group(required=True),
            "action",
            disable="Take it out of service; a guest that has it keeps it",
            enable="Offer it again",
            taint="Taint it: only profiles with accel:tolerate_taint get it",
            untaint="Give it to every profile again",
        )
        command.add_reason(parser, "Why that is done; kept, and shown to others")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Do it."""
        action, reason = parsed_args.action, parsed_args.reason
        if reason is not None or action in {"taint", "untaint"}:
            self.api.need()
        if reason is not None and action not in {"disable", "taint"}:
            raise exceptions.CommandError("Give --reason with --disable or --taint only.")
        body = command.reason(parsed_args)
        for uuid in [self.api.device_uuid(text) for text in parsed_args.device]:
            self.api.call("POST", f"/devices/{uuid}/{action}", body=body)


class Enable(command.Command):
    """Offer a device again."""

    action: ClassVar[str] = "enable"

    argument = ("device", command.DEVICE)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Do it."""
        self.api.call("POST", f"/devices/{self.api.device_uuid(parsed_args.device)}/{self.action}")


class Disable(Enable):
    """Disable a device: no new guest gets it; a guest that has it keeps it."""

    action = "disable"


class Delete(removals.Removal):
    """Remove the record of a device that is gone for good."""

    argument = ("device", command.DEVICE)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Remove it."""
        self.api.need()
        uuid = self.api.device_uuid(parsed_args.device)
        return self.remove(parsed_args, "DELETE", f"/devices/{uuid}")
