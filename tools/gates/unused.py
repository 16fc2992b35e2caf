#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: the product defines nothing that nobody names, or that only tests name.

What a library asks for by its name is in ``vulture_allow.py``, which may have no line too many.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import vulture

ALLOWED = Path(__file__).with_name("vulture_allow.py")
#: Below these, but for what is excluded.
PATHS = ["cyborg", "cyborg_dashboard", "tools/gates", "setup.py"]
EXCLUDED = ["cyborg/tests", "cyborg_dashboard/enabled", "cyborg_dashboard/tests", ALLOWED.name]
#: What is decorated so is called by pecan, SQLAlchemy and its like.
DECORATORS = ["@lists", "@*shows", "@declare.*", "@*.checks", "@*compiles", "@*.expression"]
#: Files that name a definition as ``module:name``.
NAMING = [Path("setup.cfg"), Path("cyborg/api/api-paste.ini")]
_ENTRY_POINT = re.compile(r"\bcyborg[\w.]*:(\w+)")
#: Properties of the API's objects are read by their names, all of them.
_FIELD = re.compile(r"^    (\w+) = Field\(", re.MULTILINE)


def named_elsewhere() -> Iterator[str]:
    """Yield the names that entry points, paste files and the API's types use."""
    for path in NAMING:
        yield from _ENTRY_POINT.findall(path.read_text(encoding="utf-8"))
    for path in Path("cyborg/api/types").glob("*.py"):
        yield from _FIELD.findall(path.read_text(encoding="utf-8"))


def unused() -> list[vulture.core.Item]:
    """Return what nothing in the product names."""
    finder = vulture.Vulture(ignore_decorators=DECORATORS)
    finder.scavenge(PATHS, exclude=EXCLUDED)
    finder.scan("\n".join(named_elsewhere()))
    return finder.get_unused_code(min_confidence=60)


def main() -> int:
    """Print what is unused, and what need not be allowed; 1 if there is anything."""
    tree = ast.parse(ALLOWED.read_text(encoding="utf-8"))
    allowed = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found = unused()
    breaches = [item.get_report() for item in found if item.name not in allowed]
    needless = sorted(allowed - {item.name for item in found})
    breaches += [f"{ALLOWED.name}: {name} is used, or gone; do not list it" for name in needless]
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
