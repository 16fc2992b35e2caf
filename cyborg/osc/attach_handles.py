# SPDX-License-Identifier: Apache-2.0
"""``accelerator attach handle``: what guests are given, and its state."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from cyborg.osc import command


class List(command.Lister):
    """List attach handles: the state of each, why it has it, and who has it.

    With --state clean_failed it shows what is given to nobody since it is not clean.
    """

    collection = "attach_handles"
    is_new = True
    short = ("uuid", "hostname", "attach_handle_info", "state", "instance_uuid", "state_reason")
    rest = (
        "attach_handle_type",
        "resource_class",
        "device_uuid",
        "deployable_uuid",
        "arq_uuid",
        "project_id",
        "created_at",
        "updated_at",
    )
    filters: ClassVar = {
        "state": "Only handles in this state",
        "hostname": "Only handles of this host",
    }

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the filters that take a name."""
        parser.add_argument("--device", metavar="<device>", help=command.DEVICE)
        parser.add_argument("--server", metavar="<server>", help="Name or uuid")

    def query(self, parsed: argparse.Namespace) -> dict[str, Any]:
        """The uuids of what is named."""
        device, server = parsed.device, parsed.server
        return {
            "device_uuid": device and self.api.device_uuid(device),
            "instance_uuid": server and self.api.server_uuid(server),
        }
