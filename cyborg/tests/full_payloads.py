# SPDX-License-Identifier: Apache-2.0
"""One message of each kind, with every field set."""

from __future__ import annotations

from typing import Any

from cyborg import rpc
from cyborg.drivers import base


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
        shared="one-project",
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
        readings={"0000:0c:00.1": {"temperature_celsius": 52.5, "power_watts": 91}},
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
