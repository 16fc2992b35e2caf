# SPDX-License-Identifier: Apache-2.0
"""``accelerator device attribute``: facts about deployables."""

from __future__ import annotations

import argparse

from cyborg.osc import command


class List(command.Lister):
    """List attributes."""

    collection = "attributes"
    short = ("key", "value", "uuid", "deployable_uuid")


class Show(command.Show):
    """Show an attribute."""

    collection = "attributes"
    argument = ("attribute", "Uuid")


class Delete(command.Delete):
    """Delete attributes that an administrator has made."""

    collection = "attributes"
    argument = ("attribute", "Uuid")


class Create(command.ShowOne):
    """Give a deployable an attribute."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the deployable and the fact."""
        parser.add_argument(
            "deployable", metavar="<deployable>", help="Name, uuid or the number of its row"
        )
        parser.add_argument("key", metavar="<key>", help="Key of the attribute")
        parser.add_argument("value", metavar="<value>", help="Value of the attribute")
        parser.add_argument(
            "--also",
            metavar="<deployable>",
            action="append",
            help="One more deployable (may be repeated); either all of them get the attribute "
            "or none",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Make it."""
        if parsed_args.also:
            self.api.need()
        body = {"key": parsed_args.key, "value": parsed_args.value}
        deployable: str = parsed_args.deployable
        if deployable.isdecimal() or not self.api.has_all():
            body["deployable_id"] = deployable
        else:
            body["deployable_uuid"] = self.api.deployable(deployable)["uuid"]
        if not parsed_args.also:
            return command.fields(self.api.call("POST", "/attributes", body=body))
        more = ({"deployable_uuid": self.api.deployable(text)["uuid"]} for text in parsed_args.also)
        fact = {"key": parsed_args.key, "value": parsed_args.value}
        several = {"attributes": [body, *({**fact, **each} for each in more)]}
        made = self.api.call("POST", "/attributes", body=several)["attributes"]
        uuids = {name: [row[name] for row in made] for name in ("uuid", "deployable_uuid")}
        return command.fields({**fact, **uuids})
