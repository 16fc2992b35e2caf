# SPDX-License-Identifier: Apache-2.0
"""The plan that turns one provider tree into another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cyborg.placement import tree
from cyborg.placement.tree import (
    CreateProvider,
    DeleteProvider,
    DetachProvider,
    Inventory,
    Ours,
    Provider,
    SetInventories,
    SetTraits,
    UpdateProvider,
)

FOUR = Inventory(total=4, reserved=0, max_unit=4)
NONE_LEFT = Inventory(total=4, reserved=4, max_unit=4)


def _provider(
    uuid: str = "a",
    *traits: str,
    name: str | None = None,
    parent: str | None = "root",
    **inventories: Inventory,
) -> Provider:
    return Provider(
        uuid=uuid,
        name=name or f"name-{uuid}",
        parent_uuid=parent,
        inventories=inventories,
        traits=frozenset(traits),
    )


def _tree(*providers: Provider) -> tree.Tree:
    return {provider.uuid: provider for provider in providers}


def _ours(*names: str) -> Ours:
    """All that a test sets: classes are FPGA and the like, traits begin with T."""
    traits = frozenset(name for name in names if name.startswith("T"))
    return Ours(frozenset(names) - traits, traits)


CREATE = CreateProvider(uuid="a", name="name-a", parent_uuid="root")

CASES: dict[str, tuple[tree.Tree, tree.Tree, Mapping[str, Ours], list[tree.Step]]] = {
    "nothing wanted, nothing there": ({}, {}, {}, []),
    "as it should be": (
        _tree(_provider("a", "T1", FPGA=FOUR)),
        _tree(_provider("a", "T1", FPGA=FOUR)),
        {"a": _ours("FPGA", "T1")},
        [],
    ),
    "new: traits before it is offered": (
        _tree(_provider("a", "T1", FPGA=FOUR)),
        {},
        {},
        [
            CREATE,
            SetTraits(uuid="a", traits=frozenset({"T1"})),
            SetInventories(uuid="a", inventories={"FPGA": FOUR}),
        ],
    ),
    "new with nothing on it": (_tree(_provider("a")), {}, {}, [CREATE]),
    "ours, but deleted behind our back": (
        _tree(_provider("a", FPGA=FOUR)),
        {},
        {"a": _ours("FPGA")},
        [CREATE, SetInventories(uuid="a", inventories={"FPGA": FOUR})],
    ),
    "inventory deleted behind our back": (
        _tree(_provider("a", FPGA=FOUR)),
        _tree(_provider("a")),
        {"a": _ours("FPGA")},
        [SetInventories(uuid="a", inventories={"FPGA": FOUR})],
    ),
    "renamed behind our back": (
        _tree(_provider("a")),
        _tree(_provider("a", name="other")),
        {"a": _ours()},
        [UpdateProvider(uuid="a", name="name-a", parent_uuid="root")],
    ),
    "an operator's trait and class stay": (
        _tree(_provider("a", "T2", GPU=FOUR)),
        _tree(_provider("a", "T1", "TX", FPGA=FOUR, OTHER=FOUR)),
        {"a": _ours("FPGA", "T1")},
        [
            SetTraits(uuid="a", traits=frozenset({"T2", "TX"})),
            SetInventories(uuid="a", inventories={"GPU": FOUR, "OTHER": FOUR}),
        ],
    ),
    "what was on an adopted provider is not ours": (
        _tree(_provider("a", "T1", FPGA=FOUR)),
        _tree(_provider("a", "TX", FPGA=NONE_LEFT, OTHER=FOUR)),
        {},
        [
            SetTraits(uuid="a", traits=frozenset({"T1", "TX"})),
            SetInventories(uuid="a", inventories={"FPGA": FOUR, "OTHER": FOUR}),
        ],
    ),
    "nothing left to offer": (
        _tree(_provider("a")),
        _tree(_provider("a", FPGA=FOUR)),
        {"a": _ours("FPGA")},
        [SetInventories(uuid="a", inventories={})],
    ),
    "disabled: withdrawn before anything that may be refused": (
        _tree(_provider("a", "T1", FPGA=NONE_LEFT)),
        _tree(_provider("a", FPGA=FOUR)),
        {"a": _ours("FPGA")},
        [
            SetInventories(uuid="a", inventories={"FPGA": NONE_LEFT}),
            SetTraits(uuid="a", traits=frozenset({"T1"})),
        ],
    ),
    "gone": (
        {},
        _tree(_provider("a", FPGA=FOUR)),
        {"a": _ours("FPGA")},
        [DetachProvider(uuid="a")],
    ),
    "gone, perhaps below another root": ({}, {}, {"a": _ours("FPGA")}, [DetachProvider(uuid="a")]),
    "another's provider": ({}, _tree(_provider("a", FPGA=FOUR)), {}, []),
    "parents are made first": (
        _tree(_provider("a", parent="b"), _provider("b")),
        {},
        {},
        [
            CreateProvider(uuid="b", name="name-b", parent_uuid="root"),
            CreateProvider(uuid="a", name="name-a", parent_uuid="b"),
        ],
    ),
    "parents are detached last": (
        {},
        _tree(_provider("a"), _provider("b", parent="a")),
        {"a": _ours(), "b": _ours()},
        [DetachProvider(uuid="b"), DetachProvider(uuid="a")],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_plan(case) -> None:
    desired, actual, ours, steps = case
    assert tree.plan(desired, actual, ours) == steps


def test_what_was_detached_is_deleted_when_it_is_due() -> None:
    ours = {"a": _ours(), "b": _ours(), "c": _ours()}
    shown = _tree(_provider("c"))
    steps = tree.plan({}, shown, ours, detached={"a": True, "b": False, "c": True})
    assert steps == [DeleteProvider(uuid="a"), DetachProvider(uuid="c")]


def test_what_is_still_allocated_stays_but_is_not_offered() -> None:
    found = {"FPGA": FOUR, "OTHER": FOUR}
    assert tree.retaining({"GPU": FOUR, "OTHER": FOUR}, found) == {
        "FPGA": NONE_LEFT,
        "GPU": FOUR,
        "OTHER": FOUR,
    }
    assert tree.withdrawn(found, _ours("FPGA")) == {"FPGA": NONE_LEFT, "OTHER": FOUR}


UUIDS = st.sampled_from("abcdef")
INVENTORIES = st.integers(1, 4).flatmap(
    lambda total: st.builds(
        Inventory, total=st.just(total), reserved=st.integers(0, total), max_unit=st.just(total)
    )
)
CONTENTS = st.dictionaries(st.sampled_from(["C1", "C2", "C3"]), INVENTORIES)
TRAITS = st.frozensets(st.sampled_from(["T1", "T2", "T3"]))


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Provider]:
    """Trees of any shape: each provider hangs below the root or an earlier one."""
    found: dict[str, Provider] = {}
    for uuid in draw(st.lists(UUIDS, unique=True)):
        found[uuid] = Provider(
            uuid=uuid,
            name=draw(st.sampled_from(["n1", "n2"])),
            parent_uuid=draw(st.sampled_from(["root", *found])),
            inventories=draw(CONTENTS),
            traits=draw(TRAITS),
        )
    return found


#: For as long as it takes on a busy machine.
PATIENTLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
OURS = st.dictionaries(
    UUIDS,
    st.builds(Ours, st.frozensets(st.sampled_from(["C1", "C2", "C3"])), TRAITS),
)


def _apply(steps: list[tree.Step], actual: tree.Tree) -> dict[str, Provider]:
    """Do as Placement does, with its rules: parents exist, and have no children when detached."""
    now = dict(actual)
    for step in steps:
        match step:
            case CreateProvider():
                assert step.uuid not in now
                assert step.parent_uuid in now.keys() | {"root"}
                now[step.uuid] = Provider(
                    uuid=step.uuid, name=step.name, parent_uuid=step.parent_uuid
                )
            case UpdateProvider():
                assert step.parent_uuid in now.keys() | {"root"}
                now[step.uuid] = dataclasses.replace(
                    now[step.uuid], name=step.name, parent_uuid=step.parent_uuid
                )
            case SetTraits():
                now[step.uuid] = dataclasses.replace(now[step.uuid], traits=step.traits)
            case SetInventories():
                found = dataclasses.replace(now[step.uuid], inventories=step.inventories)
                now[step.uuid] = found
            case DetachProvider():
                assert step.uuid not in {provider.parent_uuid for provider in now.values()}
                now.pop(step.uuid, None)
    return now


def _of_others(found: Provider, ours: Ours) -> tuple[dict[str, Inventory], frozenset[str]]:
    inventories = found.inventories.items()
    return {k: v for k, v in inventories if k not in ours.classes}, found.traits - ours.traits


@PATIENTLY
@given(trees(), trees(), OURS)
def test_the_plan_leads_there_and_spares_what_is_not_ours(desired, actual, ours) -> None:
    # What is in the way of taking one out is another matter: there, all that is found is ours.
    ours = {uuid: Ours() for uuid in actual} | ours
    after = _apply(tree.plan(desired, actual, ours), actual)
    assert after.keys() == desired.keys()
    for uuid, wanted in desired.items():
        found = actual.get(uuid, dataclasses.replace(wanted, inventories={}, traits=frozenset()))
        classes, traits = _of_others(found, ours.get(uuid, Ours()))
        assert after[uuid] == dataclasses.replace(
            wanted,
            inventories=classes | dict(wanted.inventories),
            traits=traits | wanted.traits,
        )
    owned = {uuid: Ours.of(provider) for uuid, provider in desired.items()}
    assert tree.plan(desired, after, owned) == []


@PATIENTLY
@given(trees(), trees())
def test_providers_of_others_are_never_touched(desired, actual) -> None:
    steps = tree.plan(desired, actual, {})
    assert {step.uuid for step in steps} <= desired.keys()
