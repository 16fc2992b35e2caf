# SPDX-License-Identifier: Apache-2.0
"""``accelerator arq``: the requests of servers for devices."""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from cyborg.common import readable
from cyborg.osc import command, removals, waiting
from cyborg.osc.api import Api, is_uuid

#: Fields that differ between the ARQs of a profile.
_OF_EACH = ("uuid", "device_profile_group_id")


class List(command.Lister):
    """List accelerator requests (ARQs) of the project."""

    collection = "accelerator_requests"
    short = ("uuid", "state", "device_profile_name", "attach_handle_info", "instance_uuid")


def _uuid(_api: Api, text: str) -> str:
    if is_uuid(text):
        return text
    raise exceptions.CommandError(f"'{text}' is not a uuid; `arq list` shows the uuids of ARQs.")


class Show(command.Show):
    """Show an accelerator request (ARQ), and why it is in its state."""

    collection = "accelerator_requests"
    argument = ("accelerator_request", "Uuid")
    find = _uuid


class Create(command.ShowOne):
    """Create the accelerator requests (ARQs) of a device profile."""

    argument = ("device_profile_name", "Name of the profile")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what scripts give to the command of python-cyborgclient, which changes nothing."""
        for unused in ("--group-id", "--image-uuid"):
            parser.add_argument(unused, help=argparse.SUPPRESS)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Create them, and show what differs between several as lists."""
        body = {"device_profile_name": parsed_args.device_profile_name}
        first, *more = self.api.call("POST", "/accelerator_requests", body=body)["arqs"]
        several = {name: [first[name], *(arq[name] for arq in more)] for name in _OF_EACH}
        return command.fields({**first, **several} if more else first)


class Delete(command.Delete):
    """Delete accelerator requests (ARQs)."""

    collection = "accelerator_requests"
    argument = ("accelerator_request", "Uuid")
    find = _uuid


class _Change(command.ShowOne):
    argument = ("accelerator_request", "Uuid")

    def change(self, text: str, values: dict[str, str | None]) -> str:
        """Have fields of the ARQ set, or removed where they are None; return its path."""
        uuid = _uuid(self.api, text)
        changes = [
            {"op": "remove", "path": f"/{name}"}
            if value is None
            else {"op": "add", "path": f"/{name}", "value": value}
            for name, value in values.items()
        ]
        self.api.call("PATCH", "/accelerator_requests", body={uuid: changes})
        return f"/accelerator_requests/{uuid}"


class Bind(_Change):
    """Bind an accelerator request (ARQ) to a device, for a server."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the host, the server and the device."""
        parser.add_argument("hostname", metavar="<host>", help="Name of the device's host")
        parser.add_argument("instance_uuid", metavar="<server>", help="Name or uuid of the server")
        parser.add_argument(
            "device_rp_uuid",
            metavar="<resource-provider>",
            help="Uuid of a resource provider, or name of a deployable",
        )
        parser.add_argument(
            "project_id",
            metavar="<project>",
            nargs="?",
            help="Name or id of the server's project (admin only)",
        )
        parser.add_argument("--wait", action="store_true", help="Wait until it is Bound")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Bind it."""
        values: dict[str, str | None] = {
            "hostname": parsed_args.hostname,
            "instance_uuid": self.api.server_uuid(parsed_args.instance_uuid),
            "device_rp_uuid": self.api.provider_uuid(parsed_args.device_rp_uuid),
        }
        if parsed_args.project_id is not None:
            values["project_id"] = self.api.project_id(parsed_args.project_id)
        path = self.change(parsed_args.accelerator_request, values)
        if not parsed_args.wait:
            return command.fields(self.api.call("GET", path))
        arq = waiting.for_end(
            self.api.looks(path),
            lambda arq: arq["state"] != "BindStarted",
            lambda arq: [f"ARQ {arq['uuid']} is {arq['state']}"],
            "The bind goes on; `arq show` shows its state, `arq unbind` ends it.",
        )
        if arq["state"] != "Bound":
            told = readable.printable(arq.get("state_reason") or "")
            raise exceptions.CommandError(f"ARQ {arq['uuid']} is {arq['state']}: {told}")
        return command.fields(arq)


class Unbind(_Change):
    """Take the device from an accelerator request (ARQ)."""

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Unbind it."""
        bound = dict.fromkeys(("hostname", "instance_uuid", "device_rp_uuid"))
        path = self.change(parsed_args.accelerator_request, bound)
        return command.fields(self.api.call("GET", path))


class Release(removals.Removal):
    """Free what an ARQ holds, without the host step that it waits for (admin only)."""

    argument = ("accelerator_request", "Uuid")

    why = "Why; kept in the history"

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Free it."""
        self.api.need()
        uuid = _uuid(self.api, parsed_args.accelerator_request)
        path = f"/accelerator_requests/{uuid}/release"
        return self.remove(parsed_args, "POST", path, command.reason(parsed_args))
