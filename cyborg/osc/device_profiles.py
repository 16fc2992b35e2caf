# SPDX-License-Identifier: Apache-2.0
"""``accelerator device profile``: what users may ask for."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from osc_lib import exceptions

from cyborg.common import readable
from cyborg.osc import command
from cyborg.osc.api import Row


class List(command.Lister):
    """List device profiles."""

    collection = "device_profiles"
    short = ("name", "groups", "description", "fits", "uuid")


class Show(command.ShowOne):
    """Show a device profile."""

    argument = ("device_profile", "Name or uuid")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Show it."""
        found: Row = self.api.call("GET", f"/device_profiles/{parsed_args.device_profile}")
        return command.fields(found.get("device_profile", found))


class Create(command.ShowOne):
    """Create a device profile."""

    argument = ("name", "Name; no two profiles have the same")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the fields of a profile."""
        either = parser.add_mutually_exclusive_group(required=True)
        either.add_argument(
            "groups",
            metavar="<groups>",
            nargs="?",
            type=_groups,
            help="""JSON, for example '[{"resources:FPGA": "1"}]'""",
        )
        command.add_group(either)
        parser.add_argument("--description", metavar="<text>", help="A text for people")
        parser.add_argument("--private", action="store_true", help="Show it to some projects only")
        _add_projects(parser, "Share a private profile with this project (may be repeated)")
        _add_extra(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Create it."""
        body = command.given(parsed_args, "name", "groups", "description")
        if parsed_args.private or parsed_args.projects:
            self.api.need()
            projects = [self.api.project_id(text) for text in parsed_args.projects or ()]
            body |= {"visibility": "private", "projects": projects}
        if parsed_args.extra:
            self.api.need()
            body["extra"] = dict(parsed_args.extra)
        sent = body if self.api.has_all() else [body]
        return command.fields(self.api.call("POST", "/device_profiles", body=sent))


class Set(command.ShowOne):
    """Change a device profile. Accelerator requests that exist keep what they asked for."""

    argument = ("device_profile", "Name or uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the profile and what is to change."""
        parser.add_argument("--name", metavar="<name>", help="New name")
        parser.add_argument("--description", metavar="<text>", help="New text for people")
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--groups", metavar="<groups>", type=_groups, help="New groups, JSON")
        command.add_group(either)
        either = parser.add_mutually_exclusive_group()
        command.add_choice(
            either,
            "visibility",
            private="Show it to some projects only",
            public="Show it to all projects",
        )
        _add_projects(parser, "Share it with this project too (may be repeated)")
        _add_extra(parser)
        either = parser.add_mutually_exclusive_group()
        command.add_choice(
            either, "state", enable="Permit new requests", disable="Refuse new ones"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Change it."""
        if parsed_args.state is not None:
            self.api.need()
            path = f"/device_profiles/{parsed_args.device_profile}/{parsed_args.state}"
            self.api.call("POST", path)
        body = _present(self, parsed_args.device_profile)
        body |= command.given(parsed_args, "name", "description", "groups", "visibility")
        added = [self.api.project_id(text) for text in parsed_args.projects or ()]
        kept = body["projects"] if body["visibility"] == "private" else []
        body["projects"] = [*kept, *added]
        if parsed_args.extra:
            body["extra"] = {**body["extra"], **dict(parsed_args.extra)}
        return _replace(self, parsed_args.device_profile, body)


class Unset(command.ShowOne):
    """Take something away from a device profile."""

    argument = ("device_profile", "Name or uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the profile and what goes."""
        parser.add_argument("--description", action="store_true", help="The text for people")
        parser.add_argument(
            "--extra", metavar="<name>", action="append", help="A description (may be repeated)"
        )
        _add_projects(parser, "Do not share it with this project any more (may be repeated)")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """Take it away."""
        body = _present(self, parsed_args.device_profile)
        gone = {self.api.project_id(text) for text in parsed_args.projects or ()}
        if unknown := gone - set(body["projects"]):
            raise exceptions.CommandError(
                f"Profile {parsed_args.device_profile} is not shared with {', '.join(unknown)}."
            )
        body["projects"] = [project for project in body["projects"] if project not in gone]
        if parsed_args.description:
            body["description"] = None
        for name in parsed_args.extra or ():
            body["extra"].pop(name, None)
        return _replace(self, parsed_args.device_profile, body)


class Delete(command.Delete):
    """Delete device profiles that no accelerator request uses."""

    collection = "device_profiles"
    argument = ("device_profile", "Name or uuid")


class Candidates(command.Table):
    """List the hosts that can serve a device profile, best first."""

    argument = ("device_profile", "Name or uuid")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the profile and the bound."""
        parser.add_argument("--limit", type=int, metavar="<count>", help="List at most so many")

    def take_action(self, parsed_args: argparse.Namespace) -> command.Shown:
        """List them, one line for each group."""
        self.api.need()
        answer = self.api.call(
            "GET",
            f"/device_profiles/{parsed_args.device_profile}/candidates",
            query={"limit": parsed_args.limit},
        )
        if answer.get("reason"):
            sys.stderr.write(f"{readable.printable(answer['reason'])}\n")
        rows = [
            {"hostname": candidate["hostname"], **group}
            for candidate in answer["candidates"]
            for group in candidate["groups"]
        ]
        columns = ["hostname", "deployable_name", "group", "preferred", "reprogram"]
        if parsed_args.formatter != "table":
            return command.table([*columns, "deployable_uuid"], rows)
        if all(row["preferred"] is None for row in rows):
            columns.remove("preferred")
        if not any(row["group"] for row in rows):
            columns.remove("group")
        return command.table(columns, rows)


def _present(show: command.ShowOne, text: str) -> Row:
    """The profile as a request to replace it says it."""
    show.api.need()
    profile: Row = show.api.call("GET", f"/device_profiles/{text}")
    return {name: profile.get(name, []) for name in command.REPLACED["device_profiles"]}


def _replace(show: command.ShowOne, text: str, body: Row) -> command.Shown:
    shared = body if body["visibility"] == "private" else {**body, "projects": []}
    sent = {name: value for name, value in shared.items() if value not in (None, [], {})}
    return command.fields(show.api.call("PUT", f"/device_profiles/{text}", body=sent))


def _add_projects(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--project", dest="projects", metavar="<project>", action="append", help=text
    )


def _add_extra(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extra",
        metavar="<name=text>",
        type=_pair,
        action="append",
        help="A description under a name, for people (may be repeated)",
    )


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError("it must be of the form name=text")
    return name, value


def _groups(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"the groups are not JSON: {exc}") from exc
