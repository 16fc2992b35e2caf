# SPDX-License-Identifier: Apache-2.0
"""The tables of states have no dead end, permit nothing else, and are drawn as they are."""

from __future__ import annotations

import ast
import enum
import re
import runpy
import types
from typing import Any
from xml.etree import ElementTree

import pytest

from cyborg.db import models
from cyborg.db.models import SETTLED, UNMANAGED
from cyborg.programming import states
from cyborg.states import arq_states, handle_states
from cyborg.tests import product_code
from cyborg.tests.servers import REPOSITORY

FIRST = {states: UNMANAGED, handle_states: models.CLEAN}
EACH = [(module, state) for module in FIRST for state in module.STATES]


def events_of(module: Any) -> type[enum.Enum]:
    """The class of the events of a table."""
    ((_, event), *_rest) = module.TABLE
    return type(event)


def reachable(module: Any, start: str) -> set[str]:
    """The states to come to from one state."""
    found, left = {start}, [start]
    while left:
        state = left.pop()
        new = {after for (before, _), after in module.TABLE.items() if before == state} - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("module", FIRST)
def test_the_table_knows_every_state_and_every_event(module: Any) -> None:
    assert {before for before, _ in module.TABLE} == set(module.STATES)
    assert set(module.TABLE.values()) == set(module.STATES)
    assert {event for _, event in module.TABLE} == set(events_of(module))
    assert reachable(module, FIRST[module]) == set(module.STATES)


@pytest.mark.parametrize(("module", "state"), EACH)
def test_what_is_not_in_the_table_cannot_happen(module: Any, state: str) -> None:
    # Every program has a way to each settled state, and every handle may become clean.
    assert reachable(module, state) >= (SETTLED if module is states else {models.CLEAN})
    for event in events_of(module):
        if (state, event) in module.TABLE:
            assert module.next_state(state, event) == module.TABLE[state, event]
        else:
            with pytest.raises(AssertionError, match=f"{event.name} cannot happen to .* {state}"):
                module.next_state(state, event)


def test_what_settles_may_turn_out_not_to_be_programmable() -> None:
    for state in SETTLED:
        assert states.next_state(state, states.ProgramEvent.NOT_PROGRAMMABLE) == UNMANAGED


def test_predecessors_are_the_documented_ones() -> None:
    assert arq_states.predecessors(models.BIND_STARTED) == {models.INITIAL, models.UNBOUND}
    assert arq_states.predecessors(models.BOUND) == {models.BIND_STARTED}
    assert arq_states.predecessors(models.BIND_FAILED) == {models.BIND_STARTED}
    assert arq_states.predecessors(models.UNBOUND) == arq_states.ALL
    assert models.DELETING not in arq_states.ALL


def test_the_documentation_shows_every_change() -> None:
    """If this fails, run tools/draw_states.py."""
    tool = types.SimpleNamespace(**runpy.run_path(str(REPOSITORY / "tools/draw_states.py")))
    for name, text in tool.files().items():
        assert (tool.FOLDER / name).read_text() == text
    for machine in tool.MACHINES:
        table = machine.module.TABLE
        svg = ElementTree.fromstring(tool.drawing(machine))
        drawn = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
        changes = [(before, after) for (before, _), after in table.items() if before != after]
        assert len(drawn) == len(machine.module.STATES) + len(changes)
        assert set(machine.module.STATES) <= set(drawn)
        assert "\n".join(tool.lines(machine)).count("    - *") == len(table)


#: What only the module of the states of handles says in SQL, and the model that has them.
_NAMED = re.compile(
    r"\b(TO_OVERWRITE|TO_CLEAN|models\.CLEAN|AttachHandle\.state)\b|_HANDLE\.state\b ?[=!.]"
)
_MAY = {"states/handle_states.py", "db/models.py"}


def test_no_other_module_names_the_states_of_handles() -> None:
    """Who asks whether a handle may be had asks ``AttachHandle.is_left``: one rule, one place."""
    texts = {path: (product_code.ROOT / path).read_text() for path in product_code.trees()}
    assert {path for path, text in texts.items() if _NAMED.search(text)} == _MAY


#: Where rows of ARQs are made and changed: the changes, a bind, a request and an import.
_WRITERS = {
    "states/arq_states.py",
    "arqs/bind_writes.py",
    "arqs/service.py",
    "importing/store.py",
}
_TABLE_OF_ARQS = re.compile(r"(^|[._ ])(ARQS?|Arq|arq)\b")


def _writes_arqs(node: ast.AST) -> bool:
    """Whether it is a statement that changes rows of ARQs, or sets a value of one."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return ast.unparse(node.value) == "arq"
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = ast.unparse(node.func.value)
    if node.func.attr not in {"update", "insert", "delete"} or owner not in {"sa", "db"}:
        return False
    # sa.update(table), db.update(session, table, …)
    table = node.args[["sa", "db"].index(owner)]
    return bool(_TABLE_OF_ARQS.search(ast.unparse(table)))


def test_few_modules_write_arqs() -> None:
    """Each change of an ARQ is found in one of these; others call what they offer."""
    trees = product_code.trees().items()
    assert {path for path, tree in trees if any(map(_writes_arqs, ast.walk(tree)))} == _WRITERS
