# SPDX-License-Identifier: Apache-2.0
"""The pages for contributors name files, functions and rooms that exist."""

from __future__ import annotations

import ast
import collections
import configparser
import pathlib
import re
from collections.abc import Iterator

import pytest

from cyborg.tests import room_option

ROOT = pathlib.Path(__file__).parents[4]
FOLDER = ROOT / "doc" / "source" / "contributor"
PAGES = [*FOLDER.glob("*.rst"), ROOT / "README.rst"]

#: Below what a page may name a file.
_BASES = (ROOT, ROOT / "cyborg", ROOT / "cyborg" / "tests")

_LITERAL = re.compile(r"``([^`]+)``")
_FILE = re.compile(r"\b(?:(?:api-ref|cyborg|doc|tools)/[\w./-]+|[\w/-]+/\w+\.py)")
_MEMBER = re.compile(r"(\w+)\.(\w+)(?:\(\))?")
#: What looks like a member and is none: names of files, and objects in examples.
_NO_MEMBER = re.compile(r".*\.(?:cfg|ids|py|rst|toml)|host\..*")
_ROW = re.compile(r"^   (\d+),``(\w+)``,", re.MULTILINE)


def literals(page: pathlib.Path) -> list[str]:
    return [" ".join(found.split()) for found in _LITERAL.findall(page.read_text())]


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements define or import."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


@pytest.fixture(scope="module")
def members() -> dict[str, set[str]]:
    """The names in each module and class, by its name; modules of one name count as one."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for path in (ROOT / "cyborg").rglob("*.py"):
        tree = ast.parse(path.read_text())
        module = path.parent if path.stem == "__init__" else path
        found[module.stem].update(defined(tree.body))
        found[path.parent.name].add(path.stem)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].update(defined(node.body))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_function_exists(page: pathlib.Path, members: dict[str, set[str]]) -> None:
    named = literals(page)
    files = [path for text in named for path in _FILE.findall(text)]
    assert [path for path in files if not any((base / path).exists() for base in _BASES)] == []
    found = [_MEMBER.fullmatch(text) for text in named if not _NO_MEMBER.fullmatch(text)]
    assert [each[0] for each in found if each and each[2] not in members.get(each[1], ())] == []


def rooms() -> list[tuple[str, str]]:
    """Those of the import linter, with the numbers of their layers."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    layers = parser["importlinter:contract:layers"]["layers"].split("\n")[1:]
    return [
        (str(number), room)
        for number, layer in enumerate(layers, 1)
        for room in re.findall(r"\w+", layer)
    ]


def test_the_table_of_rooms_is_that_of_the_import_linter() -> None:
    assert _ROW.findall((FOLDER / "architecture.rst").read_text()) == rooms()


def test_each_room_has_tests() -> None:
    """By ``pytest --room``; and no room has them all."""
    modules = list((ROOT / "cyborg" / "tests").rglob("test_*.py"))
    for room in {name for _layer, name in rooms()} - {"tests"}:
        found = [module for module in modules if room_option.is_of(module, room)]
        assert 0 < len(found) < len(modules) / 2, room


def test_the_release_notes_are_one_short_page() -> None:
    page = ROOT / "doc" / "source" / "admin" / "release-notes.rst"
    assert len(page.read_text().splitlines()) <= 150
    assert not (ROOT / "releasenotes").exists(), f"what a release brings stands in {page}"
