# SPDX-License-Identifier: Apache-2.0
"""``--help`` of each command says first what it does, and its page leaves nothing of it out."""

from __future__ import annotations

import configparser
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


def _page(command: str) -> str:
    pages = runpy.run_path(str(PAGES / "conf.py"))["man_pages"]
    (page,) = [page for page, name, *_rest in pages if name == command]
    path = PAGES / f"{page}.rst"
    included = re.compile(r"^\.\. include:: (\w+\.inc)$", re.MULTILINE)
    return included.sub(lambda found: (path.parent / found[1]).read_text(), path.read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_it_says_first_what_it_does_and_its_page_has_all_of_it(command: str, say: Say) -> None:
    page, options, commands = _page(command), set(), set()
    for words, text in _helps(say, command):
        _assert_begins_with_what_it_does(command, words, text)
        commands |= set(words)
        own = text.partition("options of the log")[0]
        options |= set(re.findall(r"^  (?:-\w, |-\w \w+, )?(--[a-z][\w-]*)", own, re.MULTILINE))
    missing = {option for option in options - {"--help"} if f"``{option}" not in page}
    assert missing == set()
    assert {name for name in commands if not re.search(rf"\b{name}\b", page)} == set()
    named = set(re.findall(r"^ *``(--[a-z][\w-]*)", page, re.MULTILINE)) - {"--help"}
    assert named
    assert named - options == set()


def _assert_begins_with_what_it_does(command: str, words: tuple[str, ...], text: str) -> None:
    """In two lines; how to configure and to log is said last."""
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
