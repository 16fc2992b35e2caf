# SPDX-License-Identifier: Apache-2.0
"""``accelerator history`` and ``accelerator usage``: who had what, and how much of it."""

from __future__ import annotations

import argparse

from cyborg.osc import command


class List(command.Lister):
    """List what happened to accelerators, oldest first.

    With --server and --kind bind_failed it shows why a server did not get its accelerators.
    """

    collection = "history"
    short = (
        "started_at",
        "kind",
        "resource_class",
        "attach_handle_info",
        "device_profile_name",
        "hostname",
        "ended_at",
        "reason",
        "instance_uuid",
    )


class Usages(command.Table):
    """List how many accelerators are in use, and the accelerator-hours of a period.

    Uses that ended before known_since do not count.
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
        columns = (*command.LISTS["usages"]["fields"], "known_since")
        rows = [{**row, "known_since": answer["known_since"]} for row in answer["usages"]]
        return command.table(columns, rows)
