# SPDX-License-Identifier: Apache-2.0
"""``accelerator arq``: the requests of servers for devices."""

from __future__ import annotations

import argparse

from cyborg.osc import command, removals


class List(command.Lister):
    """List accelerator requests (ARQs) of the project."""

    collection = "accelerator_requests"
    short = ("uuid", "state", "device_profile_name", "attach_handle_info", "instance_uuid")


class Show(command.Show):
    """Show an accelerator request (ARQ), and why it is in its state."""

    collection = "accelerator_requests"
    argument = ("accelerator_request", "Uuid")


class Release(removals.Removal):
    """Free what an ARQ holds, without the host step that it waits for (admin only)."""

    argument = ("accelerator_request", "Uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the ARQ."""
        removals.add_force(parser)
        command.add_reason(parser, "Why; kept in the history")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Free it."""
        self.api.need()
        path = f"/accelerator_requests/{parsed_args.accelerator_request}/release"
        return self.remove(parsed_args, "POST", path, command.reason(parsed_args))
