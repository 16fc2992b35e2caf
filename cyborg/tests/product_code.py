# SPDX-License-Identifier: Apache-2.0
"""Code of the product, without its tests, read once for all gates on it."""

from __future__ import annotations

import ast
import functools
import pathlib

import cyborg

ROOT = pathlib.Path(cyborg.__file__).parent


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Each module, by its path below the package."""
    paths = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
    return {
        name: ast.parse(path.read_text())
        for name, path in paths.items()
        if "tests" not in pathlib.Path(name).parts
    }
