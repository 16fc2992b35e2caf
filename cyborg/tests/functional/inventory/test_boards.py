# SPDX-License-Identifier: Apache-2.0
"""Devices that belong together are given to one guest, all or none."""

from __future__ import annotations

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, pci, registry
from cyborg.drivers.pci import device_spec
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import hosts
from cyborg.tests.contract import passes
from cyborg.tests.service import Site

SPEC = """
[pci]
device_spec = {"vendor_id": "10de", "board": "hgx-0", "resource_class": "CUSTOM_HGX"}
device_spec = {"vendor_id": "15b3"}
"""


def agent(text: str) -> tuple[base.Device, ...]:
    """What an agent finds that has just been started."""
    loaded = registry.load(passes.configured(text, ["pci_driver"], "host-1"))
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    findings = looking.run()
    assert findings.errors == {}
    looking.remember()
    return tuple(findings.devices["pci_driver"])


def board_of(devices: tuple[base.Device, ...]) -> base.Device:
    (board,) = (
        device for device in devices if device.deployables[0].resource_class == "CUSTOM_HGX"
    )
    return board


def addresses(device: base.Device) -> list[str]:
    return [pci.join(handle.attach_info) for handle in device.deployables[0].attach_handles]


def test_the_functions_of_a_board_are_one_device(simulate):
    simulated = simulate("hgx")
    named = simulated.layout.named
    members = sorted([*named["h100"], *named["alone"], *named["nvswitch"]])

    (only,) = simulated.call(passes.run, ["pci_driver"], SPEC)

    assert only.errors == {}
    devices = only.devices["pci_driver"]
    assert len(devices) == 3  # the board, and two network cards by themselves
    board = board_of(devices)
    (part,) = board.deployables
    assert addresses(board) == members
    assert (part.name, part.num_accelerators) == ("host-1_board_hgx-0", len(members))
    assert {"CUSTOM_PCI_BOARD", "CUSTOM_PCI_PRODUCT_ID_22A3"} <= set(part.traits)
    assert part.attributes["board_functions"] == len(members)
    # What is not true of all is not said of the board.
    assert "pci_address" not in part.attributes
    assert board.unhealthy is None

    # With a function of another driver it is not offered.
    (only,) = simulated.call(passes.run, ["nvidia_gpu_driver", "pci_driver"], SPEC)

    gpus = sorted([*named["h100"], *named["alone"]])
    theirs = only.devices["nvidia_gpu_driver"]
    assert sorted(pci.join(each.control_path.cpid_info) for each in theirs) == gpus
    assert len(only.devices["pci_driver"]) == 2  # the network cards, and none of the NVSwitches
    said = f"board hgx-0 is not offered: {gpus[0]} is another driver's"
    assert said in only.errors["pci_driver"]


def test_a_board_with_a_function_that_the_host_uses_is_not_offered(simulate):
    text = '[pci]\ndevice_spec = {"vendor_id": "10de", "board": "b"}\n'
    cards = ["t4", {"card": "t4", "name": "screen", "class": "030000", "boot_vga": 1}]
    simulated = simulate({"cards": cards})

    (only,) = simulated.call(passes.run, ["pci_driver"], text)

    assert only.devices["pci_driver"] == ()


@pytest.mark.parametrize("card", ["h100", "nvswitch"], ids=["the first", "another"])
def test_a_board_that_has_lost_a_function_is_unhealthy_also_after_a_restart(
    simulate, tmp_path, card
):
    simulated = simulate("hgx")
    lost = simulated.card(card)
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n{SPEC}"

    before = board_of(simulated.call(agent, text))
    simulated.pull(lost)
    after = board_of(simulated.call(agent, text))

    assert after.unhealthy == f"PCI function {lost} of board hgx-0 is missing from the bus"
    assert after.control_path == before.control_path
    assert after.deployables[0].name == before.deployables[0].name
    assert lost not in addresses(after)


