# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator`` for the care of hosts: services, drains, taints, keys, lost devices."""

from __future__ import annotations

import json
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from cyborg import db
from cyborg.db import models
from cyborg.handles import release
from cyborg.programming import cancellation, operations
from cyborg.programming.program import Program
from cyborg.rpc import signing
from cyborg.tests import boots, engine, hosts
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.service import NAME, SERVER, Site

pytestmark = pytest.mark.usefixtures("quiet_openstack")


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
    assert "No service has the uuid 'host-9'" in osc.refused("service", "show", "host-9")

    assert "is up" in osc.refused("service", "delete", "host-1")
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    gone = osc("service", "delete", "host-1", "--reason", "It has burnt down.")
    removed = osc("history", "list", "--kind", "removed", "--long")
    assert {entry["reason"] for entry in removed} == {"It has burnt down."}
    assert {row["given_up"] for row in gone} <= {"device", "resource provider"}
    assert osc("service", "list") == []


def test_a_device_that_is_gone_with_what_it_had(site, osc, conf, ctx) -> None:
    hosts.apply(hosts.card("a"))
    instance = models.new_uuid()
    (arq,) = boots.arqs(ctx)
    boots.bind(ctx, [arq], instance)
    engine.drain(conf)
    hosts.apply()
    (device,) = osc("device", "list", "--missing")

    complaint = osc.refused("device", "delete", device["uuid"])

    assert "HTTP 409" in complaint
    given_up = osc("device", "delete", device["uuid"], "--force")
    (told,) = [row for row in given_up if row["given_up"] == "accelerator request"]
    assert told["uuid"] == arq
    assert f"of server {instance}" in told["detail"]


def test_a_host_is_drained(site, osc, conf, ctx) -> None:
    hosts.apply(hosts.card("a"))
    arqs = boots.arqs(ctx)
    boots.bind(ctx, arqs, SERVER)
    engine.drain(conf)
    drained = osc("host", "drain", "host-1", "--reason", "A new fan.")
    assert (drained["drained"], drained["drain_reason"]) == (True, "A new fan.")
    assert drained["in_use"] == 1
    table = osc.run("host", "show", "host-1").out
    assert f"{SERVER} of project" in table
    released = threading.Timer(1.2, release.delete_arqs, [ctx, arqs])
    released.start()

    waited = osc.run("host", "drain", "host-1", "--wait", "-f", "json")

    released.join()
    assert waited.err.count("1 accelerator requests use host-1") == 1
    assert json.loads(waited.out)["in_use"] == 0
    assert osc("host", "undrain", "host-1")["drained"] is False
    assert "HTTP 404" in osc.refused("host", "show", "no/such?host")


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
    assert "has 2 keys" in osc.refused("host", "key", "enroll", "host-1", keys[2])
    osc.run("host", "key", "revoke", "host-1", "--key", made[0]["fingerprint"])
    found = osc("host", "key", "list", "host-1")
    assert [each["state"] for each in found] == ["revoked", "enrolled"]
    osc.run("host", "key", "revoke", "host-1", "--all")
    found = osc("host", "key", "list", "host-1")
    assert [each["state"] for each in found] == ["revoked", "revoked"]
    assert "has no key" in osc.refused("host", "key", "revoke", "host-2", "--all")
    assert "no Ed25519 public key" in osc.refused("host", "key", "enroll", "host-1", "x")


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
    refused = osc.refused("device", "set", NAME, "--untaint", "--reason", "No")
    assert "with --disable or --taint only" in refused
