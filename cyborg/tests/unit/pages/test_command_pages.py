# SPDX-License-Identifier: Apache-2.0
"""The commands in the pages exist, and take what the pages give them."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import pathlib
import re
import runpy
import shlex

import pytest
from openstackclient import shell

DOC = pathlib.Path(__file__).parents[4] / "doc" / "source"
REFERENCE = DOC / "reference" / "accelerator-commands.rst"

_COMMAND = re.compile(
    r"^ +(?:\$ )?openstack (?:--\S+ \S+ )*([a-z]+ (?:.*\\\n)*.*)",
    re.MULTILINE,
)
_OURS = "openstack.cyborg.v2"
#: Whose commands are looked at; the plugins of Ironic and Placement are not installed here.
_GROUPS = ("accelerator.v2", "common", "compute.v2", "identity.v3", "image.v2", "network.v2")
_OF_OTHERS = (["baremetal"], ["resource", "provider"])


def commands(page: pathlib.Path) -> list[list[str]]:
    found = []
    for line in _COMMAND.findall(page.read_text()):
        alone, *_where_to = re.split(r" [|>]", line.replace("\\\n", " "))
        whole = alone.replace("$each", "public")
        whole = whole.replace("$SERVICE", "--service accelerator --region RegionOne")
        words = shlex.split(whole, comments=True)
        if not any(words[: len(prefix)] == prefix for prefix in _OF_OTHERS):
            found.append(words)
    return found


PAGES = [page for page in sorted(DOC.rglob("*.rst")) if commands(page)]


@pytest.fixture(scope="module")
def program() -> shell.OpenStackShell:
    program = shell.OpenStackShell()
    for group in (*(f"openstack.{name}" for name in _GROUPS), _OURS):
        program.command_manager.add_command_group(group)
    return program


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOC)))
def test_every_command_is_taken(page: pathlib.Path, program: shell.OpenStackShell) -> None:
    for words in commands(page):
        factory, name, arguments = program.command_manager.find_command(words)
        parser = factory(program, argparse.Namespace()).get_parser(name)
        parser.parse_args(arguments)


def test_the_reference_has_every_command() -> None:
    text = REFERENCE.read_text()
    for entry in importlib.metadata.entry_points(group=_OURS):
        assert f"openstack {entry.name.replace('_', ' ')}" in text


def test_the_table_of_lists_is_that_of_the_api() -> None:
    written = runpy.run_path(str(DOC.parents[1] / "tools" / "cli_table.py"))
    assert json.loads(written["TABLE"].read_text()) == written["table"]()
