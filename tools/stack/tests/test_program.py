# SPDX-License-Identifier: Apache-2.0
"""Servers whose accelerators are programmed while they are built."""

from __future__ import annotations

import uuid

import pytest

FPGA = {"resources:FPGA": "1"}


@pytest.mark.parametrize("key", ["accel:bitstream_id", "accel:function_id"])
def test_a_server_boots_with_its_function(scene, key):
    function = f"aes-{uuid.uuid4()}"
    image = scene.upload_bitstream(function, function)
    asked = {"accel:bitstream_id": image, "accel:function_id": function}[key]
    flavor = scene.offer(FPGA | {key: asked})

    server = scene.boot(flavor)

    (arq,) = scene.check_bound(server, 1)
    runs = scene.program_of(arq["device_rp_uuid"])
    assert (runs["function_id"], runs["image_uuid"]) == (function, image)
    assert runs["programmed_by"] == f"instance {server.id}"
    # What is there is kept.
    scene.act(server, "reboot", "ACTIVE", {"type": "HARD"})
    assert scene.program_of(arq["device_rp_uuid"]) == runs


def test_a_server_fails_with_its_programming(scene):
    """Nova gives the build up then, and tries no other host."""
    image = scene.upload_bitstream("what-it-says", "what-it-is")
    flavor = scene.offer(FPGA | {"accel:bitstream_id": image})

    server = scene.until_status(scene.create(flavor), "ERROR")

    assert "accelerator requests" in scene.fault(server)
    (operation,) = scene.operations_of(image)
    assert operation["state"] == "failed"
    assert "what-it-is" in operation["error"]
    scene.until("no allocations", lambda: None if scene.allocations(server) else True)
    for provider in scene.providers():
        runs = scene.program_of(provider)
        assert runs["in_doubt"] is False
        assert runs["image_uuid"] != image
    scene.delete(server)
    # The devices are as good as before.
    scene.check_bound(scene.boot("accel-one"), 1)


def test_a_server_whose_image_is_not_there_does_not_start_without_its_device(scene):
    """The bind has failed by the time Nova asks for it."""
    flavor = scene.offer(FPGA | {"accel:bitstream_id": str(uuid.uuid4())})

    server = scene.until_status(scene.create(flavor), "ERROR", "ACTIVE")

    assert server.status == "ERROR"
    assert "accelerator requests" in scene.fault(server)
    scene.until("no allocations", lambda: None if scene.allocations(server) else True)
    scene.delete(server)
