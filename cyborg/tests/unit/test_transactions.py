# SPDX-License-Identifier: Apache-2.0
"""Every transaction that writes can be run again."""

from __future__ import annotations

import ast
import pathlib

import cyborg

ROOT = pathlib.Path(cyborg.__file__).parent


def _writes(function: ast.FunctionDef) -> bool:
    """Whether the function opens a transaction that writes."""
    return any(
        ast.unparse(item.context_expr) == "db.writer()"
        for node in ast.walk(function)
        if isinstance(node, ast.With)
        for item in node.items
    )


def test_who_writes_is_run_again_after_a_lost_race() -> None:
    seen = 0
    for path in sorted(ROOT.rglob("*.py")):
        if path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and _writes(node):
                seen += 1
                decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
                assert "db.retry" in decorators, f"{path}:{node.lineno} {node.name}"
    assert seen > 20