@pytest.mark.parametrize("broken", ["alone", "h100"], ids=["another", "the first"])
def test_a_board_that_was_never_seen_whole_is_not_taken_for_a_smaller_one(
    simulate, tmp_path, broken
):
    simulated = simulate("hgx")
    place = f"{simulated.path(simulated.card(broken))}/numa_node"
    node = simulated.files.read(place)
    simulated.files.put(place, "nonsense")
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n{SPEC}"

    (only,) = simulated.call(passes.run, ["pci_driver"], text)
    simulated.files.put(place, node)
    board = board_of(simulated.call(agent, text))

    assert len(only.devices["pci_driver"]) == 2  # the network cards
    assert f"{simulated.card(broken)}, which is or may be of its board" in only.errors["pci_driver"]
    assert board.deployables[0].attributes["board_functions"] == len(addresses(board))
    # Later it is not offered either, and the conductor keeps devices with what is not read.
    simulated.files.put(place, "nonsense")
    (only,) = simulated.call(passes.run, ["pci_driver"], text)
    assert simulated.card(broken) in only.unread.intersection(addresses(board))
    assert len(only.devices["pci_driver"]) == 2


def reads_of_the_list(text: str) -> tuple[int, int]:
    """How many functions there are, and how often a pass compares one with the operator's list."""
    loaded = registry.load(passes.configured(text, ["pci_driver"], "host-1"))
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    compared: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        found = device_spec.first_match

        def counted(specs, function, functions):
            compared.append(function.address)
            return found(specs, function, functions)

        patch.setattr(device_spec, "first_match", counted)
        looking.run()
    return len(pci.scan()), len(compared)


def test_a_board_costs_as_much_a_function_however_large_it_is(simulate):
    text = '[pci]\ndevice_spec = {"vendor_id": "8086", "board": "b"}\n'
    costs = []
    for cards in (1, 4):
        simulated = simulate({"cards": [{"card": "x710", "vfs": 15, "count": cards}]})
        functions, compared = simulated.call(reads_of_the_list, text)
        costs.append(compared / functions)

    assert costs[1] <= costs[0] * 1.1


def test_a_board_is_as_well_and_as_clean_as_each_of_its_functions(simulate):
    simulated = simulate("hgx")
    one = simulated.card("alone")
    for methods, policy, cleans, withheld in (
        ("flr", "required", True, False),
        # One function that cannot be reset keeps what the guest of the whole board has left.
        ("\n", "required", True, True),
        ("\n", "on", False, False),
    ):
        simulated.files.put(f"{simulated.path(one)}/reset_method", methods)
        text = f"{SPEC}[cleaning]\ndefault = {policy}\n"
        (only,) = simulated.call(passes.run, ["pci_driver"], text)

        board = board_of(only.devices["pci_driver"])
        assert board.deployables[0].cleans is cleans
        said = f"the kernel has no way to reset PCI function {one}"
        assert (said in (board.unhealthy or "")) is withheld

    simulated.degrade(one, width=4)
    (only,) = simulated.call(passes.run, ["pci_driver"], text)

    narrow = board_of(only.devices["pci_driver"]).unhealthy
    assert narrow == f"The link of PCI function {one} has 4 lanes of 16"


def test_placement_gives_a_board_out_as_a_whole_only(site: Site) -> None:
    board = hosts.deployable(
        "host-1_board_b", (0, 1, 2), resource_class="FPGA", attributes={"board_functions": 3}
    )
    site.placement.make_provider(hosts.ROOT)
    hosts.apply(hosts.device("b", board))
    site.placement.sync()

    asked = "/allocation_candidates?resources=FPGA:{}"
    found = {
        number: len(site.placement.call("GET", asked.format(number))["allocation_requests"])
        for number in (1, 2, 3)
    }

    assert found == {1: 0, 2: 0, 3: 1}
    path = f"/resource_providers/{provider_uuid('host-1_board_b')}/inventories"
    inventory = site.placement.call("GET", path)["inventories"]["FPGA"]
    assert (inventory["min_unit"], inventory["step_size"], inventory["total"]) == (3, 3, 3)
