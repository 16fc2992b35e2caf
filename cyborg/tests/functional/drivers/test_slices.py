# SPDX-License-Identifier: Apache-2.0
"""Slices of cards that the host has divided: handles that containers get by their device nodes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import Any

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, kept_facts, privileged, registry
from cyborg.tests.contract import passes
from cyborg.tests.contract import simulated as contract
from cyborg.tests.found_cards import found

UUID = "11111111-2222-3333-4444-555555555555"


def held(device: base.Device, handle: base.AttachHandle) -> base.HeldHandle:
    return base.HeldHandle(
        attach_type=handle.attach_type,
        attach_info=handle.attach_info,
        uuid=UUID,
        arq="a",
        control_path=device.control_path,
    )


def nodes(simulated, driver: str, text: str, device: base.Device) -> list[set[str]]:
    """The nodes of a container with each handle of a device, and the names of other devices."""
    handles = [each for part in device.deployables for each in part.attach_handles]
    assert {each.attach_type for each in handles} == {base.NODES}
    edits = (
        simulated.call(passes.container_edits, driver, text, held(device, each))
        for each in handles
    )
    return [{*each.device_nodes, *each.cdi_devices} for each in edits]


def values(handles: Iterable[base.AttachHandle], key: str) -> list[str]:
    return [each.attach_info[key] for each in handles]


class TestQueues(contract.SimulatedDriverContract):
    entry_point = "intel_dsa_driver"
    recorded = "slices"

    def test_queues_for_user_space_are_given_out_and_no_others(self, simulated, devices):
        device, _whole = devices
        (part,) = device.deployables

        assert part.name == f"host-1_{simulated.card('dsa')}"
        assert part.resource_class == "CUSTOM_DSA_QUEUE"
        assert "CUSTOM_DSA_QUEUE_DEDICATED" in part.traits
        assert part.num_accelerators == 2
        assert values(part.attach_handles, "queue") == ["1", "3"]
        assert part.program_mode is None
        given = nodes(simulated, self.entry_point, "", device)
        assert given == [{"/dev/dsa/wq0.1"}, {"/dev/dsa/wq0.3"}]


class TestPartitions(contract.SimulatedDriverContract):
    entry_point = "amd_gpu_driver"
    recorded = "slices"

    def test_each_partition_is_given_out_with_its_own_nodes(self, simulated, devices):
        _other, device, whole = devices
        (part,) = device.deployables

        assert part.resource_class == "CUSTOM_AMD_PARTITION"
        assert {"CUSTOM_COMPUTE_PARTITION_CPX", "CUSTOM_AMD_74A1"} <= set(part.traits)
        assert not any("MEMORY_GIB" in each for each in part.traits)
        assert values(part.attach_handles, "partition") == [str(n) for n in range(8)]
        assert whole.deployables[0].resource_class == "PGPU"
        given = nodes(simulated, self.entry_point, "", device)
        assert given[0] == {"/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD136"}
        assert given[7] == {"/dev/kfd", "/dev/dri/card15", "/dev/dri/renderD143"}
        assert len(set.union(*given)) == 17


#: What NVIDIA's toolkit keeps: names by index, by UUID, and one for all.
KEPT = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": name,
            "containerEdits": {"deviceNodes": [{"path": f"/dev/{each}"} for each in given.split()]},
        }
        for name, given in (
            ("0", "nvidia0"),
            ("1:0", "nvidia1 nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85"),
            ("1:1", "nvidia1 nvidia-caps/nvidia-cap93 nvidia-caps/nvidia-cap94"),
            ("MIG-1", "nvidia1 nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13"),
            ("all", "nvidia0 nvidia1 nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13"),
        )
    ],
}


class TestInstances(contract.SimulatedDriverContract):
    entry_point = "nvidia_gpu_driver"
    recorded = "slices"

    @pytest.fixture(scope="class")
    def text(self, simulated, tmp_path_factory) -> str:
        """What NVIDIA's tool said of the instances before."""
        folder = tmp_path_factory.mktemp("state")
        said = f"[DEFAULT]\nstate_path = {folder}\n[agent]\ncdi_spec_dirs = {folder}\n"
        conf = passes.configured(said, [], "host-1")
        kept = kept_facts.KeptFacts(conf, "gpu_devices")
        names = {"1 0": "3g.40gb", "9 0": "1g.10gb", "10 0": "1g.10gb"}
        kept.set("slices", simulated.card("mig"), names)
        kept.save()
        (folder / "nvidia.json").write_text(json.dumps(KEPT))
        (simulated.root / "dev/nvidia-caps").mkdir(parents=True)
        for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
            (simulated.root / "dev" / name).touch()
        for number in (12, 13, 84, 85, 93, 94):
            (simulated.root / f"dev/nvidia-caps/nvidia-cap{number}").touch()
        return said

    def test_each_profile_is_a_provider_below_the_card(self, simulated, text, devices):
        whole, device = devices
        card, small, large = device.deployables
        name = f"host-1_{simulated.card('mig')}"

        assert whole.deployables[0].attach_handles[0].attach_type == "PCI"
        assert (card.name, card.num_accelerators, card.attach_handles) == (name, 0, ())
        assert (small.name, small.parent) == (f"{name}_1g.10gb", name)
        assert (large.name, large.parent) == (f"{name}_3g.40gb", name)
        assert small.resource_class == "CUSTOM_MIG_1G_10GB"
        assert {"CUSTOM_NVIDIA_MIG", "CUSTOM_MEMORY_GIB_10"} <= set(small.traits)
        assert "CUSTOM_MEMORY_GIB_80" not in small.traits
        assert values(small.attach_handles, "gpu_instance") == ["9", "10"]
        # An instance has its own capabilities and its card.
        given = nodes(simulated, self.entry_point, text, device)
        beside = {"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"}
        own = {"1:0": (84, 85), "1:1": (93, 94), "MIG-1": (12, 13)}
        assert [each - beside for each in given] == [
            {f"nvidia.com/gpu={name}", *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in pair)}
            for name, pair in own.items()
        ]
        assert all(beside <= each for each in given)


