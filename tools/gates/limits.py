#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: no long functions and few mocks. Prints each breach; exit status 1 if there is any.

A long file is a warning only: a file is as long as its one idea, and is not cut to meet a number.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LONG_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_MOCKS_PER_TEST = 0.3

#: Names that make a stand-in when called.
MOCK_MAKERS = frozenset(
    {
        "AsyncMock",
        "MagicMock",
        "Mock",
        "MockPatch",
        "MockPatchObject",
        "NonCallableMock",
        "PropertyMock",
        "create_autospec",
    }
)
#: Owners of a ``patch`` that replaces code; any other, such as an HTTP client's, is not counted.
PATCH_OWNERS = frozenset({"", "mock", "mocker"})
#: Attributes of ``patch`` and of ``monkeypatch`` that replace code. ``setenv`` and the like do
#: not: they only prepare the environment.
PATCH_VARIANTS = frozenset({"object", "dict", "multiple"})
MONKEYPATCH_REPLACERS = frozenset({"setattr", "setitem"})


def dotted_name(node: ast.expr) -> list[str]:
    """Return ``["mock", "patch", "object"]`` for the expression ``mock.patch.object``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return parts[::-1]


def makes_mock(call: ast.Call) -> bool:
    """Return whether the call replaces real code by a stand-in."""
    name = dotted_name(call.func)
    if not name:
        return False
    if name[-1] in MOCK_MAKERS:
        return True
    owner = name[-2] if len(name) > 1 else ""
    if name[-1] == "patch":
        return owner in PATCH_OWNERS
    if owner == "patch":
        return name[-1] in PATCH_VARIANTS
    return owner in {"monkeypatch", "mp"} and name[-1] in MONKEYPATCH_REPLACERS


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of the tree, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines from ``def`` to the end, without decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def warnings(root: Path) -> Iterator[str]:
    """Yield one sentence for each Python file under root that is long."""
    for path in sorted(root.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LONG_FILE_LINES:
            yield f"warning: {path}: {lines} lines; is it more than one idea?"


def breaches(root: Path) -> Iterator[str]:
    """Yield one sentence for each limit that a Python file under root exceeds."""
    tests = 0
    mocks: dict[Path, int] = {}
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        if "tests" in path.parts:
            tests += sum(f.name.startswith("test_") for f in functions(tree))
            mocks[path] = sum(isinstance(n, ast.Call) and makes_mock(n) for n in ast.walk(tree))
            continue
        for function in functions(tree):
            if (length := function_lines(function)) > MAX_FUNCTION_LINES:
                place = f"{path}:{function.lineno}"
                yield f"{place}: {function.name} has {length} lines, at most {MAX_FUNCTION_LINES}"
    total = sum(mocks.values())
    if total > tests * MAX_MOCKS_PER_TEST:
        most = sorted(mocks, key=lambda path: -mocks[path])[:5]
        where = ", ".join(f"{path} {mocks[path]}" for path in most if mocks[path])
        yield f"{total} mocks in {tests} tests, at most {MAX_MOCKS_PER_TEST} a test ({where})"


def main() -> int:
    """Check the trees given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path("cyborg")])
    roots = parser.parse_args().roots
    if missing := [root for root in roots if not root.is_dir()]:
        parser.error(f"no such directory: {', '.join(map(str, missing))}")
    for root in roots:
        for warning in warnings(root):
            print(warning)
    found = [breach for root in roots for breach in breaches(root)]
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
