# SPDX-License-Identifier: Apache-2.0
"""What cyborg-kube publishes of devices: attributes, taints, and what excludes each other."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import pytest

from cyborg.drivers import base
from cyborg.kube import endpoints, pci, service, slices
from cyborg.peers import clients
from cyborg.tests import hosts
from cyborg.tests.kube_node import Node

DRIVER = "cyborg.openstack.org"


def published(node: Node, *devices: base.Device) -> dict[str, Any]:
    """What the driver publishes of these devices, without their agent."""
    node.site.start_with(*devices)
    node.taint()
    driver = service.KubeletPlugin(node.site.conf)
    for _ in range(2):
        driver._look()
    return node.cluster.devices()


def card(letter: str, slots: int, **attributes: Any) -> base.Device:
    """A card whose functions are 0000:3b:00.<n>."""
    handles = tuple(
        base.AttachHandle(
            attach_type="PCI",
            attach_info={"domain": "0000", "bus": "3b", "device": "0", "function": str(number)},
        )
        for number in range(slots)
    )
    return hosts.device(
        letter,
        hosts.deployable(
            f"host-1_{letter}",
            num_accelerators=slots,
            attach_handles=handles,
            attributes=attributes,
        ),
    )


@pytest.mark.parametrize(
    ("slots", "attributes", "expected"),
    [
        (
            1,
            {"pci_address": "0000:3b:00.0", "numa_node": 1, "link": "16.0 GT/s x8"},
            {
                "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
                "resource.kubernetes.io/numaNode": {"int": 1},
                "link_mts": {"int": 16000},
                "link_lanes": {"int": 8},
            },
        ),
        # Which of several functions a pod gets is not known yet.
        (4, {"link": "2.5 GT/s x1"}, {
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
            "link_mts": {"int": 2500},
            "link_lanes": {"int": 1},
        }),
        # The card is on another machine's bus, or gone.
        (2, {"pci_address": "0000:99:00.0", "link": "fast"}, {}),
    ],
)  # fmt: skip
def test_places_are_standard_attributes(
    node, tmp_path, monkeypatch, slots, attributes, expected
) -> None:
    monkeypatch.setattr(pci, "DEVICES", str(tmp_path))
    target = "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    (tmp_path / "0000:3b:00.0").symlink_to(target)
    found = published(node, card("a", slots, **attributes))
    assert len(found) == slots
    for device in found.values():
        shown = {
            key: value
            for key, value in device["attributes"].items()
            if key.startswith(("resource.", "link", "numa", "pci"))
        }
        assert shown == expected


@pytest.mark.parametrize(
    "info", [{}, {"domain": "0000", "bus": "../..", "device": "0", "function": "0"}, {"bus": 7}]
)
def test_what_is_no_place_is_none(info: dict[str, Any]) -> None:
    assert pci.address(info) is None
    assert pci.root("../../etc") is None


def test_what_there_is_no_room_for_is_said(node, caplog) -> None:
    caplog.set_level("INFO", "cyborg.kube")
    many = {f"fact_{number:02}": "x" for number in range(40)}
    (device,) = published(node, card("a", 1, numa_node=0, **many)).values()
    assert len(device["attributes"]) + len(device["capacity"]) == 32
    assert device["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 0}
    said = [each.getMessage() for each in caplog.records if "has no room" in each.getMessage()]
    assert len(said) == 1
    assert "CUSTOM_FAKE_DEVICE, CUSTOM_NUMA_NODE_0, fact_" in said[0]
    kept = {f"fact_{number:02}" for number in range(40)} & device["attributes"].keys()
    assert all(name not in said[0] for name in kept)


def test_devices_are_tainted_while_cyborg_does_not_answer(node: Node) -> None:
    node.site.start_with(card("a", 2))
    node.taint()
    driver, late = (service.KubeletPlugin(node.site.conf) for _ in range(2))
    driver._look()
    down = (f"{DRIVER}/cyborg-down", "NoSchedule")
    node.site.conf.set_override("endpoint_override", "http://127.0.0.1:9/v2", group="kube")
    clients.close()
    for expected in (False, False, True, True):
        driver._look()
        assert (down in node.taints()) is expected
    assert len(node.cluster.devices()) == 2
    # One that was started meanwhile does not know what the slices are worth.
    for _ in range(3):
        late._look()
    assert node.cluster.slices == {}
    node.site.conf.set_override("endpoint_override", node.site.endpoint, group="kube")
    clients.close()
    driver._look()
    assert len(node.cluster.devices()) == 2
    assert down not in node.taints()


def fits(node: Node, *devices: str) -> bool:
    """Whether the scheduler would allocate all of them, by the counters."""
    left = {
        (each["name"], name): int(counter["value"])
        for found in node.cluster.slices.values()
        for each in found["spec"].get("sharedCounters", ())
        for name, counter in each["counters"].items()
    }
    for device in devices:
        for use in node.cluster.devices()[device].get("consumesCounters", ()):
            for name, counter in use["counters"].items():
                left[use["counterSet"], name] -= int(counter["value"])
    return all(amount >= 0 for amount in left.values())


LAYOUTS = {"layout_1g.10gb": "7", "layout_3g.40gb": "2"}


@pytest.mark.parametrize(("slots", "function"), [(2, "3g.40gb"), (0, "")])
def test_layouts_of_a_card_exclude_each_other(node: Node, slots: int, function: str) -> None:
    one = card("a", slots, **LAYOUTS)
    part = dataclasses.replace(
        one.deployables[0], program_mode="layout", function=function, function_vendor="FAKE"
    )
    found = published(node, dataclasses.replace(one, deployables=(part,)))
    assert len(found) == slots + 2
    layouts = {
        device["attributes"]["layout"]["string"]: name
        for name, device in found.items()
        if "layout" in device["attributes"]
    }
    small, large = layouts["1g.10gb"], layouts["3g.40gb"]
    assert found[small]["capacity"] == {"accelerators": {"value": "7"}}
    assert {slices.provider_of(name) for name in found} == {slices.provider_of(small)}
    singles = sorted(found.keys() - layouts.values())
    assert fits(node, *singles)
    assert fits(node, small)
    assert fits(node, large)
    assert not fits(node, small, large)
    assert not any(fits(node, each, single) for each in (small, large) for single in singles)
    assert all("taints" not in found[each] for each in (small, large))
    assert not any("CUSTOM_FAKE_DEVICE" in found[each]["attributes"] for each in (small, large))


def shares(count: int) -> base.Device:
    """A GPU with shares at 0000:3b:00.0."""
    place = {"domain": "0000", "bus": "3b", "device": "0", "function": "0"}
    handles = tuple(
        base.AttachHandle(attach_type=base.NODES, attach_info={**place, "share": str(number)})
        for number in range(count)
    )
    part = hosts.deployable(
        "host-1_a",
        resource_class=base.SHARE_CLASS,
        num_accelerators=count,
        attach_handles=handles,
        attributes={"memory_mib": 81920} | {f"fact_{number:02}": "x" for number in range(40)},
        shared=base.OF_ONE_PROJECT,
    )
    return hosts.device("a", part, type="GPU")


def test_shares_are_a_capacity_that_claims_have_some_of(node: Node) -> None:
    """A claim has as many of them as Kubernetes says."""
    ((name, device),) = published(node, shares(3)).items()
    assert name.endswith("-0")
    assert device["allowMultipleAllocations"] is True
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    assert device["capacity"] == {"shares": {"value": "3", "requestPolicy": policy}}
    assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:3b:00.0"}
    assert device["attributes"]["memory_mib"] == {"int": 81920}
    assert len(device["attributes"]) + len(device["capacity"]) <= 32
    assert node.cluster.counters() == {}

    plugin = node.start()
    # Without an agent no container is given them, but they are bound.
    for amount, left, why in ((2, 1, "[agent] cdi_dir"), (1, 0, "[agent] cdi_dir"), (1, 0, "room")):
        claim = node.cluster.claim(name, consumedCapacity={"shares": str(amount)}, shareID="a")
        assert why in plugin.prepare(claim)[claim[2]].error
        assert 3 - len(node.site.held()) == left


def test_each_pass_shows_the_liveness_probe_that_it_goes_on(node: Node) -> None:
    published(node, card("a", 1))
    node.start()
    alive = pathlib.Path(node.site.conf.kube.plugins_dir, DRIVER, endpoints.ALIVE)
    node.look_twice()
    os.utime(alive, (0, 0))
    node.look_twice()
    assert alive.stat().st_mtime > 0


def test_a_card_of_which_one_form_is_held_is_closed_in_the_other(node: Node) -> None:
    nodes = base.AttachHandle(attach_type=base.NODES, attach_info={"path": "platform/npu"})
    parts = (
        hosts.deployable("host-1_a", [0]),
        hosts.deployable("host-1_b", attach_handles=(nodes,), num_accelerators=1),
    )
    names = sorted(published(node, hosts.device("a", *parts)))
    assert node.taints() == set()
    plugin = node.start()
    claim = node.cluster.claim(names[0])
    plugin.prepare(claim)
    assert len(node.site.held()) == 1
    node.look_twice()
    closed = [bool(node.cluster.devices()[name].get("taints")) for name in names]
    assert closed == [False, True]


def test_each_share_is_a_device_where_kubernetes_knows_no_other_way(node, caplog) -> None:
    node.cluster.drops = {"allowMultipleAllocations"}
    found = published(node, shares(3))
    assert len(found) == 3
    assert {str(each["capacity"]["accelerators"]) for each in found.values()} == {"{'value': '1'}"}
    assert list(node.cluster.counters().values()) == [3]
    assert "without DRAConsumableCapacity" in caplog.text