#: As NVIDIA's guide shows it.
TABLE = """+--------------------------------------------------------------------+
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|
|   0      9       MIG 1g.10gb          0         0          0:1     |
+--------------------------------------------------------------------+
|   0     10       MIG 1g.10gb+me       0         0          0:1     |
+--------------------------------------------------------------------+
|   0      1       MIG 1c.3g.40gb       0         0          0:1     |
+--------------------------------------------------------------------+
"""


def looks(folder: str, text: str) -> list[tuple[list[str], str]]:
    """The parts of a card and the driver's problems before the tool has been asked, and after."""
    privileged.programming.set_client_mode(False)
    privileged._NVIDIA_SMI = f"{folder}/nvidia-smi"
    driver: Any = registry.load(passes.configured(text, ["nvidia_gpu_driver"], "host-1")).drivers[
        "nvidia_gpu_driver"
    ]
    looking = discovery.Discovery("host-1", {"nvidia_gpu_driver": driver}, timeout=60)
    shown = []
    for _ in range(2):
        (device,) = looking.run().devices["nvidia_gpu_driver"]
        classes = [part.resource_class for part in device.deployables]
        shown.append((classes, " ".join(driver.problems())))
        looking.remember()
        driver._slices._asking.join()
    return shown


def looked(host, folder: pathlib.Path, said: str) -> list[tuple[list[str], str]]:
    """What looks show while the tool says so."""
    (folder / "said").write_text(said)
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\ncat {folder}/said\n')
    tool.chmod(0o755)
    return host.call(looks, str(folder), f"[DEFAULT]\nstate_path = {folder}\n")


@pytest.mark.parametrize("said", [TABLE, "nothing"])
def test_the_tool_is_asked_which_profiles_there_are(simulate, tmp_path, said):
    host = simulate({"cards": ["h100-slices"]})

    before, after = looked(host, tmp_path, said)

    assert before == (["PGPU"], "")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert set(asked) == {f"mig -lci -i {host.card('h100-slices')}"}
    if said == TABLE:
        more = ["CUSTOM_MIG_1C_3G_40GB", "CUSTOM_MIG_1G_10GB", "CUSTOM_MIG_1G_10GB_ME"]
        assert after == (["PGPU", *more], "")
        assert len(asked) == 1
    else:
        assert after[0] == ["PGPU"]
        assert "are not offered: NVIDIA's tool has shown no compute instance" in after[1]


def test_what_shares_a_gpu_instance_is_not_given_out(simulate, tmp_path):
    second = "driver/nvidia/capabilities/gpu{n}/mig/gi1/ci1/access"
    host = simulate({"cards": [{"card": "h100-slices", "proc": {second: "DeviceFileMinor: 14"}}]})
    row = "|   0      1       MIG 1c.3g.40gb       0         1          1:1     |\n"

    _before, after = looked(host, tmp_path, TABLE + row)

    assert after[0] == ["PGPU", "CUSTOM_MIG_1G_10GB", "CUSTOM_MIG_1G_10GB_ME"]
    assert "Compute instances of GPU instance 1 " in after[1]


@pytest.mark.parametrize(
    ("card", "driver"),
    [("dsa-enabled", "intel_dsa_driver"), ("mi300x-cpx", "amd_gpu_driver")],
)
def test_what_must_be_clean_is_not_given_out_as_slices(simulate, card, driver):
    text = "[cleaning]\ndefault = required\n"
    (device,) = found(simulate({"cards": [card]}), driver, text)

    assert "nothing does that" in (device.unhealthy or "")
