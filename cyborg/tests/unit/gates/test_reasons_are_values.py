# SPDX-License-Identifier: Apache-2.0
"""No code decides by the words of a reason: it has a code for that."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg.db import models, types
from cyborg.tests import product_code

#: The reason of a taint is a word of the configuration here: Kubernetes gets such devices.
EXEMPT = {"kube/inventory.py"}
#: The hosts' side: no reason is stored there.
OTHERS = {"agent", "drivers"}

#: How variables, functions and attributes are called that have a reason.
CALLED = re.compile(r"reason|why|sentence|said_before|^words$|last_entry|last_error", re.IGNORECASE)
METHODS = {"startswith", "endswith", "split", "rsplit", "partition", "rpartition", "find", "index"}
METHODS |= {"removeprefix", "contains", "like", "ilike", "regexp_match"}
REFUSED = (ast.In, ast.NotIn, ast.Eq, ast.NotEq, ast.Lt, ast.Gt)


def stored() -> set[str]:
    """The columns that have a sentence of somebody's."""
    return {
        column.key
        for mapper in models.Base.registry.mappers
        for column in mapper.column_attrs
        for each in column.columns
        if isinstance(each, sa.Column) and isinstance(each.type, types.Sentence)
    }


def names(node: ast.expr) -> Iterator[str]:
    """What a value is called, whatever is made of it: ``row.reason or ""``, ``str(reason)``."""
    match node:
        case ast.Name():
            yield node.id
        # The field of a library's exception is no reason of ours.
        case ast.Attribute() if not (isinstance(node.value, ast.Name) and node.value.id == "exc"):
            yield f".{node.attr}"
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            yield key
        case ast.BoolOp():
            for value in node.values:
                yield from names(value)
        case ast.IfExp():
            yield from (*names(node.body), *names(node.orelse))
        case ast.Call():
            yield from names(node.func)
            if isinstance(node.func, ast.Name):
                yield from (name for value in node.args for name in names(value))


def is_reason(node: ast.expr, columns: set[str]) -> bool:
    return any(
        not name.endswith("_code")
        and (bool(CALLED.search(name)) or (name.startswith(".") and name[1:] in columns))
        for name in names(node)
    )


def is_harmless(node: ast.expr) -> bool:
    """Whether a comparison with it says only whether there is a reason."""
    return isinstance(node, ast.Constant) and node.value is None


def decisions(tree: ast.AST, columns: set[str]) -> Iterator[int]:
    """The lines that decide by the words of a reason."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for index, operator in enumerate(node.ops):
                    pair = sides[index : index + 2]
                    compares = isinstance(operator, REFUSED) and not any(map(is_harmless, pair))
                    if compares and any(is_reason(each, columns) for each in pair):
                        yield node.lineno
            case ast.Call(func=ast.Attribute() as called):
                of_text = called.attr in METHODS and is_reason(called.value, columns)
                is_re = isinstance(called.value, ast.Name) and called.value.id == "re"
                if of_text or (is_re and any(is_reason(each, columns) for each in node.args)):
                    yield node.lineno


#: What decided by words once.
FORMER = [
    'public, colon, _ = reason.partition(": ")',
    "if found.row.state_reason != executor.TAKEN:\n    pass",
    "names_others = last.fault == CONFLICT and last.error != CANCELLED",
    "waits = last_entry(found).startswith(_WAITS)",
    "None if _STALLED in (pool.reason or '') else pool.reason",
    "sentence.startswith((FORGED, DROPPED))",
    "if said_before and mark in said_before:\n    pass",
    "none_free = all(reason.endswith(NONE_FREE) for reason in reasons)",
    're.sub(r"^[a-z_]+: ", "", reason)',
    "row.last_error.startswith(sync.NO_ROOT)",
    "reason not in {None, device.taint_reason}",
]


@pytest.mark.parametrize("line", FORMER)
def test_what_decided_by_words_is_refused(line: str) -> None:
    assert list(decisions(ast.parse(line), stored()))


@pytest.mark.parametrize(
    "line", ["if reason is None: pass", "x = reason or other", "f'{reason}'", "'reason' in body"]
)
def test_what_passes_a_reason_on_is_not(line: str) -> None:
    assert not list(decisions(ast.parse(line), stored()))


def test_no_code_reads_a_reason_back() -> None:
    found = []
    for path, tree in product_code.trees().items():
        if path not in EXEMPT and path.partition("/")[0] not in OTHERS:
            found += [f"{path}:{line}" for line in decisions(tree, stored())]
    assert found == []
