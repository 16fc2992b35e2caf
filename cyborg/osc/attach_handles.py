# SPDX-License-Identifier: Apache-2.0
"""``accelerator attach handle``: what guests are given, and its state."""

from __future__ import annotations

from cyborg.osc import command


class List(command.Lister):
    """List attach handles: the state of each, why it has it, and who has it.

    With --state clean_failed it shows those that nobody gets, since they could not be cleaned.
    """

    collection = "attach_handles"
    short = (
        "hostname",
        "attach_handle_info",
        "resource_class",
        "state",
        "state_reason",
        "instance_uuid",
        "uuid",
    )
