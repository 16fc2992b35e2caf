# SPDX-License-Identifier: Apache-2.0
"""Commands that may give something up, which they then list."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from cyborg.osc import command


class Removal(command.Table):
    """A command that lists what was given up."""

    #: The help of ``--reason``.
    why: ClassVar[str] = "Why; the history keeps it"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what permits it, and the reason."""
        text = "Do it although a guest may still have the device; prints what to clean up by hand"
        parser.add_argument("--force", action="store_true", help=text)
        command.add_reason(parser, self.why)

    def remove(
        self, parsed: argparse.Namespace, method: str, path: str, body: Any = None
    ) -> command.Shown:
        """Ask for it, and list what was given up."""
        reason = parsed.reason if method == "DELETE" else None
        query = {"force": parsed.force or None, "reason": reason}
        given_up: dict[str, Any] = self.api.call(method, path, query=query, body=body)["given_up"]
        rows = [("device", uuid, "") for uuid in given_up["devices"]]
        rows += [("resource provider", uuid, "") for uuid in given_up["resource_providers"]]
        rows += [("accelerator request", arq["uuid"], _told(arq)) for arq in given_up["arqs"]]
        rows += [("not excluded", "", text) for text in given_up.get("not_excluded", ())]
        return ("given_up", "uuid", "detail"), rows


def _told(arq: dict[str, Any]) -> str:
    named = {
        "state": "was",
        "instance_uuid": "of server",
        "hostname": "on",
        "host_step": "without host step",
        "last_error": "which failed with",
    }
    return ", ".join(f"{text} {arq[name]}" for name, text in named.items() if arq[name])
