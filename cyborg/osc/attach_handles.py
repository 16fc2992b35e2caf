# SPDX-License-Identifier: Apache-2.0
"""``accelerator attach handle``: what guests are given, and its state."""

from __future__ import annotations

from cyborg.osc import command


class List(command.Lister):
    """List attach handles, with the state, the reason for it, and the user of each.

    With --state clean_failed: the handles that nobody gets, because their cleaning failed.
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
