# SPDX-License-Identifier: Apache-2.0
"""Every field of every message, with values of a wrong type: one error, which names the field.

The fields are those of the dataclasses, so a new one is tried as well.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cyborg import rpc
from cyborg.drivers import base
from cyborg.rpc import payloads
from cyborg.tests import full_payloads


def deep(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "number": 7,
    "negative": -1,
    "large": 2**70,
    "float": 1.5,
    "infinite": float("inf"),
    "nan": float("nan"),
    "text": "x",
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "long text": "x" * 1_000_000,
    "list": [],
    "texts": ["x"],
    "numbers": [1],
    "nulls": [None],
    "dictionaries": [{}],
    "deep": deep(700),
    "dictionary": {},
    "texts by texts": {"a": "b"},
    "numbers by texts": {"a": 1},
    "lists by texts": {"a": []},
    "nulls by texts": {"a": None},
}

#: What is right for a field, by the type with which it is declared. A list of a text is no type of
#: the wire's, so the readers of lists are told apart by what they hold.
RIGHT: dict[str, set[str]] = {
    "bool": {"true"},
    "int": {"number"},
    "float": {"number", "float"},
    "str": {"text", "long text"},
    "str | None": {"text", "long text", "null"},
    "int | None": {"number", "null"},
    "Mapping[str, str]": {"dictionary", "texts by texts"},
    "Mapping[str, str | int]": {"dictionary", "texts by texts", "numbers by texts"},
    "tuple[str, ...]": {"list", "texts"},
    "tuple[str, ...] | None": {"list", "texts", "null"},
    "tuple[base.AttachHandle, ...]": {"list"},
    "tuple[AttachHandle, ...]": {"list"},
    "tuple[Deployable, ...]": {"list"},
    "ControlPath": set(),
    # By driver; a list of nothing is right.
    "Mapping[str, tuple[base.Device, ...]]": {"dictionary", "lists by texts"},
    # Whatever is no reading is left out.
    "metrics.Readings": {name for name, value in VALUES.items() if isinstance(value, dict)},
}

#: Values of the right type that have another reason to be wrong, or may be so.
BOUNDED = {
    "attach_type",
    "cpid_type",
    "driver",
    "type",
    "vendor",
    "model",
    "name",
    "resource_class",
    "traits",
    "program_mode",
    "function",
    "function_id",
    "function_vendor",
    "blank_image",
    "shared",
    "verified_by",
    "parent",
}

MESSAGES = sorted(
    name
    for name, cls in vars(payloads).items()
    if inspect.isclass(cls) and dataclasses.is_dataclass(cls) and hasattr(cls, "from_wire")
)
TRUE = {type(each).__name__: each for each in full_payloads.PAYLOADS.values()}


def fields() -> Iterator[Any]:
    """Each field of each message that is on the wire."""
    for name in MESSAGES:
        if not name.startswith("_"):
            wire = json.loads(json.dumps(TRUE[name].to_wire()))
            for field in dataclasses.fields(TRUE[name]):
                if field.name in wire:
                    yield pytest.param(name, field, wire, id=f"{name}-{field.name}")


def refusal(name: str, wire: dict[str, Any]) -> str | None:
    """Why a message is refused; None if it is not. Any other error fails the test."""
    try:
        type(TRUE[name]).from_wire(wire)
    except rpc.Unreadable as exc:
        return str(exc)
    return None


def test_every_message_is_tried() -> None:
    assert {name for name in MESSAGES if not name.startswith("_")} == TRUE.keys()


@pytest.mark.parametrize(("name", "field", "wire"), list(fields()))
def test_a_value_of_a_wrong_type_is_refused_with_one_error(name, field, wire) -> None:
    right = RIGHT[str(field.type)]
    assert right != set(VALUES)
    for what, value in VALUES.items():
        said = refusal(name, {**wire, field.name: value})
        if said is None:
            assert what in right, what
        else:
            assert what not in right or field.name in BOUNDED, f"{what}: {said}"
            assert field.name in said, f"{what}: {said}"
            assert len(said) < 1000


@pytest.mark.parametrize(("name", "field", "wire"), list(fields()))
def test_a_field_that_is_missing_is_named(name, field, wire) -> None:
    wire = {name: value for name, value in wire.items() if name != field.name}
    has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
    said = refusal(name, wire)
    if said is None:
        # A report of nothing that went wrong may have none.
        assert has_default or field.name == "errors"
    else:
        assert not has_default
        assert f"lacks '{field.name}'" in said


@pytest.mark.parametrize("name", TRUE)
@pytest.mark.parametrize("what", [what for what in VALUES if what != "dictionary"])
def test_what_is_no_dictionary_of_fields_is_no_message(name: str, what: str) -> None:
    with pytest.raises(rpc.Unreadable):
        type(TRUE[name]).from_wire(VALUES[what])


def parts() -> Iterator[Any]:
    """Each field of what a report holds, and how to get to it."""
    wire = json.loads(json.dumps(TRUE["HostReport"].to_wire()))
    device = ("devices", "pci_driver", 0)
    part = (*device, "deployables", 0)
    places = {
        base.Device: device,
        base.ControlPath: (*device, "control_path"),
        base.Deployable: part,
        base.AttachHandle: (*part, "attach_handles", 0),
    }
    for cls, place in places.items():
        for field in dataclasses.fields(cls):
            yield pytest.param(field, place, wire, id=f"{cls.__name__}-{field.name}")


@pytest.mark.parametrize(("field", "place", "wire"), list(parts()))
def test_a_part_of_a_wrong_type_leaves_the_device_out(field, place, wire) -> None:
    right = RIGHT[str(field.type)]
    for what, value in VALUES.items():
        changed = copy.deepcopy(wire)
        inner: Any = changed
        for key in place:
            inner = inner[key]
        inner[field.name] = value
        report = rpc.HostReport.from_wire(changed)
        if report.devices.get("pci_driver"):
            assert what in right, what
        else:
            assert what not in right or field.name in {*BOUNDED, "attributes"} | {
                "cpid_info",
                "attach_info",
                "deployables",
            }, f"{what}: {report.errors}"
            assert "is left out" in report.errors["pci_driver"]
            assert len(report.errors["pci_driver"]) < 1500


def test_devices_that_cannot_be_read_are_said_a_few_times() -> None:
    report = {"host": "h", "node": "n", "started": 1, "counter": 1, "errors": {}, "unread": []}
    found = rpc.HostReport.from_wire(report | {"devices": {"d": [1] * 60_000}})
    assert found.errors["d"].count("left out") == 20
    with pytest.raises(rpc.Unreadable, match="more than a host has"):
        rpc.HostReport.from_wire(report | {"devices": {"d": [1] * 70_000}})
