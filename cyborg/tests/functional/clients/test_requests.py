# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator`` for who has accelerators: requests, allocations, past use."""

from __future__ import annotations

import json

import pytest

from cyborg.db import models
from cyborg.tests import boots, engine, hosts
from cyborg.tests.openstack_command import OpenStack, rows
from cyborg.tests.service import SERVER, SERVER_NAME, Site

pytestmark = pytest.mark.usefixtures("quiet_openstack")

UNKNOWN = "11111111-2222-3333-4444-555555555555"


def test_requests(site, osc, conf, ctx) -> None:
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
    assert "cannot be found by its name" in osc.refused(*everything, "--server", "nobody")
    assert (arq,) in rows(osc("arq", "list", "--project", ctx.project_id or ""), "uuid")
    assert osc("arq", "list", "--project", "nobody") == []
    assert osc("arq", "show", arq)["state"] == "Bound"

    assert "HTTP 409" in osc.refused("arq", "release", arq)
    told, unknown = osc("arq", "release", arq, "--force")
    assert unknown["given_up"] == "not excluded"
    assert (told["given_up"], told["uuid"]) == ("accelerator request", arq)


def test_a_request_from_its_making_to_its_end(site: Site, osc: OpenStack) -> None:
    site.start()
    osc("device", "profile", "create", "one", '[{"resources:FPGA": "1"}]')
    osc("device", "profile", "create", "two", '[{"resources:FPGA": "1"}, {"resources:FPGA": "1"}]')
    made = osc("arq", "create", "one")
    assert (made["state"], made["device_profile_name"]) == ("Initial", "one")
    pair = osc("arq", "create", "two")
    assert (len(set(pair["uuid"])), pair["device_profile_group_id"]) == (2, [0, 1])
    assert "Device Profile not found" in osc.refused("arq", "create", "none")

    (deployable,) = osc("deployable", "list")
    bind = ("arq", "bind", made["uuid"], hosts.ROOT, SERVER_NAME, deployable["name"], "--wait")
    answer = osc.run(*bind, "-f", "json")
    bound = json.loads(answer.out)
    assert (bound["state"], bound["instance_uuid"]) == ("Bound", SERVER)
    assert f"ARQ {made['uuid']} is Bound" in answer.err
    assert osc("arq", "unbind", made["uuid"])["instance_uuid"] is None
    told = "'x' is not a uuid; `arq list` shows the uuids of ARQs."
    assert told in osc.refused("arq", "bind", "x", hosts.ROOT, SERVER, deployable["rp_uuid"])
    for words in (["show", "x"], ["unbind", "x"]):
        assert told in osc.refused("arq", *words)
    told = osc.refused("arq", "delete", "x", made["uuid"], UNKNOWN, *pair["uuid"])
    assert len(told.splitlines()) == 2
    assert osc("arq", "list") == []


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
    dry = osc.run("allocation", "create", "nine", "--consumer", UNKNOWN, "--dry-run", "-f", "json")
    assert dry.code == 1
    asked = json.loads(dry.out)
    assert (asked["uuid"], asked["state"]) == (UNKNOWN, "Impossible")
    assert "the most that is free of one is 1" in osc.refused("allocation", "create", "nine")
    assert osc("allocation", "show", made["uuid"])["consumer"]["name"] == "j"
    assert osc("allocation", "show", "j") == osc("allocation", "show", made["uuid"])
    assert osc("allocation", "renew", "j")["uuid"] == made["uuid"]
    assert "No consumer with an allocation is called 'k'" in osc.refused("allocation", "show", "k")
    osc.do("allocation", "delete", "j")
    assert "not found" in osc.refused("allocation", "show", made["uuid"])


def test_what_a_server_has_and_has_had(site, osc, conf, ctx) -> None:
    hosts.apply(hosts.card("a", range(2)))
    boots.bind(ctx, boots.arqs(ctx), SERVER)
    engine.drain(conf)
    table = osc.run("arq", "list", "--all-projects").out
    assert "| 0000:0c:00.0 " in table
    assert "attach_handle_uuid" not in table

    (held,) = osc("attach", "handle", "list", "--server", SERVER_NAME)
    assert (held["state"], held["state_reason"]) == ("in_use", None)
    osc.do("device", "set", "--disable", "--reason", "The fan is loud.", boots.NAME)
    found = osc("attach", "handle", "list", "--device", boots.NAME, "--state", "unavailable")
    assert rows(found, "state_reason", "instance_uuid") == [("The fan is loud.", None)]
    assert osc("device", "show", boots.NAME)["disabled_reason"] == "The fan is loud."
    assert "with --disable or --taint only" in osc.refused(
        "device", "set", "--enable", "--reason", "quiet", boots.NAME
    )

    everything = osc("history", "list", "--device", boots.NAME)
    assert rows(everything, "kind", "reason") == [("used", None), ("disabled", "The fan is loud.")]
    assert osc("history", "list", "--server", SERVER_NAME, "--kind", "used") == everything[:1]
    assert osc("history", "list", "--project", "nobody") == []
    assert osc("history", "list", "--device", UNKNOWN) == []

    (used,) = osc("usage", "list", "--all-projects")
    assert rows([used], "project_id", "in_use") == [(ctx.project_id, 1)]
    assert used["known_since"]
    (own,) = osc("usage", "list", "--project", ctx.project_id or "")
    later = {name: used[name] for name in ("known_since", "hours")}
    assert own | later == used
    assert osc("usage", "list", "--all-projects", "--start", "2020-01-01", "--end", "2020-01-02")
    assert "is no time" in osc.refused("usage", "list", "--start", "yesterday")
