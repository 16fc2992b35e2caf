# SPDX-License-Identifier: Apache-2.0
"""The sentences that the page on troubleshooting explains are those that the code says."""

from __future__ import annotations

import ast
import re

import pytest

from cyborg.tests import product_code
from cyborg.tests.servers import REPOSITORY

PAGE = REPOSITORY / "doc" / "source" / "admin" / "troubleshooting.rst"
SENTENCES = re.findall(r"^``(.+)``$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def said() -> list[str]:
    """The constant parts of all texts in the code."""
    nodes = (node for tree in product_code.trees().values() for node in ast.walk(tree))
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_the_code_says_each_sentence(said: list[str]) -> None:
    assert len(SENTENCES) > 15
    for words in (part.strip() for sentence in SENTENCES for part in sentence.split("…")):
        assert any(words in text.replace("%s", " ") for text in said), words
