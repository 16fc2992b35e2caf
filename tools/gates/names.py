#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: a class of the product has a name of its own, and a docstring names errors that exist.

An underscore in front does not make it another name. The dashboard is not looked at: Horizon wants
a class ``Meta`` in each table.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path

#: Folders whose classes may be named as others. The classes of ``osc`` are commands, named by what
#: they do and called by entry points; those of ``api/types`` are named after the row they show.
FREE = ("tests", "osc", "api/types")
_RAISED = re.compile(r"(?:\bRaise|:raises) ([A-Z]\w+)")
#: The contract of drivers and the tables both speak of these.
TWICE = frozenset({"AttachHandle", "ControlPath", "Deployable", "Device", "Host"})


def classes(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each class below root by its name and place, but for those of :data:`FREE`."""
    free = [root / folder for folder in FREE]
    for path in sorted(root.rglob("*.py")):
        if any(folder in path.parents for folder in free):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.ClassDef):
                yield node.name.lstrip("_"), f"{path}:{node.lineno}"


def unknown_errors(root: Path) -> Iterator[str]:
    """Yield one sentence for each error of a docstring that neither is a class nor is imported."""
    paths = sorted(root.rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    known = set(dir(builtins))
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef | ast.alias):
            known.add(node.name)
        elif isinstance(node, ast.Attribute):
            known.add(node.attr)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for name in _RAISED.findall(ast.get_docstring(node) or ""):
                    if name not in known:
                        yield f"{path}: a docstring says {name} is raised, which does not exist"


def breaches(root: Path) -> Iterator[str]:
    """Yield one sentence for each name of two classes, and for each in TWICE that need not be."""
    places: dict[str, list[str]] = {}
    for name, where in classes(root):
        places.setdefault(name, []).append(where)
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in TWICE:
            yield f"{found[-1]}: {found[0]} is named {name} too; call each by what it is"
    for name in sorted(TWICE):
        if len(places.get(name, [])) < 2:
            yield f"{Path(__file__).name}: {name} is one class, or none; take it off TWICE"


def main() -> int:
    """Print each breach; exit status 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path("cyborg"))
    root = parser.parse_args().root
    found = [*breaches(root), *unknown_errors(root)]
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
