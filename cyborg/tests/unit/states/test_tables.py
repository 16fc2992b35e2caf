# SPDX-License-Identifier: Apache-2.0
"""The tables of states have no dead end, permit nothing else, and are drawn as they are."""

from __future__ import annotations

import ast
import enum
import importlib.util
import pathlib
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from cyborg.db import models
from cyborg.db.models import SETTLED, UNMANAGED
from cyborg.programming import states
from cyborg.states import handle_states

ROOT = pathlib.Path(__file__).parents[4]
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


@pytest.mark.parametrize("module", FIRST)
def test_every_state_can_be_reached_from_the_first(module: Any) -> None:
    assert reachable(module, FIRST[module]) == set(module.STATES)


@pytest.mark.parametrize("state", states.STATES)
def test_every_program_has_a_way_to_each_settled_state(state: str) -> None:
    assert reachable(states, state) >= SETTLED


@pytest.mark.parametrize("state", handle_states.STATES)
def test_every_handle_may_become_clean(state: str) -> None:
    assert models.CLEAN in reachable(handle_states, state)


@pytest.mark.parametrize(("module", "state"), EACH)
def test_what_is_not_in_the_table_cannot_happen(module: Any, state: str) -> None:
    for event in events_of(module):
        if (state, event) in module.TABLE:
            assert module.next_state(state, event) == module.TABLE[state, event]
        else:
            with pytest.raises(AssertionError, match=f"{event.name} cannot happen to .* {state}"):
                module.next_state(state, event)


def test_what_settles_may_turn_out_not_to_be_programmable() -> None:
    for state in SETTLED:
        assert states.next_state(state, states.ProgramEvent.NOT_PROGRAMMABLE) == UNMANAGED


def test_the_documentation_shows_every_change() -> None:
    """If this fails, run tools/draw_states.py."""
    spec = importlib.util.spec_from_file_location("draw_states", ROOT / "tools/draw_states.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
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
    paths = (ROOT / "cyborg").rglob("*.py")
    names = {
        str(path.relative_to(ROOT / "cyborg"))
        for path in paths
        if "tests" not in path.parts and _NAMED.search(path.read_text())
    }
    assert names == _MAY


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
    paths = [path for path in (ROOT / "cyborg").rglob("*.py") if "tests" not in path.parts]
    writers = {
        str(path.relative_to(ROOT / "cyborg"))
        for path in paths
        if any(map(_writes_arqs, ast.walk(ast.parse(path.read_text()))))
    }
    assert writers == _WRITERS
