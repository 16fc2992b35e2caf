# SPDX-License-Identifier: Apache-2.0
"""Servers boot with accelerators, and everything Nova permits may be done to them."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("flavor", "count"), [("accel-one", 1), ("accel-two", 2), ("accel-groups", 3)]
)
def test_a_server_gets_its_accelerators(scene, flavor, count):
    server = scene.boot(flavor)

    scene.check_bound(server, count)
    scene.delete(server)
    assert scene.arqs() == []


@pytest.mark.parametrize("again", ["once", "again"])
class TestOperations:
    """Each twice on one stack: what the first leaves behind meets the second."""

    @pytest.mark.parametrize(
        ("there", "between", "back"),
        [
            ("pause", "PAUSED", "unpause"),
            ("os-stop", "SHUTOFF", "os-start"),
            ("rescue", "RESCUE", "unrescue"),
        ],
    )
    def test_there_and_back(self, scene, again, there, between, back):
        server = scene.boot("accel-two")
        before = scene.check_bound(server, 2)

        scene.act(server, there, between)
        assert scene.arqs(server) == before
        scene.act(server, back, "ACTIVE")

        assert scene.check_bound(server, 2) == before

    @pytest.mark.parametrize("how", ["SOFT", "HARD"])
    def test_reboot(self, scene, again, how):
        server = scene.boot()
        before = scene.check_bound(server, 1)

        scene.act(server, "reboot", "ACTIVE", {"type": how})

        assert scene.check_bound(server, 1) == before

    def test_rebuild(self, scene, again):
        server = scene.boot()
        before = scene.check_bound(server, 1)

        scene.act(server, "rebuild", "ACTIVE", {"imageRef": server.image.id})

        assert scene.check_bound(server, 1) == before

    def test_shelve_and_unshelve(self, scene, again):
        server = scene.boot("accel-two")
        scene.check_bound(server, 2)

        scene.act(server, "shelve", "SHELVED_OFFLOADED")
        scene.until("free handles", lambda: None if scene.arqs(server) else True)
        scene.act(server, "unshelve", "ACTIVE")

        scene.check_bound(server, 2)

    def test_evacuate(self, scene, again):
        server = scene.boot("accel-two")
        scene.check_bound(server, 2)
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
        scene.until(
            "allocations on one host", lambda: len(scene.allocations(server)) == 1 or None
        )
        scene.check_bound(server, 2)


def test_a_profile_that_no_provider_fits_finds_no_host(scene):
    server = scene.until_status(scene.create("accel-none-such"), "ERROR")

    assert "No valid host" in server.fault["message"]


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
