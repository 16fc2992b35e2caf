# SPDX-License-Identifier: Apache-2.0
"""The order of hosts in Nova's scheduler, and what function pools learn of failed builds."""

from __future__ import annotations

import contextlib
import os
import uuid

import pytest
import settings

from cyborg.programming import program

FPGA = {"resources:FPGA": "1"}
#: The vendor in the traits of the fake driver's functions.
VENDOR = "FAKE"


def test_servers_go_to_the_host_that_runs_what_they_prefer(scene):
    function = f"aes-{uuid.uuid4()}"
    scene.upload_bitstream(function, function)
    programmed = scene.boot(scene.offer(FPGA | {"accel:function_id": function}))
    (runs_it,) = scene.check_bound(programmed, 1)
    preferring = scene.offer(FPGA | {"accel:preferred_function": function})

    # Nova's own weighers would choose the other host, which has more memory left.
    for _ in range(3):
        (arq,) = scene.check_bound(scene.boot(preferring), 1)
        assert arq["device_rp_uuid"] == runs_it["device_rp_uuid"]


def test_a_pool_grows_by_a_server_for_which_no_host_had_the_function(scene):
    function = f"aes-{uuid.uuid4()}"
    scene.upload_bitstream(function, function)
    trait = program.function_trait(VENDOR, function)
    flavor = scene.offer(FPGA | {"accel:function_id": function, f"trait:{trait}": "required"})
    pool = scene.make_pool(function, free=0, max_devices=1)

    server = scene.until_status(scene.create(flavor), "ERROR")
    assert "No valid host" in scene.fault(server)
    scene.until("the miss", lambda: scene.pool(pool)["misses"] or None)
    scene.until("a free slot", lambda: scene.pool(pool)["ready"] or None)
    scene.delete(server)

    (arq,) = scene.check_bound(scene.boot(flavor), 1)
    assert scene.program_of(arq["device_rp_uuid"])["function_id"] == function
    scene.delete_pool(pool)


#: The host with several cards, and how many each has, of so many accelerators.
HOST, CARDS, HANDLES = settings.HOSTS[0], 4, 4
TRAIT = {"trait:CUSTOM_SEVERAL_CARDS": "required"}
#: How often as many servers are booted as a card has accelerators: 13 makes 52 servers.
ROUNDS = int(os.environ.get("CYBORG_STACK_ROUNDS", "1"))


@pytest.fixture(scope="module")
def cards(prepared):
    """The providers of the cards of one host, each with a trait of its own, in Placement's order.

    The last of them is what Nova would claim last by itself.
    """
    stack = prepared.stack
    fake = {"devices": CARDS, "handles_per_device": HANDLES}
    stack.settings().agent(HOST, {"fake_driver": fake})
    stack.restart(f"cyborg-agent-{HOST}")
    attributes: list[str] = []
    try:
        found = prepared.until("the cards", lambda: offered(prepared))
        for number, provider in enumerate(found):
            traits = [f"CUSTOM_CARD_{number}", "CUSTOM_SEVERAL_CARDS"]
            attributes += prepared.give_traits(provider, traits)
        prepared.until("their traits", lambda: offered(prepared, TRAIT))
        yield found
    finally:
        for attribute in attributes:
            prepared.cloud.accelerator.delete(f"/attributes/{attribute}")
        stack.settings().agent(HOST)
        stack.restart(f"cyborg-agent-{HOST}")
        # The first report without them changes nothing, as most of the host's cards are missing.
        prepared.until("the end of the cards", lambda: offered(prepared, count=1))
        prepared.mend_host(HOST)


def offered(scene, traits=None, count=CARDS):
    """The host's cards in the order in which Placement offers them, once they are so many."""
    asked = ["resources1=FPGA:1", f"in_tree1={scene.root_of(HOST)}"]
    asked += [f"required1={name.removeprefix('trait:')}" for name in traits or ()]
    answer = scene.cloud.placement.get(
        f"/allocation_candidates?{'&'.join(asked)}", microversion="1.31"
    ).json()
    requests = answer.get("allocation_requests", [])
    found = [next(iter(request["allocations"])) for request in requests]
    return found if len(found) == count else None


@contextlib.contextmanager
def one_host_left(scene, alone):
    """While only that host takes servers, which Nova does not weigh then."""
    other = next(iter({*settings.HOSTS} - {HOST}))
    (service,) = scene.compute.services(host=other, binary="nova-compute")
    if alone:
        scene.compute.disable_service(service)
    try:
        yield
    finally:
        if alone:
            scene.compute.enable_service(service)


@pytest.mark.parametrize("alone", [False, True])
def test_of_one_hosts_cards_the_preferred_one_is_claimed(scene, cards, alone):
    for number in range(ROUNDS):
        which = (CARDS - 1 - number) % CARDS
        flavor = scene.offer(FPGA | TRAIT | {"accel:preferred_trait": f"CUSTOM_CARD_{which}"})
        with one_host_left(scene, alone):
            servers = scene.boot_all(HANDLES, flavor)
        assert [server.status for server in servers] == ["ACTIVE"] * HANDLES
        claimed = [arq["device_rp_uuid"] for server in servers for arq in scene.arqs(server)]
        assert claimed == [cards[which]] * HANDLES
        for server in servers:
            scene.check_bound(server, 1)
            scene.delete(server)


def test_what_is_left_of_a_card_is_claimed_before_an_idle_one(scene, cards):
    flavor = scene.offer(FPGA | TRAIT)
    servers = [scene.boot(flavor) for _ in range(HANDLES)]

    claimed = {arq["device_rp_uuid"] for server in servers for arq in scene.arqs(server)}
    assert len(claimed) == 1
    # A server that wants a whole card finds one.
    scene.check_bound(scene.boot(scene.offer({"resources:FPGA": str(HANDLES)} | TRAIT)), HANDLES)


def test_a_server_starts_at_once_on_a_host_that_cards_have_left(scene, cards):
    """nova-compute asks at each claim for the allocations of all providers that it has read."""
    flavor = scene.offer(FPGA)
    scene.restart_compute(HOST)
    with one_host_left(scene, alone=True):
        scene.delete(scene.boot(flavor))
        scene.stack.settings().agent(HOST)
        scene.stack.restart(f"cyborg-agent-{HOST}")
        scene.until("the end of the cards", lambda: offered(scene, count=1))

        scene.check_bound(scene.boot(flavor), 1)
