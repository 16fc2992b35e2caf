# SPDX-License-Identifier: Apache-2.0
"""Claims that name a program: their devices run it before their pods are placed for good."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.tests.fpga import Card
from cyborg.tests.kube_node import Node
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

DRIVER = "cyborg.openstack.org"
READY, FAILED = f"{DRIVER}/programmed", f"{DRIVER}/not-programmed"
AES = "aes-128"


def config(**program: str) -> list[dict[str, Any]]:
    """What a claim says of all its devices, behind what another driver is told."""
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "Program"} | program
    return [
        {"source": "FromClass", "opaque": {"driver": "nic.example.org", "parameters": {}}},
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}},
    ]


@pytest.fixture
def start(node: Node, start_card: Any) -> Any:
    """Start the node with a card of the mode; the card, and what the kubelet finds."""

    def started(mode: str) -> tuple[Card, Any]:
        card: Card = start_card(mode)
        node.taint()
        plugin = node.start()
        node.devices()
        return card, plugin

    return started


def told(node: Node, claim: Any) -> tuple[str, str]:
    """The condition that the scheduler waits for."""
    found: tuple[str, str] = node.site.hurry(lambda: node.cluster.condition(claim))
    return found


def test_a_claim_is_programmed_before_its_pod_is_placed(node: Node, start: Any) -> None:
    card, plugin = start("dynamic")
    image = card.image(AES)
    names = node.devices()
    assert node.cluster.devices()[names[0]]["bindingConditions"] == [READY]
    assert node.cluster.devices()[names[0]]["bindingFailureConditions"] == [FAILED]
    node.site.hang("program")
    claim = node.cluster.claim(names[0], config=config(function=AES))
    until(card.is_writing)
    # Who needs no program waits for nobody.
    assert told(node, node.cluster.claim(names[1]))[0] == READY
    assert node.cluster.condition(claim) is None
    node.site.obey()
    assert told(node, claim)[0] == READY
    assert card.runs()["image_uuid"] == image
    assert node.allocation(claim[2])["state"] == "Active"
    held = node.site.held()
    answer = plugin.prepare(claim)[claim[2]]
    assert (answer.error, len(answer.devices)) == ("", 1)
    assert node.site.held() == held
    assert plugin.unprepare(claim)[claim[2]].error == ""
    node.site.hurry(lambda: not node.site.held())


def test_what_was_programmed_is_given_back_if_the_claim_is_gone(node: Node, start: Any) -> None:
    card, _plugin = start("dynamic")
    card.image(AES)
    (first, second, *_) = node.devices()
    claim = node.cluster.claim(first, config=config(function=AES))
    assert told(node, claim)[0] == READY
    assert len(node.site.held()) == 1
    # The scheduler takes the devices back, as after its own deadline.
    node.cluster.claims[claim[:2]]["status"] = {}
    node.site.hurry(lambda: not node.site.held())
    assert node.allocation(claim[2]) is None

    other = node.cluster.claim(second, config=config(function="none"))
    assert told(node, other)[0] == FAILED
    node.site.slow_down("prepare", seconds=1)
    last = node.cluster.claim(first, config=config(function=AES))
    node.site.hurry(lambda: node.allocation(last[2]))
    del node.cluster.claims[last[:2]]
    node.site.hurry(lambda: node.allocation(last[2]) is None)
    node.site.hurry(lambda: not node.site.held())


#: What a claim may say of its program, and why nothing runs that.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"function": "none"}, "none"),
    ({"layout": "1g.10gb"}, "takes no layout"),
    ({}, "just one of function, functionName, bitstream, layout"),
    ({"function": "a", "layout": "b"}, "just one of"),
    ({"function": 7}, "must be a text"),
    ({"kind": "Other", "function": AES}, "must be of kind Program"),
]


def test_the_scheduler_is_told_what_cannot_be(node: Node, start: Any) -> None:
    start("dynamic")
    name = node.devices()[0]
    claims = [node.cluster.claim(name, config=config(**wanted)) for wanted, _why in REFUSED]
    for claim, (wanted, why) in zip(claims, REFUSED, strict=True):
        condition, message = told(node, claim)
        assert condition == FAILED, wanted
        assert why in message
    assert node.site.held() == {}


def test_a_card_with_one_program_is_programmed_for_its_claim(node: Node, start: Any) -> None:
    card, plugin = start("single-program")
    card.image(AES)
    name = node.devices()[0]
    assert (f"{DRIVER}/not-programmed", "NoSchedule") in node.taints()
    claim = node.cluster.claim(name, config=config(function=AES))
    assert told(node, claim)[0] == READY
    assert card.runs()["function_id"] == AES
    assert plugin.prepare(claim)[claim[2]].error == ""
    plugin.unprepare(claim)


def test_a_cluster_without_conditions_has_it_programmed_when_the_pod_starts(node, start) -> None:
    node.cluster.drops = {"bindingConditions", "bindingFailureConditions", "bindsToNode"}
    card, plugin = start("dynamic")
    card.image(AES)
    claim = node.cluster.claim(node.devices()[0], config=config(functionName=AES))
    wrong = plugin.prepare(claim)[claim[2]].error
    assert "is Failed" in wrong or "409" in wrong
    node.cluster.claim(node.devices()[0], uid=claim[2], config=config(function=AES))
    until(lambda: not plugin.prepare(claim)[claim[2]].error)
    assert card.runs()["function_id"] == AES
    assert "devices" not in node.cluster.claims[claim[:2]]["status"]
    plugin.unprepare(claim)


OPTIONS = "[gpu_devices]\nlayouts = H100XM-40C, H100XM-4C\n"


def test_a_claim_of_a_layout_has_the_whole_card_in_it(node: Node, start_layouts: Any) -> None:
    node.site.conf.clear_override("cdi_dir", group="agent")
    start_layouts([{"card": "h100", "name": "gpu", "vfs": 8}], "nvidia_gpu_driver", OPTIONS)
    node.taint()
    node.start()
    found = node.see(node.cluster.devices)
    layouts = {each["attributes"]["layout"]["string"]: name for name, each in found.items()}
    assert len(layouts) == 2
    slots = int(found[layouts["H100XM-4C"]]["capacity"]["accelerators"]["value"])
    claim = node.cluster.claim(layouts["H100XM-4C"])
    assert told(node, claim)[0] == READY
    allocation = node.allocation(claim[2])
    assert allocation["state"] == "Active"
    assert len(allocation["accelerators"]) == slots > 1
    # The present layout's own accelerators are there, and not for others: the counters say so.
    node.see(lambda: len(node.cluster.devices()) == slots + 2)
    # A layout that is no device of the card's cannot be had by its config.
    wrong = node.cluster.claim(layouts["H100XM-40C"], config=config(layout="H100XM-4C"))
    condition, message = told(node, wrong)
    assert condition == FAILED
    assert "has layout H100XM-40C" in message
    del node.cluster.claims[claim[:2]]
    node.site.hurry(lambda: not node.site.held())
