# SPDX-License-Identifier: Apache-2.0
"""``--help`` of each command says first what it does, and its page leaves nothing of it out."""

from __future__ import annotations

import configparser
import functools
import importlib
import pathlib
import re
import runpy
import sys
from collections.abc import Callable, Iterator

import pytest
from oslo_config import cfg

ROOT = pathlib.Path(__file__).parents[4]
PAGES = ROOT / "doc" / "source"


def _commands() -> dict[str, str]:
    """The module of each command of ours."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = parser["entry_points"]["console_scripts"].split("\n")
    found = dict(re.split(r"\s*=\s*|:", line)[:2] for line in lines if line)
    # It takes what the agent gives it, and has no help.
    del found["cyborg-privsep-helper"]
    return found


COMMANDS = _commands()

Say = Callable[..., str]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command prints with ``--help``, on a terminal of 80 columns."""

    def said(command: str, *words: str) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
        monkeypatch.setattr(sys, "argv", [command])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(COMMANDS[command]).main([*words, "--help"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return said


def _helps(say: Say, command: str, *words: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The help of a command, and of each command of it."""
    text = say(command, *words)
    yield words, text
    if found := re.search(r"^Commands:\n  \{([\w,-]+)\}", text, re.MULTILINE):
        for name in found[1].split(","):
            yield from _helps(say, command, *words, name)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_begins_with_two_lines_that_say_what_the_command_does(command: str, say: Say) -> None:
    for words, text in _helps(say, command):
        usage, does, *parts = text.split("\n\n")
        assert usage.startswith(f"usage: {command} ")
        assert len(does.splitlines()) <= 2, (words, does)
        titles = [part.partition(":")[0] for part in parts]
        ours = {"options", "Commands", "positional arguments"}
        later = [title.startswith("options ") for title in titles]
        assert later == sorted(later)
        assert {title for title in titles if not title.startswith("options ")} <= ours, titles
        if not words:
            assert later[-2:] == [True, True]
            assert ["--log-file" in part for part in parts[-2:]] == [False, True]
            assert "--config-file" in parts[-2]
            assert "--log-file" not in usage
            assert not any("--config-file" in part for part in parts[:-2])


def _page(command: str) -> str:
    pages = runpy.run_path(str(PAGES / "conf.py"))["man_pages"]
    (page,) = [page for page, name, *_rest in pages if name == command]
    path = PAGES / f"{page}.rst"
    included = r"^\.\. include:: (\w+\.inc)$"
    read = functools.partial(_included, path.parent)
    return re.sub(included, read, path.read_text(), flags=re.MULTILINE)


def _included(folder: pathlib.Path, match: re.Match[str]) -> str:
    return (folder / match[1]).read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_its_page_has_every_command_and_option(command: str, say: Say) -> None:
    page, options, commands = _page(command), set(), set()
    for words, text in _helps(say, command):
        commands |= set(words)
        own = text.partition("options of the log")[0]
        options |= set(re.findall(r"^  (?:-\w, |-\w \w+, )?(--[a-z][\w-]*)", own, re.MULTILINE))
    missing = {option for option in options - {"--help"} if f"``{option}" not in page}
    assert missing == set()
    assert {name for name in commands if not re.search(rf"\b{name}\b", page)} == set()
    named = set(re.findall(r"^ *``(--[a-z][\w-]*)", page, re.MULTILINE)) - {"--help"}
    assert named
    assert named - options == set()
