# SPDX-License-Identifier: Apache-2.0
"""Where devices are in the host: behind which PCIe switch, on which NUMA node."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Mapping

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, pci, privileged, registry
from cyborg.drivers.nvidia import gpu as nvidia_gpu
from cyborg.drivers.nvidia import topology
from cyborg.tests.contract import passes
from cyborg.tests.found_cards import found

TOOL = pathlib.Path(__file__).parents[2] / "data/tools/nvidia-smi.sh"
NICS = '[nic_driver]\ndevice_spec = {"vendor_id": "15b3"}\n'


def test_devices_behind_one_switch_have_its_address(simulate):
    simulated = simulate("hgx")

    (only,) = simulated.call(passes.run, ["nvidia_gpu_driver", "nic_driver"], NICS)

    switches = {
        driver: [device.deployables[0].attributes.get("pcie_switch") for device in devices]
        for driver, devices in only.devices.items()
    }
    first, second = "0000:01:00.0", "0000:02:00.0"
    assert switches == {
        "nvidia_gpu_driver": [first, first, second, second, None],
        "nic_driver": [first, second],
    }


def test_virtual_functions_are_where_their_card_is(simulate):
    simulated = simulate({"cards": [{"card": "connectx6", "switch": 3, "vfs": 2}]})

    parts = [part for each in found(simulated, "nic_driver", NICS) for part in each.deployables]

    assert [part.attributes["pcie_switch"] for part in parts] == ["0000:03:00.0"] * 2


@pytest.fixture
def tool(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder with NVIDIA's tool, which is the agent's own too."""
    shutil.copy(TOOL, tmp_path / "nvidia-smi")
    (tmp_path / "boot_id").write_text("first")
    return tmp_path


def connect(tool: pathlib.Path, order: list[str], links: Mapping[frozenset[str], int]) -> None:
    """Let the tool show GPUs in that order with so many links between two."""
    names = [f"GPU{number}" for number in range(len(order))]
    lines = ["\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"]
    for name, one in zip(names, order, strict=True):
        cells = [
            " X " if one == each else f"NV{links[pair]}" if pair in links else "SYS"
            for each in order
            for pair in [frozenset({one, each})]
        ]
        lines.append("\t".join([name, *cells, "0-31", "0"]))
    (tool / "topo").write_text("\n".join([*lines, "", "Legend:", "", "  X    = Self", ""]))
    places = (f"{number}, 0000{place.upper()}\n" for number, place in enumerate(order))
    (tool / "places").write_text("".join(places))


def seen(folder: str) -> list[dict[str, object]]:
    """What two passes show of the links of each GPU, the tool asked between them; and errors."""
    privileged.programming.set_client_mode(False)
    privileged._NVIDIA_SMI = f"{folder}/nvidia-smi"
    topology._BOOT_ID = f"{folder}/boot_id"
    text = f"[DEFAULT]\nstate_path = {folder}\n[gpu_devices]\nread_topology = true\n"
    loaded = registry.load(passes.configured(text, ["nvidia_gpu_driver"], "host-1"))
    driver = loaded.drivers["nvidia_gpu_driver"]
    assert isinstance(driver, nvidia_gpu.NvidiaGpuDriver)
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    passes_shown = []
    for _ in range(2):
        findings = looking.run()
        looking.remember()
        if driver._topology._asking is not None:
            driver._topology._asking.join()
        (devices,) = findings.devices.values()
        shown: dict[str, object] = {of(device): link_facts(device) for device in devices}
        passes_shown.append(shown | dict(findings.errors))
    return passes_shown


def of(device: base.Device) -> str:
    return pci.join(device.control_path.cpid_info)


def link_facts(device: base.Device) -> tuple[object, ...]:
    (part,) = device.deployables
    facts = [part.attributes.get(key) for key in ("link_group", "nvlink_peers", "nvlink_links")]
    assert ("CUSTOM_NVLINK" in part.traits) == (facts[0] is not None)
    return tuple(facts)


def test_gpus_that_nvlink_connects_say_so_until_the_host_has_others(simulate, tool):
    simulated = simulate("hgx")
    one, two, three, four = (simulated.card("h100", number) for number in range(4))
    alone = simulated.card("alone")
    no_links = (None, None, None)
    pairs = {frozenset({one, three}): 12, frozenset({two, four}): 4}
    connect(tool, [alone, four, three, two, one], pairs)

    first, second = simulated.call(seen, str(tool))

    assert set(first.values()) == {no_links}
    linked = {
        one: (one, three, 12),
        three: (one, one, 12),
        two: (two, four, 4),
        four: (two, two, 4),
        alone: no_links,
    }
    assert second == linked
    # The next agent asks no more, and a guest's GPU keeps what is known of it.
    (tool / "asked").unlink()
    simulated.detach(three)
    simulated.attach(three, "vfio-pci")
    assert simulated.call(seen, str(tool)) == [linked, linked]
    assert not (tool / "asked").exists()

    # After a reboot without a bridge, one that a guest has is not shown.
    (tool / "boot_id").write_text("second")
    connect(tool, [one, two, four, alone], {frozenset({one, two}): 2, frozenset({one, four}): 3})
    _, later = simulated.call(seen, str(tool))
    assert later[one] == (one, " ".join(sorted([two, three, four])), 2)
    assert later[two] == (one, one, 2)
    assert later[three] == (one, one, 12)


@pytest.mark.parametrize("output", [None, "", "GPU0\tGPU1\n", "No devices were found\n"])
def test_a_tool_that_shows_no_links_or_is_absent_costs_a_sentence(simulate, tool, output):
    simulated = simulate({"cards": [{"card": "h100", "count": 2}]})
    connect(tool, [simulated.card("h100", number) for number in range(2)], {})
    if output is None:
        (tool / "nvidia-smi").unlink()
    else:
        (tool / "topo").write_text(output)

    first, second = simulated.call(seen, str(tool))

    said = second.pop("nvidia_gpu_driver")
    first.pop("nvidia_gpu_driver", None)
    assert said.startswith("[gpu_devices] read_topology has no effect: ")
    why = "nvidia-smi is not installed" if output is None else "has shown no matrix of the GPUs"
    assert why in said
    assert first == second


def test_gpus_of_one_hive_are_linked(simulate):
    gpu = {"card": "mi300x", "attributes": {"xgmi_hive_info/xgmi_hive_id": "2748"}}
    simulated = simulate({"cards": [{**gpu, "count": 2}, "mi210"]})

    devices = found(simulated, "amd_gpu_driver")

    groups = [device.deployables[0].attributes.get("link_group") for device in devices]
    assert groups == ["xgmi abc", "xgmi abc", None]
