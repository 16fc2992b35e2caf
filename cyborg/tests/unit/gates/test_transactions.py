# SPDX-License-Identifier: Apache-2.0
"""Every transaction that writes can be run again, and is run again alone."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

import pytest

from cyborg.tests import product_code

#: What opens a transaction, by its name within the package.
WRITERS = frozenset({"cyborg.db.writer", "cyborg.db.statement", "cyborg.db.write"})
OPENERS = WRITERS | {
    "cyborg.db.reader",
    "cyborg.db.rows",
    "cyborg.db.snapshot",
    "cyborg.db.schema._alone",
}


def _functions(tree: ast.Module) -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Each function of a module: its class with a dot behind it or nothing, its name, its code."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node.name, node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield f"{node.name}.", method.name, method


def _imports(tree: ast.Module) -> dict[str, str]:
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _called(call: ast.Call, module: str, owner: str, imports: dict[str, str]) -> str:
    """The full name of what a call calls, as far as its text says."""
    first, _, rest = ast.unparse(call.func).partition(".")
    if first == "self":
        return f"{module}.{owner}{rest}"
    return f"{imports.get(first, f'{module}.{first}')}{rest and '.'}{rest}"


class _Code:
    """The functions of the product, by their full names."""

    def __init__(self) -> None:
        #: The decorators of each function, and the places and names of its calls.
        self.decorators: dict[str, set[str]] = {}
        self.calls: dict[str, list[tuple[int, str]]] = {}
        for path, tree in product_code.trees().items():
            inside = f"cyborg/{path}".removesuffix(".py").replace("/", ".")
            module = inside.removesuffix(".__init__")
            imports = _imports(tree)
            for owner, function, node in _functions(tree):
                name = f"{module}.{owner}{function}"
                self.decorators[name] = {ast.unparse(each) for each in node.decorator_list}
                self.calls[name] = [
                    (each.lineno, _called(each, module, owner, imports))
                    for each in ast.walk(node)
                    if isinstance(each, ast.Call)
                ]
        self._opening: dict[str, bool] = dict.fromkeys(OPENERS, True)

    def openings(self, name: str) -> list[str]:
        """The calls in a function that open a transaction, at once or in what they call."""
        calls = self.calls[name]
        return [f"{called}, line {line}" for line, called in calls if self._opens(called)]

    def _opens(self, name: str) -> bool:
        if name not in self._opening:
            self._opening[name] = False
            self._opening[name] = name in self.calls and bool(self.openings(name))
        return self._opening[name]

    def retried(self) -> list[str]:
        """The functions that are run again."""
        again = {"db.retry", "retry"}
        return [name for name, found in self.decorators.items() if found & again]

    def calling(self, opening: Collection[str], *, are_contexts: bool) -> set[str]:
        """The functions that call one of those, be they contexts or not."""
        return {
            name
            for name, calls in self.calls.items()
            if name not in OPENERS
            and ("contextlib.contextmanager" in self.decorators[name]) is are_contexts
            and any(called in opening for _, called in calls)
        }


@pytest.fixture(scope="module")
def code() -> _Code:
    return _Code()


def test_who_writes_is_run_again_after_a_lost_race(code: _Code) -> None:
    opening, found = set(WRITERS), {""}
    # Who enters a context that opens one is run again, and not the context.
    while found:
        found = code.calling(opening, are_contexts=True) - opening
        opening |= found
    writers = code.calling(opening, are_contexts=False)
    assert len(writers) > 20
    assert writers - set(code.retried()) == set()


def test_what_is_run_again_is_one_transaction(code: _Code) -> None:
    assert len(code.retried()) > 40
    opened = {name: code.openings(name) for name in code.retried()}
    assert {name: found for name, found in opened.items() if len(found) != 1} == {}
