# SPDX-License-Identifier: Apache-2.0
"""The sentences that the page on troubleshooting explains are those that the code says."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[4]
PAGE = ROOT / "doc" / "source" / "admin" / "troubleshooting.rst"
SENTENCES = re.findall(r"^``(.+)``$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def said() -> list[str]:
    """The constant parts of all texts in the code."""
    paths = (path for path in (ROOT / "cyborg").rglob("*.py") if "tests" not in path.parts)
    trees = (ast.parse(path.read_text()) for path in paths)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_there_are_some() -> None:
    assert len(SENTENCES) > 15


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_code_says_it(sentence: str, said: list[str]) -> None:
    for part in sentence.split("…"):
        words = part.strip()
        assert any(words in text.replace("%s", " ") for text in said), words
