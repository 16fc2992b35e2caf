# SPDX-License-Identifier: Apache-2.0
"""``accelerator arq``: the claims of servers to devices."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from cyborg.osc import command, removals


class List(command.Lister):
    """List accelerator requests (ARQs) of the project."""

    collection = "accelerator_requests"
    key = "arqs"
    short = ("uuid", "state", "device_profile_name", "instance_uuid", "attach_handle_info")
    rest = (
        "attach_handle_type",
        "health",
        "state_reason",
        "hostname",
        "device_rp_uuid",
        "project_id",
        "device_profile_group_id",
        "attach_handle_uuid",
        "created_at",
        "updated_at",
    )
    filters: ClassVar = {
        "state": "Only requests in this state",
        "hostname": "Only requests bound to this host",
    }

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the filters that take a name."""
        parser.add_argument("--server", metavar="<server>", help="Name or uuid")
        parser.add_argument("--device-profile", metavar="<profile>", help="Name")
        parser.add_argument(
            "--resource-provider",
            metavar="<provider>",
            help="Uuid of a resource provider, or name of a deployable",
        )
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--project", metavar="<project>", help="Name or id (admin only)")
        either.add_argument(
            "--all-projects", action="store_true", default=None, help="All projects (admin only)"
        )

    def query(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """The uuids of what is named."""
        api, provider = self.api, parsed.resource_provider
        query = {
            "device_profile_name": parsed.device_profile,
            "device_rp_uuid": provider and api.provider_uuid(provider),
            "project_id": parsed.project and api.project_id(parsed.project),
            "all_projects": parsed.all_projects,
        }
        if any(query.values()):
            api.need()
        return {**query, "instance": parsed.server and api.server_uuid(parsed.server)}


class Show(command.ShowOne):
    """Show an accelerator request (ARQ), and why it is in its state."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the ARQ."""
        parser.add_argument("accelerator_request", metavar="<accelerator_request>", help="Uuid")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        path = f"/accelerator_requests/{parsed_args.accelerator_request}"
        return command.fields(self.api.call("GET", path))


class Release(removals.Removal):
    """Free what an ARQ holds, without the host step that it waits for (admin only)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the ARQ."""
        parser.add_argument("accelerator_request", metavar="<accelerator_request>", help="Uuid")
        removals.add_force(parser)
        parser.add_argument("--reason", metavar="<text>", help="Why; kept in the history")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Free it."""
        self.api.need()
        path = f"/accelerator_requests/{parsed_args.accelerator_request}/release"
        if parsed_args.reason is None:
            return self.remove(parsed_args, "POST", path)
        return self.remove(parsed_args, "POST", path, {"reason": parsed_args.reason})
