#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: sentences that people read begin with their subject, and are short.

It reads the texts in code, docstrings that users read, and the prose of pages. Prints each breach;
exit status 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_WORDS = 40
#: Rooms whose docstrings users, operators or authors of drivers read.
ROOMS = ("cyborg/api", "cyborg/cmd", "cyborg/conf", "cyborg/drivers/base.py", "cyborg/osc",
         "cyborg/policy")  # fmt: skip
PAGES = ("README.rst", "CONTRIBUTING.rst", "api-ref/source", "doc/source/configuration",
         "doc/source/install", "doc/source/reference", "doc/source/user")  # fmt: skip
#: Each with the reason why it is refused. A question may begin with any word.
REFUSED = {
    r"^(What|Who|Whom|Whose|Those|Likewise)\b(?![^?]*\?$)": "begins without its subject",
    r"\bwhat is\b[^,.;:]* is\b": '"what is … is": name the thing',
    r"\b(of everything else|more than that|is said of|whoever|quite another)\b": "is read twice",
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without the marks of code."""
    parts = re.split(r"(?<=[.!?;])\s+|(?<=:)\s*\n|\n?\s*[*-] ", text.replace("`", ""))
    return (" ".join(part.split()) for part in parts)


def texts_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a module says to people, with its lines: texts and, in some rooms, docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    docstrings = {id(node.body[0].value) for node in documented if ast.get_docstring(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node.lineno, str(node.value)
    if path.as_posix().startswith(ROOMS):
        for node in documented:
            if not getattr(node, "name", "").startswith("_"):
                found = ast.get_docstring(node) or ""
                yield node.body[0].lineno, re.split(r"\n *:raises|::\n", found)[0]


def texts_of_page(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page, but no table, no code and no directive."""
    line = 1
    for part in re.split(r"(\n\s*\n)", path.read_text(encoding="utf-8")):
        if not re.match(r"\.\. |   |:\w|[-=~^+|#]{3,}|\|", part):
            yield line, re.sub(r"[^\n]*\n[-=~^]{3,}\n?", "", part)
        line += part.count("\n")


def breaches(line: int, text: str) -> Iterator[str]:
    """Yield what is wrong with each sentence of a text."""
    for sentence in sentences(text):
        if len(sentence.split()) > MAX_WORDS:
            yield f"{line}: {len(sentence.split())} words: {sentence[:60]}…"
        for pattern, why in REFUSED.items():
            if re.search(pattern, sentence):
                yield f"{line}: {why}: {sentence[:80]}"


def main() -> int:
    """Check the tree that is the working directory."""
    code = (each for each in Path().glob("cyborg*/**/*.py") if "tests" not in each.parts)
    pages = (each for name in PAGES for each in (Path(name), *Path(name).rglob("*.[ri]*")))
    read = [(path, texts_of_code(path)) for path in sorted(code)]
    read += [(path, texts_of_page(path)) for path in sorted(pages) if path.is_file()]
    found = [f"{path}:{told}" for path, texts in read for pair in texts for told in breaches(*pair)]
    for told in found:
        print(told)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
