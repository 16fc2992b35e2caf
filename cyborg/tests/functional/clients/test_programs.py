# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator`` for programs: operations, and pools of a function."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import pytest

from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.openstack_command import OpenStack, rows
from cyborg.tests.service import NAME, Site, until

pytestmark = pytest.mark.usefixtures("quiet_openstack")

UNKNOWN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def rack(site: Site, images: GlanceServer, tmp_path: pathlib.Path) -> Callable[[str], str]:
    """Two fake cards that are programmed; makes images of functions, and returns their uuids."""
    site.conf.set_override("pool_interval", 1, group="programming")
    site.conf.set_override("state_path", str(tmp_path / "state"))
    site.start(
        devices=2,
        handles_per_device=2,
        program_mode="single-program",
        state_dir=str(tmp_path / "loaded"),
    )

    def image(function: str) -> str:
        data = json.dumps({"function": function}).encode()
        return images.upload(function, data, accel_function_id=function)

    return image


def test_a_program_and_its_operation(site, osc, rack) -> None:
    uuid = rack("aes-128")
    answer = osc.run("deployable", "program", NAME, "--image", "aes-128", "--wait", "-f", "json")
    assert answer.code == 0, answer.err
    operation = json.loads(answer.out)
    assert (operation["state"], operation["error"]) == ("succeeded", None)
    # What happened is told while it happens, each thing once and in its order.
    told = [line[9:] for line in answer.err.strip().splitlines()]
    assert told == [event["text"] for event in operation["history"]]
    assert len(told) >= 2

    (listed,) = osc("operation", "list", "--deployable", NAME, "--state", "succeeded")
    assert listed["uuid"] == operation["uuid"]
    assert osc("operation", "list", "--deployable", f"{NAME}_1") == []
    assert osc("operation", "show", operation["uuid"], "--wait") == operation
    assert osc("deployable", "show", NAME)["program"]["function_id"] == "aes-128"

    started = osc("deployable", "program", f"{NAME}_1", "--function-id", "aes-128")
    assert started["deployable_uuid"] == osc("deployable", "show", f"{NAME}_1")["uuid"]
    assert osc("operation", "show", started["uuid"], "--wait")["state"] == "succeeded"
    # As python-openstackclient has it: a uuid, the wait, and the deployable.
    assert osc("deployable", "program", NAME, uuid)["name"] == NAME

    site.fail("program")
    # What the agent logs in this process is there as well.
    answer = osc.run("deployable", "program", NAME, "--image", rack("gzip"), "--wait")
    assert answer.code == 1
    (operation,) = osc("operation", "list", "--state", "failed")
    assert f"Operation {operation['uuid']} failed: {operation['error']}" in answer.err
    assert "out of order" in operation["error"]
    for wrong in ([], [uuid, "--function-id", "aes-128"]):
        assert "Give one of --image" in osc.refused("deployable", "program", NAME, *wrong)


def test_an_operation_that_is_cancelled(glance_line, single, osc) -> None:
    image = single.image("aes")
    glance_line.cut()
    operation = osc("deployable", "program", NAME, "--image", image)
    osc.do("operation", "cancel", operation["uuid"])
    glance_line.join()
    ended = single.ended(operation["uuid"])
    assert ended["error"] == "An administrator has cancelled it."
    assert "HTTP 409" in osc.refused("operation", "cancel", operation["uuid"])


def test_a_pool_and_its_misses(site: Site, osc: OpenStack, rack: Callable[[str], str]) -> None:
    rack("aes-128")
    sizes = ("--free", "2", "--max-devices", "2")
    made = osc("function", "pool", "create", "pool", "--function-id", "aes-128", *sizes)
    until(lambda: osc("function", "pool", "show", "pool")["ready"] == 2)
    assert osc("function", "miss", "list") == []

    (counted,) = osc("function", "miss", "create", "--function-id", "aes-128")

    assert counted == {"uuid": made["uuid"], "name": "pool"}
    (missed,) = osc("function", "miss", "list")
    assert (missed["name"], missed["misses"]) == ("pool", 1)
    changed = osc(
        *("function", "pool", "set", "pool", "--name", "other", "--free", "1"),
        *("--image", UNKNOWN, "--hosts", "host-*", "--trait", "CUSTOM_A"),
    )
    sizes = ("name", "free", "max_devices", "uuid")
    assert rows([changed], *sizes) == [("other", 1, 2, made["uuid"])]
    texts = ("image_uuid", "hosts", "traits", "description")
    assert rows([changed], *texts) == [(UNKNOWN, "host-*", ["CUSTOM_A"], None)]
    changed = osc(
        *("function", "pool", "set", "other", "--any-host", "--any-trait", "--newest-image"),
        *("--description", "text"),
    )
    assert rows([changed], *texts) == [(None, None, [], "text")]
    assert rows(osc("function", "pool", "list", "--function-id", "aes-128"), "name") == [("other",)]
    osc.do("function", "pool", "delete", "other")
    assert osc("function", "pool", "list") == []
    assert "No function pool is called 'other'" in osc.refused("function", "pool", "show", "other")
