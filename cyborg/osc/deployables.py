# SPDX-License-Identifier: Apache-2.0
"""``accelerator deployable``: what can be given out, and how it is programmed."""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from cyborg.osc import command, operations
from cyborg.osc.api import Row, is_uuid

#: The options that name a program in the API's words.
_PROGRAMS = ("function_id", "function_name", "layout")


class List(command.Lister):
    """List deployables."""

    collection = "deployables"
    short = ("name", "num_accelerators", "driver_name", "uuid")


class Show(command.ShowOne):
    """Show a deployable, its attributes and what it runs."""

    argument = ("deployable", "Name or uuid")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        return command.fields(self.api.deployable(parsed_args.deployable))


class Program(command.ShowOne):
    """Program a deployable with an image, a function or a layout.

    With an image as an argument it waits for the end, and shows the deployable. With an option it
    shows the operation, see "accelerator operation show".
    """

    argument = ("deployable", "Name or uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the deployable and its program."""
        parser.add_argument("old_image", metavar="<image>", nargs="?", help="Name or uuid")
        parser.add_argument("--image", metavar="<image>", help="Name or uuid of an image")
        parser.add_argument("--function-id", metavar="<id>", help="Id of a function")
        parser.add_argument("--function-name", metavar="<name>", help="Name of a function")
        parser.add_argument("--layout", metavar="<name>", help="Name of a layout of the card")
        parser.add_argument(
            "--wait", action="store_true", help="Wait for the end, and say how far it is"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Have it programmed."""
        given = ("old_image", "image", *_PROGRAMS)
        if sum(getattr(parsed_args, name) is not None for name in given) != 1:
            raise exceptions.CommandError(
                "Give one of --image, --function-id, --function-name and --layout, and no other."
            )
        if parsed_args.old_image is not None:
            return self._program(parsed_args.deployable, parsed_args.old_image)
        self.api.need()
        uuid = self.api.deployable(parsed_args.deployable)["uuid"]
        operation: Row = self.api.call(
            "POST", f"/deployables/{uuid}/program", body=_program(parsed_args)
        )
        if parsed_args.wait:
            operation = operations.wait(self.api, operation["uuid"])
        return operations.shown(operation)

    def _program(self, deployable: str, image: str) -> command.Shown:
        """Program it as older servers can, with the answer of older clients."""
        uuid = self.api.deployable(deployable)["uuid"]
        program = {"image_uuid": self.api.image_uuid(image)}
        patch = [{"op": "replace", "path": "/program", "value": [program]}]
        return command.fields(self.api.call("PATCH", f"/deployables/{uuid}/program", body=patch))


def _program(parsed: argparse.Namespace) -> dict[str, str]:
    if parsed.image is not None:
        return {"image_uuid" if is_uuid(parsed.image) else "image_name": parsed.image}
    return command.given(parsed, *_PROGRAMS)
