# SPDX-License-Identifier: Apache-2.0
"""Boots while something dies, boots by the dozen, boots that are given up."""

from __future__ import annotations

import signal
import time
from concurrent import futures

import pytest
import settings
from scene import ACCELERATORS


def test_as_many_servers_as_accelerators_at_once_and_then_more(scene):
    servers = scene.boot_all(ACCELERATORS)

    assert [server.status for server in servers] == ["ACTIVE"] * ACCELERATORS
    for server in servers:
        scene.check_bound(server, 1)
    scene.check_no_handle_twice(servers)

    surplus = scene.boot_all(3)

    assert [server.status for server in surplus] == ["ERROR"] * 3
    assert all("No valid host" in scene.fault(server) for server in surplus)
    assert all(scene.arqs(server) == [] for server in surplus)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.8])
def test_deleted_while_it_is_built(scene, after):
    server = scene.create("accel-two")
    time.sleep(after)

    scene.delete(server)

    scene.check_at_rest()


def test_deleted_while_its_guest_starts(scene):
    with scene.held_spawns():
        server = scene.create("accel-two")
        scene.until("the start of the guest", lambda: starting(scene, server))
        scene.check_bound(server, 2)
        scene.compute.delete_server(server)
        scene.until("a server that is to go", lambda: leaving(scene, server))
    scene.until_gone(server)


def starting(scene, server):
    """The server as it is, once its guest is about to start."""
    found = scene.compute.get_server(server.id)
    return found if found.task_state == "spawning" else None


def leaving(scene, server):
    """Whether the server is being deleted, or is gone."""
    found = scene.compute.find_server(server.id, all_projects=True)
    return found is None or found.task_state == "deleting" or None


def test_a_build_that_fails_goes_on_at_the_other_host(scene):
    """What was bound on the first host is given back, and as much is bound on the second."""
    with scene.held_spawns():
        server = scene.create("accel-groups")
        first = scene.until("the start of the guest", lambda: starting(scene, server))
        before = scene.check_bound(server, 3)
        scene.fail_spawns(1)
    server = scene.until_status(server, "ACTIVE")

    assert server.compute_host != first.compute_host
    after = scene.check_bound(server, 3)
    assert not handles(before) & handles(after)
    assert scene.arqs() == after


def test_a_claim_that_fails_goes_on_at_the_other_host(scene):
    """Nova leaves the ARQs that it has bound on the first host with the server then."""
    host, placement, trait = settings.HOSTS[0], scene.cloud.placement, f"CUSTOM_{time.time_ns()}"
    (card,) = (uuid for uuid, whose in scene.providers().items() if whose == host)
    (attribute,) = scene.give_traits(card, [trait])
    flavor = scene.offer({"resources:FPGA": "1", "accel:preferred_trait": trait})
    body = {"name": "of an operator", "parent_provider_uuid": scene.root_of(host)}
    how = {"json": body, "microversion": "1.20", "raise_exc": True}
    made = placement.post("/resource_providers", **how).json()["uuid"]
    scene.restart_compute(host)
    # It has read a provider that is gone, and so claims nothing.
    placement.delete(f"/resource_providers/{made}", raise_exc=True)

    server = scene.boot(flavor)

    assert server.compute_host != host
    scene.check_bound(server, 1)
    scene.restart_compute(host)
    scene.cloud.accelerator.delete(f"/attributes/{attribute}")


def handles(arqs):
    """The attach handles of requests."""
    return {arq["attach_handle_uuid"] for arq in arqs}


def test_a_build_that_fails_everywhere_leaves_nothing_behind(scene):
    scene.fail_spawns(len(settings.HOSTS))

    server = scene.until_status(scene.create("accel-groups"), "ERROR")

    assert "exhausted" in scene.fault(server).lower()
    scene.until("release", lambda: None if scene.arqs() else True)
    assert scene.allocations(server) == {}


def test_deleted_while_its_host_is_down(scene):
    """Nova cannot always tell us then: what it leaves behind is found by asking."""
    server = scene.boot("accel-two")
    host = server.compute_host
    scene.fail_host(host)
    try:
        scene.delete(server)
        scene.until("release", lambda: None if scene.arqs() else True)
    finally:
        scene.mend_host(host)


def test_a_compute_that_returns_deletes_without_a_token(scene):
    """It has no user's token then, so Cyborg refuses it; the accelerators are released later."""
    server = scene.boot("accel-two")
    scene.stack.records.stop(f"nova-compute-{server.compute_host}")
    scene.compute.delete_server(server)
    scene.stack.start(f"nova-compute-{server.compute_host}")
    scene.until_gone(server)

    scene.until("release", lambda: None if scene.arqs() else True)


def test_a_conductor_is_killed_during_boots(scene):
    """Again and again, so that one of them is in the middle of something."""
    servers = [scene.create("accel-two", name=f"guest-{number}") for number in range(4)]
    for _ in range(4):
        scene.stack.restart("cyborg-conductor-1", signal.SIGKILL)

    for server in servers:
        scene.until_status(server, "ACTIVE")
        scene.check_bound(server, 2)


def test_both_conductors_are_killed_during_boots(scene):
    servers = [scene.create(name=f"guest-{number}") for number in range(4)]
    time.sleep(0.3)
    for victim in ("cyborg-conductor-1", "cyborg-conductor-2"):
        scene.stack.restart(victim, signal.SIGKILL)

    for server in servers:
        scene.until_status(server, "ACTIVE")
        scene.check_bound(server, 1)


@pytest.mark.parametrize("name", ["nova", "cyborg"])
def test_an_api_is_restarted_during_boots(scene, name):
    """What Nova cannot reach it may give up: then the server fails, but nothing of it stays.

    A request of which Nova did not get to know, as our API ended before it answered, is nobody's:
    it holds nothing, and expires.
    """
    servers = [scene.create(name=f"guest-{number}") for number in range(3)]
    with futures.ThreadPoolExecutor() as pool:
        restarted = pool.submit(scene.stack.restart, name)
        settled = [scene.until_status(server, "ACTIVE", "ERROR") for server in servers]
        restarted.result()

    for server in settled:
        if server.status == "ACTIVE":
            scene.check_bound(server, 1)
    if name == "nova":
        assert [server.status for server in settled] == ["ACTIVE"] * 3


def test_a_device_is_disabled_and_enabled(scene):
    devices = list(scene.cloud.accelerator.devices())
    for device in devices:
        assert scene.cloud.accelerator.post(f"/devices/{device.id}/disable").status_code == 204
    try:
        scene.until("reserved providers", lambda: scene.offered() == 0 or None)
        server = scene.until_status(scene.create(), "ERROR")
        assert "No valid host" in scene.fault(server)
    finally:
        for device in devices:
            scene.cloud.accelerator.post(f"/devices/{device.id}/enable")
    scene.until("offered providers", lambda: scene.offered() == ACCELERATORS or None)
    scene.check_bound(scene.boot(), 1)
