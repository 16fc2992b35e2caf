# SPDX-License-Identifier: Apache-2.0
"""Slices of cards that the host has divided: handles that containers get by their device nodes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cyborg.drivers import base
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
    """The nodes of a container with each handle of a device."""
    handles = [each for part in device.deployables for each in part.attach_handles]
    assert {each.attach_type for each in handles} == {base.NODES}
    edits = (
        simulated.call(passes.container_edits, driver, text, held(device, each))
        for each in handles
    )
    return [set(each.device_nodes) for each in edits]


def values(handles: Iterable[base.AttachHandle], key: str) -> list[str]:
    return [each.attach_info[key] for each in handles]


class TestQueues(contract.SimulatedDriverContract):
    entry_point = "intel_dsa_driver"
    recorded = "slices"

    def test_queues_for_user_space_are_given_out_and_no_others(self, simulated, devices):
        device, _whole = devices
        (part,) = device.deployables

        assert (part.name, part.resource_class) == (
            f"host-1_{simulated.card('dsa')}",
            "CUSTOM_DSA_QUEUE",
        )
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


@pytest.mark.parametrize(
    ("card", "driver"),
    [("dsa-enabled", "intel_dsa_driver"), ("mi300x-cpx", "amd_gpu_driver")],
)
def test_what_must_be_clean_is_not_given_out_as_slices(simulate, card, driver):
    text = "[cleaning]\ndefault = required\n"
    (device,) = found(simulate({"cards": [card]}), driver, text)

    assert "nothing does that" in (device.unhealthy or "")
