# SPDX-License-Identifier: Apache-2.0
"""The order of hosts in Nova's scheduler, and what function pools learn of failed builds."""

from __future__ import annotations

import uuid

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
