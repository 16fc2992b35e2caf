# SPDX-License-Identifier: Apache-2.0
"""What crosses the wire is what the golden files say, and readers bear newer senders."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from cyborg import rpc
from cyborg.drivers import base
from cyborg.tests.full_payloads import PAYLOADS, report

DATA = pathlib.Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_is_on_the_wire_as_its_golden_file_says(name):
    golden = json.loads((DATA / f"{name}.json").read_text())

    assert json.loads(json.dumps(PAYLOADS[name].to_wire())) == golden
    assert type(PAYLOADS[name]).from_wire(golden) == PAYLOADS[name]


def test_unknown_keys_of_a_newer_sender_are_ignored():
    wire = report().to_wire()
    wire["health"] = "good"
    wire["devices"]["pci_driver"][0]["serial"] = "1"
    wire["devices"]["pci_driver"][0]["deployables"][0]["colour"] = "red"

    assert rpc.HostReport.from_wire(wire) == report()
    for name in PAYLOADS.keys() - {"host_report"}:
        payload = PAYLOADS[name]
        assert type(payload).from_wire({**payload.to_wire(), "deadline": 1}) == payload


def test_keys_that_an_older_sender_leaves_out_have_defaults():
    wire = report().to_wire()
    del wire["errors"]
    program = ("program_mode", "function", "function_vendor", "blank_image", "shared")
    for key in ("traits", "attributes", "prepares", "cleans", "clean_erases", *program):
        del wire["devices"]["pci_driver"][0]["deployables"][0][key]

    read = rpc.HostReport.from_wire(wire)

    (deployable,) = read.devices["pci_driver"][0].deployables
    assert (read.errors, deployable.traits, deployable.attributes) == ({}, (), {})
    assert not deployable.prepares
    assert not deployable.cleans
    assert not deployable.clean_erases
    assert (deployable.program_mode, deployable.function) == (None, None)
    assert deployable.function_vendor == ""
    assert (deployable.blank_image, deployable.shared) == (None, None)


def test_a_parent_is_on_the_wire_and_an_older_sender_knows_none():
    parts = [
        base.Deployable(
            name=name, resource_class="FPGA", num_accelerators=0, attach_handles=(), parent=parent
        )
        for name, parent in (("host-1_card", None), ("host-1_region", "host-1_card"))
    ]
    (device,) = report().devices["pci_driver"]
    nested = dataclasses.replace(device, deployables=tuple(parts))
    wire = json.loads(json.dumps(nested.to_wire()))

    assert base.Device.from_wire(wire) == nested
    for part in wire["deployables"]:
        del part["parent"]
    assert [part.parent for part in base.Device.from_wire(wire).deployables] == [None, None]


def test_the_digest_is_of_what_is_said_not_of_when():
    later = dataclasses.replace(report(), started=report().started + 1, counter=8, readings={})

    assert later.digest() == report().digest()
    changes: list[dict[str, Any]] = [{"errors": {}}, {"node": "other"}, {"host": "other"}]
    for change in (*changes, {"devices": {}}):
        assert dataclasses.replace(report(), **change).digest() != report().digest()
