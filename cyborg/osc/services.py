# SPDX-License-Identifier: Apache-2.0
"""``accelerator service``: agents and conductors."""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from cyborg.osc import command, removals
from cyborg.osc.api import Api, is_uuid


class List(command.Lister):
    """List agents and conductors."""

    collection = "services"
    short = ("host", "binary", "state", "last_seen", "uuid")


class Delete(removals.Removal):
    """Remove the record of a host that is down for good."""

    argument = ("service", "Uuid, or host of an agent")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Remove it."""
        uuid = _uuid(self.api, parsed_args.service)
        return self.remove(parsed_args, "DELETE", f"/services/{uuid}")


def _uuid(api: Api, text: str) -> str:
    api.need()
    if is_uuid(text):
        return text
    for row in api.list("services", {"host": text, "binary": "cyborg-agent"}):
        return str(row["uuid"])
    raise exceptions.CommandError(f"No service has the uuid '{text}', and no agent has that host.")


class Show(command.Show):
    """Show an agent or a conductor."""

    collection = "services"
    argument = ("service", "Uuid, or host of an agent")
    find = _uuid
