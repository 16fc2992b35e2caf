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

DATA = pathlib.Path(__file__).parents[2] / "data"


def report() -> rpc.HostReport:
    handle = base.AttachHandle(
        attach_type="PCI",
        attach_info={"domain": "0000", "bus": "0c", "device": "00", "function": "1"},
    )
    deployable = base.Deployable(
        name="host-1_0000:0c:00.1",
        resource_class="CUSTOM_PCI",
        num_accelerators=1,
        attach_handles=(handle,),
        traits=("OWNER_CYBORG", "CUSTOM_PCI_NVIDIA"),
        attributes={"numa_node": 0},
        cleans=True,
        clean_erases=True,
        prepared=("6b1a7f6e-0d35-4e0e-9f0f-3a5b0c7d9e21",),
        program_mode="dynamic",
        function="9aeffe5f84570612c000c9660d824272",
        function_vendor="INTEL",
        blank_image="blank-a10",
    )
    device = base.Device(
        type="PCI",
        vendor="10de",
        model="20f1",
        control_path=base.ControlPath(
            cpid_type="PCI",
            cpid_info={"domain": "0000", "bus": "0c", "device": "00", "function": "1"},
        ),
        deployables=(deployable,),
        std_board_info='{"class": "030200"}',
    )
    return rpc.HostReport(
        host="host-1",
        node="host-1.example",
        started=1_800_000_000_000,
        counter=7,
        errors={"slow_driver": "does not answer"},
        devices={"pci_driver": (device,)},
        unread=("0000:3b:00.0",),
        not_offered=2,
        not_offered_reasons=("0000:3b:00.0 10de:2330: no driver claims it",),
    )


def step() -> rpc.HostStep:
    return rpc.HostStep(
        action="prepare",
        driver="fake_driver",
        attach_handle_uuid="313f7a53-cebb-4685-9640-5b054d4b82c5",
        attach_type="TEST_PCI",
        attach_info={"domain": "0000", "bus": "0c", "device": "0", "function": "1"},
        cpid_type="PCI",
        cpid_info={"domain": "0000", "bus": "0c", "device": "00", "function": "0"},
        asked_ms=1_800_000_000_000,
        agent_started=1_700_000_000_000,
        arq_uuid="9d3c6a52-7c9f-4f0e-8f1b-2f6f5a1f0c11",
    )


def program_step() -> rpc.ProgramStep:
    handle = base.AttachHandle(attach_type="TEST_PCI", attach_info=step().attach_info)
    return rpc.ProgramStep(
        driver="fake_driver",
        deployable="host-1_FakeDevice",
        deployable_uuid="e4c9b9c2-70ea-3a8e-8a3e-6a9a1f6f7a5b",
        cpid_type="PCI",
        cpid_info=step().cpid_info,
        attach_handles=(handle,),
        image_uuid="2a4a1a0c-8f5a-4c70-9b64-5fb5d3f1f3a2",
        size=4096,
        hash_algo="sha512",
        hash_value="ab" * 64,
        function_id="9aeffe5f84570612c000c9660d824272",
        signature={"img_signature_hash_method": "SHA-256"},
        operation_uuid="0b7f2d5e-3c41-4a6b-9d8e-5f1a2b3c4d5e",
        write=2,
        asked_ms=1_800_000_000_000,
        agent_started=1_700_000_000_000,
    )


def program_answer() -> rpc.ProgramAnswer:
    return rpc.ProgramAnswer(
        function="9aeffe5f84570612c000c9660d824272",
        verified_by="afu_id in sysfs",
        report_counter=41,
    )


def write_request() -> rpc.WriteRequest:
    step = program_step()
    return rpc.WriteRequest(
        host="host-1",
        deployable_uuid=step.deployable_uuid,
        operation_uuid=step.operation_uuid or "",
        write=step.write,
    )


PAYLOADS: dict[str, Any] = {
    "held_request": rpc.HeldRequest(host="host-1"),
    "host_report": report(),
    "host_step": step(),
    "program_answer": program_answer(),
    "program_step": program_step(),
    "unchanged_report": report().unchanged(),
    "write_permit": rpc.WritePermit(seconds=10.0, refused=None),
    "write_request": write_request(),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_is_on_the_wire_as_its_golden_file_says(name):
    golden = json.loads((DATA / f"{name}.json").read_text())

    assert json.loads(json.dumps(PAYLOADS[name].to_wire())) == golden


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_golden_file_is_read_as_the_payload(name):
    golden = json.loads((DATA / f"{name}.json").read_text())

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
    program = ("program_mode", "function", "function_vendor", "blank_image")
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
    assert deployable.blank_image is None


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
    later = dataclasses.replace(report(), started=report().started + 1, counter=8)

    assert later.digest() == report().digest()


@pytest.mark.parametrize(
    "change", [{"errors": {}}, {"node": "other"}, {"host": "other"}, {"devices": {}}]
)
def test_the_digest_changes_with_what_is_said(change):
    assert dataclasses.replace(report(), **change).digest() != report().digest()


@pytest.mark.parametrize("missing", ["host", "node", "started", "counter", "devices"])
def test_data_that_is_no_report_is_refused(missing):
    wire = report().to_wire()
    del wire[missing]

    with pytest.raises(rpc.Unreadable, match=f"lacks .{missing}"):
        rpc.HostReport.from_wire(wire)
