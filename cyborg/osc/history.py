# SPDX-License-Identifier: Apache-2.0
"""``accelerator history`` and ``accelerator usage``: who had what, and how much of it."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from cyborg.osc import command


class List(command.Lister):
    """List what happened to accelerators, oldest first.

    With --server and --kind bind_failed it shows why a server did not get its accelerators.
    """

    collection = "history"
    is_new = True
    short = ("started_at", "ended_at", "kind", "hostname", "instance_uuid", "reason")
    rest = (
        "uuid",
        "device_uuid",
        "attach_handle_uuid",
        "resource_class",
        "project_id",
        "arq_uuid",
        "image_uuid",
        "function_id",
        "actor",
    )
    filters: ClassVar = {"kind": "Only entries of this kind"}

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the filters that take a name."""
        parser.add_argument(
            "--device",
            metavar="<device>",
            help="Uuid, also of a device that is gone, or name of one of its deployables",
        )
        parser.add_argument("--server", metavar="<server>", help="Name or uuid")
        parser.add_argument("--project", metavar="<project>", help="Name or id (admin only)")

    def query(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """The uuids of what is named."""
        device, server, project = parsed.device, parsed.server, parsed.project
        return {
            "device_uuid": device and self.api.device_uuid(device),
            "instance_uuid": server and self.api.server_uuid(server),
            "project_id": project and self.api.project_id(project),
        }


class Usages(command.Table):
    """List how many accelerators are in use, and the accelerator-hours of a period.

    What ended before known_since does not count.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the period and the projects."""
        parser.add_argument("--start", metavar="<time>", help="Begin of the period, in ISO 8601")
        parser.add_argument("--end", metavar="<time>", help="End of the period, in ISO 8601")
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--project", metavar="<project>", help="Name or id (admin only)")
        either.add_argument(
            "--all-projects", action="store_true", default=None, help="All projects (admin only)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """List them."""
        self.api.need()
        project = parsed_args.project
        query = {
            "start": parsed_args.start,
            "end": parsed_args.end,
            "project_id": project and self.api.project_id(project),
            "all_projects": parsed_args.all_projects,
        }
        answer = self.api.call("GET", "/usages", query=query)
        columns = ("project_id", "resource_class", "in_use", "hours", "known_since")
        rows = [{**row, "known_since": answer["known_since"]} for row in answer["usages"]]
        return columns, [tuple(command.shown(row[name]) for name in columns) for row in rows]
