# SPDX-License-Identifier: Apache-2.0
"""The commands that this service adds to ``openstack accelerator``, against the API over HTTP."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from oslo_config import cfg

from cyborg import context, db
from cyborg.api import versions
from cyborg.arqs import release
from cyborg.db import models
from cyborg.drivers import base, pci
from cyborg.osc import api as osc_api
from cyborg.programming import cancellation, operations
from cyborg.programming.program import Program
from cyborg.rpc import signing
from cyborg.tests import boots, engine, hosts, messages
from cyborg.tests.fpga import Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.service import NAME, SERVER, SERVER_NAME, Site, until

pytestmark = pytest.mark.usefixtures("quiet_openstack")

GROUPS = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]
UNKNOWN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def osc(site: Site) -> OpenStack:
    return OpenStack(endpoint=site.endpoint)


def fails(osc: OpenStack, *words: str) -> str:
    """What a command says that ends with an error."""
    return osc.refused(*words).strip()


def rows(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


def test_they_know_the_newest_microversion() -> None:
    assert str(versions.MAX) == osc_api.NEWEST


def test_they_take_no_command_away() -> None:
    def names(group: str) -> set[str]:
        found = importlib.metadata.entry_points(group=group)
        return {entry.name for entry in found}

    both = names("openstack.accelerator.v2") & names("openstack.cyborg.v2")
    assert both == {
        "accelerator_arq_list",
        "accelerator_arq_show",
        "accelerator_deployable_list",
        "accelerator_deployable_program",
        "accelerator_deployable_show",
        "accelerator_device_attribute_create",
        "accelerator_device_attribute_list",
        "accelerator_device_disable",
        "accelerator_device_enable",
        "accelerator_device_list",
        "accelerator_device_profile_create",
        "accelerator_device_profile_delete",
        "accelerator_device_profile_list",
        "accelerator_device_profile_show",
        "accelerator_device_show",
    }


@pytest.mark.parametrize("version", [None, "2.0", "2.3"])
def test_what_they_replace_has_the_columns_of_before(site: Site, version: str | None) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(NAME), std_board_info="{}"))
    after = OpenStack(endpoint=site.endpoint, version=version)
    before = OpenStack(
        endpoint=site.endpoint, version=version, ignored=("cyborgclient.osc.v2", "cyborg.osc")
    )
    text = json.dumps(GROUPS)
    site.call("POST", "/device_profiles", [{"name": "old", "groups": GROUPS}])
    arqs = site.call("POST", "/accelerator_requests", {"device_profile_name": "old"})["arqs"]
    (device,) = before("device", "list")
    (deployable,) = before("deployable", "list")
    (profile,) = before("device", "profile", "list")
    for words in (
        ["device", "list"],
        ["device", "list", "--long"],
        ["device", "show", device["uuid"]],
        ["deployable", "list"],
        ["deployable", "list", "--long"],
        ["deployable", "show", deployable["uuid"]],
        ["device", "attribute", "list"],
        ["device", "profile", "list"],
        ["device", "profile", "list", "--long"],
        ["device", "profile", "show", profile["uuid"]],
        ["arq", "list"],
        ["arq", "list", "--long"],
        ["arq", "show", arqs[0]["uuid"]],
    ):
        old, new = before(*words), after(*words)
        pairs = zip(old, new, strict=True) if isinstance(old, list) else [(old, new)]
        for was, now in pairs:
            kept = {name: value for name, value in now.items() if name in was}
            assert {**was, **_settled(kept, was)} == kept, words
    made = after("device", "profile", "create", "new", text, "--description", "d")
    assert (made["name"], made["groups"], made["description"]) == ("new", GROUPS, "d")
    number = str(deployable["device_id"])
    assert after("device", "attribute", "create", number, "rack", "12")["key"] == "rack"


def _settled(now: dict[str, Any], was: dict[str, Any]) -> dict[str, Any]:
    """What newer microversions say that older ones do not: a status, and time as time."""
    return {name: now[name] for name in ("status", "created_at", "updated_at") if name in was}


def test_services(site: Site, osc: OpenStack) -> None:
    hosts.apply(hosts.card("a"))
    (listed,) = osc("service", "list", "--binary", "cyborg-agent")
    assert (listed["host"], listed["state"]) == ("host-1", "up")
    # People see the time to the second, machines as the API has it.
    shown = osc.run("service", "list").out
    assert listed["last_seen"][:19].replace("T", " ") in shown
    assert "+00:00" in listed["last_seen"]
    assert "+00:00" not in shown
    assert osc("service", "list", "--state", "down") == []
    assert osc("service", "show", "host-1")["uuid"] == listed["uuid"]
    assert osc("service", "show", listed["uuid"])["host"] == "host-1"
    assert "No service has the uuid 'host-9'" in fails(osc, "service", "show", "host-9")

    assert "is up" in fails(osc, "service", "delete", "host-1")
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    gone = osc("service", "delete", "host-1", "--reason", "It has burnt down.")
    removed = osc("history", "list", "--kind", "removed", "--long")
    assert {entry["reason"] for entry in removed} == {"It has burnt down."}
    assert {row["given_up"] for row in gone} <= {"device", "resource provider"}
    assert osc("service", "list") == []


def test_devices(site: Site, osc: OpenStack) -> None:
    place = base.ControlPath(cpid_type="PCI", cpid_info=pci.split("0000:0c:00.0"))
    hosts.apply(
        hosts.device("a", hosts.deployable(NAME), control_path=place),
        hosts.device("b", hosts.deployable("host-1_b"), type="GPU", unhealthy="It is on fire."),
    )
    healthy, ill = osc("device", "list")
    assert rows([healthy, ill], "type", "address", "status", "health") == [
        ("FPGA", "0000:0c:00.0", "enabled", "healthy"),
        ("GPU", "b", "enabled", "unhealthy"),
    ]
    assert osc("device", "list", "--health", "unhealthy") == [ill]
    assert osc("device", "list", "--type", "FPGA", "--no-missing") == [healthy]
    assert osc("device", "list", "--missing") == []
    assert osc("device", "show", "host-1_b")["health_reason"] == "It is on fire."

    osc.do("device", "set", "--disable", NAME, ill["uuid"])
    assert rows(osc("device", "list"), "status") == [("maintaining",), ("maintaining",)]
    osc.do("device", "set", "--enable", NAME)
    osc.do("device", "disable", NAME)
    assert osc("device", "show", NAME)["status"] == "maintaining"
    osc.do("device", "enable", NAME)
    assert osc("device", "show", healthy["uuid"])["status"] == "enabled"
    assert f"Device not found with uuid={UNKNOWN}" in fails(
        osc, "device", "set", "--disable", UNKNOWN
    )

    assert "HTTP 409" in fails(osc, "device", "delete", healthy["uuid"])
    hosts.apply(hosts.device("b", hosts.deployable("host-1_b")))
    assert osc("device", "list", "--missing") == []
    assert len(osc("device", "list")) == 1


def test_a_device_that_is_gone_with_what_it_had(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a"))
    instance = models.new_uuid()
    (arq,) = boots.arqs(ctx)
    boots.bind(ctx, [arq], instance)
    engine.drain(conf)
    hosts.apply()
    (device,) = osc("device", "list", "--missing")

    complaint = fails(osc, "device", "delete", device["uuid"])

    assert "HTTP 409" in complaint
    given_up = osc("device", "delete", device["uuid"], "--force")
    (told,) = [row for row in given_up if row["given_up"] == "accelerator request"]
    assert told["uuid"] == arq
    assert f"of server {instance}" in told["detail"]


def test_requests(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a", cleans=True))
    (arq,) = boots.arqs(ctx)
    instance = models.new_uuid()
    boots.bind(ctx, [arq], instance)
    engine.drain(conf)
    assert osc("arq", "list") == []  # it is of another project
    (deployable,) = osc("deployable", "list")
    profile = osc("arq", "show", arq)["device_profile_name"]
    everything = ("arq", "list", "--all-projects")
    for words in (
        [],
        ["--state", "Bound"],
        ["--server", instance],
        ["--device-profile", profile],
        ["--hostname", hosts.ROOT],
        ["--resource-provider", deployable["name"]],
    ):
        assert rows(osc(*everything, *words), "uuid", "instance_uuid") == [(arq, instance)], words
    assert osc(*everything, "--state", "Initial") == []
    assert osc(*everything, "--server", SERVER_NAME) == []
    boots.bind(ctx, boots.arqs(ctx), SERVER)
    assert rows(osc(*everything, "--server", SERVER_NAME), "instance_uuid") == [(SERVER,)]
    assert "cannot be found by its name" in fails(osc, *everything, "--server", "nobody")
    assert (arq,) in rows(osc("arq", "list", "--project", ctx.project_id or ""), "uuid")
    assert osc("arq", "list", "--project", "nobody") == []
    assert osc("arq", "show", arq)["state"] == "Bound"

    assert "HTTP 409" in fails(osc, "arq", "release", arq)
    told, unknown = osc("arq", "release", arq, "--force")
    assert unknown["given_up"] == "not excluded"
    assert (told["given_up"], told["uuid"]) == ("accelerator request", arq)


def test_a_table_shows_an_address(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a"))
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    table = osc.run("arq", "list", "--all-projects").out
    assert "| 0000:0c:00.0 " in table
    assert "attach_handle_uuid" not in table


def test_profiles(site: Site, osc: OpenStack) -> None:
    project = "5b1b1b1b1b1b4c1b8b1b1b1b1b1b1b1b"
    other = "6b1b1b1b1b1b4c1b8b1b1b1b1b1b1b1b"
    text = json.dumps(GROUPS)
    made = osc("device", "profile", "create", "one", text, "--private", "--project", project)
    assert (made["visibility"], made["projects"]) == ("private", [project])
    assert osc("device", "profile", "list", "--visibility", "public") == []
    assert osc("device", "profile", "show", "one")["uuid"] == made["uuid"]
    one = ("device", "profile", "set", "one")

    changed = osc(*one, "--description", "the first", "--project", other)
    assert (changed["description"], changed["projects"]) == ("the first", [project, other])
    changed = osc("device", "profile", "unset", "one", "--description", "--project", project)
    assert (changed["description"], changed["projects"]) == (None, [other])
    assert "is not shared" in fails(osc, "device", "profile", "unset", "one", "--project", project)
    changed = osc(*one, "--public", "--name", "two", "--groups", '[{"resources:GPU": "1"}]')
    assert (changed["name"], changed["projects"]) == ("two", [])
    assert changed["groups"] == [{"resources:GPU": "1"}]
    assert changed["uuid"] == made["uuid"]
    for wrong in (["this is no JSON"], ["--group", "no equals sign"], []):
        with pytest.raises(SystemExit):
            osc.run("device", "profile", "create", "three", *wrong)
    group = ("--group", "resources:FPGA=1,trait:CUSTOM_A=required")
    made = osc("device", "profile", "create", "three", *group, "--group", "resources:GPU=2")
    first = {"resources:FPGA": "1", "trait:CUSTOM_A": "required"}
    assert made["groups"] == [first, {"resources:GPU": "2"}]
    assert osc("device", "profile", "set", "three", *group)["groups"] == [first]
    assert "found" in fails(osc, "device", "profile", "show", "one")

    three = ("device", "profile", "set", "three")
    changed = osc(*three, "--disable", "--extra", "owner=ml", "--extra", "class=b=c")
    assert (changed["enabled"], changed["extra"]) == (False, {"owner": "ml", "class": "b=c"})
    assert rows(osc("device", "profile", "list", "--enabled", "false"), "name") == [("three",)]
    changed = osc("device", "profile", "unset", "three", "--extra", "owner")
    assert (changed["extra"], changed["in_use"]) == ({"class": "b=c"}, 0)
    assert osc(*three, "--enable")["enabled"]

    assert "nothing" in fails(osc, "device", "profile", "delete", "nothing", "two")
    osc.do("device", "profile", "delete", made["uuid"])
    assert osc("device", "profile", "list") == []


def test_candidates(site: Site, osc: OpenStack) -> None:
    site.start()
    osc("device", "profile", "create", "fpga", '[{"resources:FPGA": "1"}]')
    (candidate,) = osc("device", "profile", "candidates", "fpga", "--limit", "1")
    assert (candidate["hostname"], candidate["group"]) == (hosts.ROOT, 0)


def test_attributes(site: Site, osc: OpenStack) -> None:
    site.populate()
    made = osc("device", "attribute", "create", NAME, "rack", "12")
    assert osc("device", "attribute", "list", "--deployable", NAME, "--key", "rack") == [
        {name: made[name] for name in ("uuid", "deployable_id", "key", "value")}
        | {name: made[name] for name in ("deployable_uuid", "created_at", "updated_at")}
    ]
    assert "No deployable has" in fails(osc, "device", "attribute", "create", "x", "rack", "12")
    assert osc("deployable", "show", NAME)["attributes"]["rack"] == "12"
    hosts.apply(hosts.device("a", hosts.deployable(NAME)), hosts.card("b"))
    made = osc("device", "attribute", "create", NAME, "room", "3", "--also", "host-1_b")
    assert len(set(made["deployable_uuid"])) == len(made["uuid"]) == 2


def test_an_allocation(site: Site, osc: OpenStack) -> None:
    site.start(handles_per_device=2)
    osc("device", "profile", "create", "one", '[{"resources:FPGA": "1"}]')
    osc("device", "profile", "create", "nine", '[{"resources:FPGA": "9"}]')
    who = ("--type", "JOB", "--name", "j", "--lease", "60")
    made = osc("allocation", "create", "nine", "one", *who)
    assert (made["state"], made["alternative"], made["lease_seconds"]) == ("Active", 1, 60)
    assert made["accelerators"][0]["attach_handle_type"] == "TEST_PCI"
    (listed,) = osc("allocation", "list", "--consumer-type", "JOB")
    assert listed["uuid"] == made["uuid"]
    assert osc("allocation", "list", "--state", "Failed") == []
    renewed = osc("allocation", "renew", made["uuid"], "--lease", "120")
    assert renewed["lease_seconds"] == 120
    assert osc("allocation", "renew", made["uuid"])["lease_seconds"] == 120
    asked = osc("allocation", "create", "nine", "--consumer", UNKNOWN, "--dry-run")
    assert (asked["uuid"], asked["state"]) == (UNKNOWN, "Impossible")
    assert "the most that is free of one is 1" in fails(osc, "allocation", "create", "nine")
    assert osc("allocation", "show", made["uuid"])["consumer"]["name"] == "j"
    assert osc("allocation", "show", "j") == osc("allocation", "show", made["uuid"])
    assert osc("allocation", "renew", "j")["uuid"] == made["uuid"]
    assert "No allocation is of" in fails(osc, "allocation", "show", "k")
    osc.do("allocation", "delete", "j")
    assert "not found" in fails(osc, "allocation", "show", made["uuid"])


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


def test_a_program_and_its_operation(
    site: Site, osc: OpenStack, rack: Callable[[str], str]
) -> None:
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


def test_a_program_that_fails(site: Site, osc: OpenStack, rack: Callable[[str], str]) -> None:
    image = rack("aes-128")
    site.fail("program")
    # What the agent logs in this process is there as well.
    answer = osc.run("deployable", "program", NAME, "--image", image, "--wait")
    assert answer.code == 1
    (operation,) = osc("operation", "list")
    assert f"Operation {operation['uuid']} failed: {operation['error']}" in answer.err
    assert "out of order" in operation["error"]
    assert "Give one of --image" in fails(osc, "deployable", "program", NAME)
    assert "Give one of --image" in fails(
        osc, "deployable", "program", NAME, image, "--function-id", "aes-128"
    )


def test_an_operation_that_is_cancelled(
    glance_line: messages.Wire, single: Card, osc: OpenStack
) -> None:
    image = single.image("aes")
    glance_line.cut()
    operation = osc("deployable", "program", NAME, "--image", image)
    osc.do("operation", "cancel", operation["uuid"])
    glance_line.join()
    ended = single.ended(operation["uuid"])
    assert ended["error"] == "An administrator has cancelled it."
    assert "HTTP 409" in fails(osc, "operation", "cancel", operation["uuid"])


def test_history(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a"))
    boots.bind(ctx, boots.arqs(ctx), SERVER)
    engine.drain(conf)
    osc.do("device", "set", "--disable", "--reason", "The fan is loud.", boots.NAME)
    assert osc("device", "show", boots.NAME)["disabled_reason"] == "The fan is loud."
    assert "with --disable or --taint only" in fails(
        osc, "device", "set", "--enable", "--reason", "quiet", boots.NAME
    )

    everything = osc("history", "list", "--device", boots.NAME)

    assert rows(everything, "kind", "reason") == [("used", None), ("disabled", "The fan is loud.")]
    assert osc("history", "list", "--server", SERVER_NAME, "--kind", "used") == everything[:1]
    assert osc("history", "list", "--project", "nobody") == []
    assert osc("history", "list", "--device", UNKNOWN) == []


def test_attach_handles(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a", range(2)))
    boots.bind(ctx, boots.arqs(ctx), SERVER)
    engine.drain(conf)
    (held,) = osc("attach", "handle", "list", "--server", SERVER_NAME)
    assert (held["state"], held["state_reason"]) == ("in_use", None)
    osc.do("device", "set", "--disable", "--reason", "The fan is loud.", boots.NAME)
    found = osc("attach", "handle", "list", "--device", boots.NAME, "--state", "unavailable")
    assert rows(found, "state_reason", "instance_uuid") == [("The fan is loud.", None)]


def test_usages(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a"))
    boots.bind(ctx, boots.arqs(ctx), SERVER)
    engine.drain(conf)
    (used,) = osc("usage", "list", "--all-projects")
    assert rows([used], "project_id", "in_use") == [(ctx.project_id, 1)]
    assert used["known_since"]
    (own,) = osc("usage", "list", "--project", ctx.project_id or "")
    assert {**own, "known_since": used["known_since"]} == used
    assert osc("usage", "list", "--all-projects", "--start", "2020-01-01", "--end", "2020-01-02")
    assert "is no time" in fails(osc, "usage", "list", "--start", "yesterday")


def test_a_host_is_drained(
    site: Site, osc: OpenStack, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a"))
    arqs = boots.arqs(ctx)
    boots.bind(ctx, arqs, SERVER)
    engine.drain(conf)
    drained = osc("host", "drain", "host-1", "--reason", "A new fan.")
    assert (drained["drained"], drained["drain_reason"]) == (True, "A new fan.")
    assert drained["in_use"] == 1
    table = osc.run("host", "show", "host-1").out
    assert f"server {SERVER} of project" in table
    released = threading.Timer(1.2, release.delete_arqs, [ctx, arqs])
    released.start()

    waited = osc.run("host", "drain", "host-1", "--wait", "-f", "json")

    released.join()
    assert waited.err.count("1 accelerator requests use host-1") == 1
    assert json.loads(waited.out)["in_use"] == 0
    assert osc("host", "undrain", "host-1")["drained"] is False
    assert "HTTP 404" in fails(osc, "host", "show", "no/such?host")


def test_a_drain_waits_for_what_is_being_programmed(site: Site, osc: OpenStack) -> None:
    hosts.apply(hosts.card("a", program_mode="dynamic"))
    (deployable,) = osc("deployable", "list")
    asked = operations.ask(deployable["uuid"], Program(function_id="aes"), "user 1")
    table = osc.run("host", "show", "host-1").out
    assert f"{asked.uuid} is queued" in table
    assert "for user 1" in table
    ended = threading.Timer(1.2, cancellation.cancel, [asked.uuid, "user 2"])
    ended.start()

    waited = osc.run("host", "drain", "host-1", "--wait", "-f", "json")

    ended.join()
    assert waited.err.count("1 operations program host-1") == 1
    assert json.loads(waited.out)["programming"] == 0


def test_keys_of_a_host(site: Site, osc: OpenStack) -> None:
    keys = [signing.public_text(ed25519.Ed25519PrivateKey.generate()) for _ in range(3)]
    made = [osc("host", "key", "enroll", "host-1", key) for key in keys[:2]]
    assert [each["public_key"] for each in made] == keys[:2]
    assert "has 2 keys" in fails(osc, "host", "key", "enroll", "host-1", keys[2])
    osc.run("host", "key", "revoke", "host-1", "--key", made[0]["fingerprint"])
    found = osc("host", "key", "list", "host-1")
    assert [each["state"] for each in found] == ["revoked", "enrolled"]
    osc.run("host", "key", "revoke", "host-1", "--all")
    found = osc("host", "key", "list", "host-1")
    assert [each["state"] for each in found] == ["revoked", "revoked"]
    assert "has no key" in fails(osc, "host", "key", "revoke", "host-2", "--all")
    assert "no Ed25519 public key" in fails(osc, "host", "key", "enroll", "host-1", "x")


def test_a_host_and_a_device_are_tainted(site: Site, osc: OpenStack) -> None:
    site.populate()
    tainted = osc("host", "taint", "host-1", "--reason", "New firmware")
    assert (tainted["tainted"], tainted["taint_reason"]) == (True, "New firmware")
    assert osc("host", "untaint", "host-1")["tainted"] is False
    osc.run("device", "set", NAME, "--taint", "--reason", "It hums")
    (device,) = osc("device", "list", "--tainted", "true")
    assert (device["tainted"], device["taint_reason"]) == (True, "It hums")
    osc.run("device", "set", NAME, "--untaint")
    assert osc("device", "list", "--tainted", "true") == []
    refused = fails(osc, "device", "set", NAME, "--untaint", "--reason", "No")
    assert "with --disable or --taint only" in refused


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
    assert "No function pool has" in fails(osc, "function", "pool", "show", "other")


def test_lists_go_on_over_pages(site: Site, osc: OpenStack, conf: cfg.ConfigOpts) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abcde"))
    conf.set_override("max_limit", 2, group="api")
    found = rows(osc("device", "list"), "uuid")
    assert len(set(found)) == 5
    assert rows(osc("device", "list", "--limit", "3"), "uuid") == found[:3]
    assert rows(osc("device", "list", "--marker", found[2][0]), "uuid") == found[3:]


def test_a_microversion_that_is_too_old(site: Site) -> None:
    old = OpenStack(endpoint=site.endpoint, version="2.3")
    for words, needed in {
        ("service", "list"): "2.6",
        ("device", "list", "--health", "healthy"): "2.7",
        ("deployable", "program", UNKNOWN, "--function-id", "aes"): "2.8",
        ("deployable", "program", UNKNOWN, "--layout", "dc"): "2.24",
        ("function", "pool", "show", "pool"): "2.9",
        ("operation", "cancel", UNKNOWN): "2.10",
        ("history", "list"): "2.11",
        ("device", "set", "--disable", "--reason", "text", UNKNOWN): "2.12",
        ("host", "show", "host-1"): "2.12",
        ("usage", "list"): "2.13",
        ("attach", "handle", "list"): "2.22",
    }.items():
        complaint = fails(old, *words)
        assert f"This needs microversion {needed} of the accelerator API" in complaint
        assert "2.3 is used" in complaint


def test_in_a_terminal(site: Site) -> None:
    hosts.apply(
        hosts.device("a", hosts.deployable(NAME), std_board_info=json.dumps({"a": "b" * 200}))
    )
    for width, *words in ((80, "device", "list"), (120, "device", "list"), (80, "service", "list")):
        screen = _terminal(site, width, *words)
        lines = screen.splitlines()
        assert lines[0].startswith("+--")
        assert max(map(len, lines)) <= width, screen
        assert "duplicate" not in screen


def _terminal(site: Site, columns: int, *words: str) -> str:
    """What the program as it is installed writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    options = ["--os-auth-type", "none", "--os-endpoint", site.endpoint]
    started = subprocess.Popen(
        [sys.executable, "-m", "openstackclient.shell", *options, "accelerator", *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    screen = b""
    try:
        while part := os.read(leader, 4096):
            screen += part
    except OSError:
        pass  # so a terminal says that nobody has it open any more
    os.close(leader)
    assert started.wait() == 0, screen
    return screen.decode()
