# SPDX-License-Identifier: Apache-2.0
"""Boots and moves while other services are away, and what administrators do to hosts."""

from __future__ import annotations

import contextlib
import json
import os
import time

import pytest
import settings

#: Seconds for which a service is away; a minute is tried by hand.
OUTAGE = float(os.environ.get("CYBORG_STACK_OUTAGE", "5"))
#: Seconds after which a boot is given up, of which Nova has lost a message.
GIVEN_UP = 60 + 2 * OUTAGE


@contextlib.contextmanager
def away(stack, name):
    """While a service does not run."""
    if name in settings.WSGI:
        stack.records.stop(name)
        try:
            yield
        finally:
            stack.start(name)
            stack.await_http(name)
    else:
        with stack.lost_server(name):
            yield


def asked_for(scene, count):
    """Whether so many ARQs are being bound."""
    return [arq["state"] for arq in scene.arqs()].count("BindStarted") == count or None


def settled(scene, server, deadline):
    """The server once it is ACTIVE or in ERROR; as it is after a while if a message was lost."""
    while True:
        found = scene.until("an answer of Nova", lambda: shown(scene, server))
        if found.status in {"ACTIVE", "ERROR"} or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def shown(scene, server):
    """The server, if Nova answers."""
    with contextlib.suppress(Exception):
        return scene.compute.get_server(server.id)
    return None


@pytest.mark.parametrize("name", ["rabbitmq", "keystone"])
def test_a_service_is_away_in_mid_boot(scene, name):
    """What Nova loses by it may fail. Who is ACTIVE has what it needs, and nothing else is held."""
    with scene.paused_conductors():
        servers = [scene.create(name=f"guest-{number}") for number in range(2)]
        scene.until("asked-for binds", lambda: asked_for(scene, 2))
        cut = contextlib.ExitStack()
        cut.enter_context(away(scene.stack, name))
    with cut:
        time.sleep(OUTAGE)

    deadline = time.monotonic() + GIVEN_UP
    for server in [settled(scene, server, deadline) for server in servers]:
        if server.status == "ACTIVE":
            scene.check_bound(server, 1)
    # Boots go on as before, once all of Nova has found the broker again.
    scene.check_bound(scene.until("a boot", lambda: booted(scene)), 1)


def test_a_compute_service_is_deleted_and_comes_back(scene):
    """Nova deletes its host with all that is below it, and makes it anew; the audit finds that."""
    host = settings.HOSTS[1]
    (service,) = scene.compute.services(host=host, binary="nova-compute")
    scene.stack.records.stop(f"nova-compute-{host}")
    scene.compute.delete_service(service)
    scene.stack.start(f"nova-compute-{host}")
    scene.until("the host", lambda: list(scene.compute.services(host=host)) or None)
    scene.mend_host(host)

    scene.until("a sound state", scene.is_sound, explain=lambda: scene.contradictions)
    tree = f"/resource_providers?in_tree={scene.root_of(host)}"
    found = scene.cloud.placement.get(tree, microversion="1.14").json()["resource_providers"]
    names = {each["name"] for each in found}
    assert {host, f"{host}_FakeDevice"} <= names
    (other,) = {*settings.HOSTS} - {host}
    (service,) = scene.compute.services(host=other, binary="nova-compute")
    scene.compute.disable_service(service)
    try:
        server = scene.until("a boot on it", lambda: booted(scene))
    finally:
        scene.compute.enable_service(service)
    assert server.compute_host == host
    scene.check_bound(server, 1)


def booted(scene):
    """A server that is active; none if Nova has not found its host yet."""
    server = scene.until_status(scene.create(), "ACTIVE", "ERROR")
    if server.status == "ACTIVE":
        return server
    scene.delete(server)
    return None


def test_an_administrator_cannot_move_it_either(scene):
    server = scene.boot("accel-two")
    before = scene.check_bound(server, 2)
    (other,) = {*settings.HOSTS} - {server.compute_host}
    larger = scene.compute.find_flavor("accel-one", ignore_missing=False)
    moves = {
        "migrate": {"host": other},
        "os-migrateLive": {"host": other, "block_migration": "auto"},
        "resize": {"flavorRef": larger.id},
        "suspend": None,
    }
    for action, arguments in moves.items():
        answer = scene.compute.post(
            f"/servers/{server.id}/action", json={action: arguments}, microversion="2.90"
        )
        assert answer.status_code == 400, (action, answer.text)

    assert scene.check_bound(server, 2) == before


@pytest.fixture
def steps(prepared):
    """Host steps on both hosts, of which the file says how they go."""
    stack = prepared.stack
    control = stack.state / "steps.json"
    control.write_text("{}")
    fake = {"host_step": True, "host_step_control": control}
    for host in settings.HOSTS:
        stack.settings().agent(host, {"fake_driver": fake})
        stack.restart(f"cyborg-agent-{host}")
    stack.await_hosts()
    try:
        yield control
    finally:
        control.write_text("{}")
        prepared.clear()
        prepared.check_at_rest()
        for host in settings.HOSTS:
            stack.settings().agent(host)
            stack.restart(f"cyborg-agent-{host}")


def test_a_server_is_unshelved_while_its_host_prepares(scene, steps):
    server = scene.boot("accel-two")
    scene.act(server, "shelve", "SHELVED_OFFLOADED")
    scene.until("free handles", lambda: None if scene.arqs(server) else True)
    scene.until("no host", lambda: scene.compute.get_server(server.id).compute_host is None or None)
    steps.write_text(json.dumps({"prepare": {"seconds": 1.5}}))

    scene.act(server, "unshelve", "ACTIVE")

    scene.check_bound(server, 2)


def test_a_server_is_evacuated_from_a_host_whose_agent_is_dead_too(scene, steps):
    server = scene.boot("accel-two")
    before = scene.check_bound(server, 2)
    dead = server.compute_host
    scene.stack.records.stop(f"cyborg-agent-{dead}")
    scene.fail_host(dead)
    try:
        scene.act(server, "evacuate", "ACTIVE", {})
        moved = scene.compute.get_server(server.id)
        after = scene.arqs(moved)
        assert [arq["state"] for arq in after] == ["Bound"] * 2
        assert {arq["hostname"] for arq in after} == {moved.compute_host} != {dead}
        # Nobody has cleaned what it had there, and nobody is given it.
        handles = {arq["attach_handle_uuid"] for arq in before}
        held = {found["uuid"]: found["state"] for found in scene.handles()}
        assert "free" not in {held[uuid] for uuid in handles}
    finally:
        scene.stack.start(f"cyborg-agent-{dead}")
        scene.mend_host(dead)
    scene.until("allocations on one host", lambda: len(scene.allocations(server)) == 1 or None)
    scene.check_bound(moved, 2)
