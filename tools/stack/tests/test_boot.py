# SPDX-License-Identifier: Apache-2.0
"""Servers boot with accelerators, and everything Nova permits may be done to them."""

from __future__ import annotations

import time

import pytest
from scene import SNAPSHOT


@pytest.mark.parametrize(
    ("flavor", "count"), [("accel-one", 1), ("accel-two", 2), ("accel-groups", 3)]
)
def test_a_server_gets_its_accelerators(scene, flavor, count):
    server = scene.boot(flavor)

    scene.check_bound(server, count)
    scene.delete(server)
    assert scene.arqs() == []


def test_a_server_keeps_its_accelerators(scene):
    """Whatever is done to it, twice: what the first time leaves behind meets the second."""
    server = scene.boot("accel-two")
    before = scene.check_bound(server, 2)

    for action, arguments, status in 2 * acts(server):
        scene.act(server, action, status, arguments)
        assert scene.arqs(server) == before, action

    assert scene.check_bound(server, 2) == before


def acts(server):
    """What may be done to a running server, in order, and its state after each."""
    backup = {"name": SNAPSHOT, "backup_type": "daily", "rotation": 9}
    return [
        ("pause", None, "PAUSED"),
        ("unpause", None, "ACTIVE"),
        ("os-stop", None, "SHUTOFF"),
        ("os-start", None, "ACTIVE"),
        ("rescue", None, "RESCUE"),
        ("unrescue", None, "ACTIVE"),
        ("lock", None, "ACTIVE"),
        ("unlock", None, "ACTIVE"),
        ("reboot", {"type": "SOFT"}, "ACTIVE"),
        ("reboot", {"type": "HARD"}, "ACTIVE"),
        ("rebuild", {"imageRef": server.image.id}, "ACTIVE"),
        ("createImage", {"name": SNAPSHOT}, "ACTIVE"),
        ("createBackup", backup, "ACTIVE"),
    ]


def test_a_shelved_server_gets_accelerators_anew(scene):
    server = scene.boot("accel-two")
    for _ in range(2):
        scene.check_bound(server, 2)

        scene.act(server, "shelve", "SHELVED_OFFLOADED")
        scene.until("free handles", lambda: None if scene.arqs(server) else True)
        assert scene.allocations(server) == {}
        # Nova forgets the host after it has shown the state, and fails if disturbed meanwhile.
        scene.until("a server without a host", lambda: is_nowhere(scene, server))
        scene.act(server, "unshelve", "ACTIVE")

    scene.check_bound(server, 2)


def test_a_shelved_server_waits_for_slow_conductors(scene):
    """No event reaches Nova until the server has a host, which is after its binds."""
    server = scene.boot("accel-two")
    scene.act(server, "shelve", "SHELVED_OFFLOADED")
    scene.until("a server without a host", lambda: is_nowhere(scene, server))
    scene.until("free handles", lambda: None if scene.arqs(server) else True)
    with scene.paused_conductors():
        scene.ask(server, "unshelve")
        scene.until("asked-for binds", lambda: are_asked_for(scene, 2) or None)
        # Nova's compute service asks what is bound in this time.
        time.sleep(2)
        assert are_asked_for(scene, 2)

    scene.until_status(server, "ACTIVE")
    scene.check_bound(server, 2)


def are_asked_for(scene, count):
    """Whether there are so many ARQs, and all are being bound."""
    return [arq["state"] for arq in scene.arqs()] == count * ["BindStarted"]


def is_nowhere(scene, server):
    """Whether Nova has put the server on no host."""
    return scene.compute.get_server(server.id).compute_host is None or None


def test_an_evacuated_server_gets_accelerators_elsewhere(scene):
    """And again, back to where it was."""
    server = scene.boot("accel-two")
    for _ in range(2):
        scene.check_bound(server, 2)
        server = evacuate(scene, server)
    scene.check_bound(server, 2)


def evacuate(scene, server):
    """The server on the other host, after its own has failed and returned."""
    dead = server.compute_host
    scene.fail_host(dead)
    try:
        scene.act(server, "evacuate", "ACTIVE", {})

        moved = scene.compute.get_server(server.id)
        assert moved.compute_host != dead
        # The allocation on the dead host stays until its compute cleans up.
        arqs = scene.arqs(moved)
        assert {arq["hostname"] for arq in arqs} == {moved.compute_host}
        assert [arq["state"] for arq in arqs] == ["Bound"] * 2
    finally:
        scene.mend_host(dead)
    scene.until("allocations on one host", lambda: len(scene.allocations(server)) == 1 or None)
    return moved


def test_what_nova_refuses_changes_nothing(scene):
    server = scene.boot("accel-two")
    before = scene.check_bound(server, 2)

    for action in ("suspend", "migrate"):
        answer = scene.compute.post(f"/servers/{server.id}/action", json={action: None})
        assert answer.status_code == 400, action

    assert scene.check_bound(server, 2) == before


def test_a_profile_that_no_provider_fits_finds_no_host(scene):
    server = scene.until_status(scene.create("accel-none-such"), "ERROR")

    assert "No valid host" in scene.fault(server)


def test_two_projects_share_the_devices(scene):
    first = scene.boot("accel-two")
    tenant = scene.stack.connect("tenant", "tenant")
    flavor = tenant.compute.find_flavor("accel-two", ignore_missing=False)
    second = tenant.compute.create_server(
        name="theirs", flavor_id=flavor.id, image_id=first.image.id, networks="none"
    )
    scene.until_status(second, "ACTIVE")

    scene.check_no_handle_twice([first, second])
    own = tenant.accelerator.get("/accelerator_requests").json()["arqs"]
    assert {arq["instance_uuid"] for arq in own} == {second.id}
