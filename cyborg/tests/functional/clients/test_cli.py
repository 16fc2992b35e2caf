# SPDX-License-Identifier: Apache-2.0
"""The ``openstack accelerator`` commands of others, unmodified, against the API over HTTP.

Two packages bring these commands: python-cyborgclient, and newer releases of
python-openstackclient, which then ignore the other's. Both are run, in this process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from openstackclient.common import clientmanager
from osc_lib import clientmanager as osc_clientmanager

from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.service import NAME, RP

#: By package: the module that makes its client, and the one whose commands it does without.
PACKAGES = {
    "openstackclient": ("openstackclient.accelerator.client", "cyborgclient.osc.v2"),
    "cyborgclient": ("cyborgclient.osc.plugin", "openstackclient.accelerator"),
}
UNKNOWN = "11111111-2222-3333-4444-555555555555"
GROUPS = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]

pytestmark = pytest.mark.usefixtures("quiet_openstack")


@dataclass(kw_only=True)
class Cli(OpenStack):
    """``openstack accelerator`` of one package, which asks the server for a microversion."""

    package: str
    microversion: str


@pytest.fixture(
    # The package, the microversion that it is told to use, and the one that it asks for.
    params=[
        ("openstackclient", None, "2.0"),
        ("openstackclient", "2.3", "2.3"),
        ("cyborgclient", None, "2.3"),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def cli(request, site) -> Iterator[Cli]:
    """The command, while the other package's part of the command line is away."""
    package, version, microversion = request.param
    of_package, other = PACKAGES[package]
    if importlib.util.find_spec(of_package.rpartition(".")[0]) is None:
        pytest.skip(f"this release of {package} has no accelerator commands")
    module, manager = importlib.import_module(of_package), osc_clientmanager.ClientManager
    name = module.API_NAME
    modules, client = list(clientmanager.PLUGIN_MODULES), vars(manager)[name]
    others = [one for one in modules if name != one.API_NAME]
    clientmanager.PLUGIN_MODULES[:] = [*others, module]
    setattr(manager, name, osc_clientmanager.ClientCache(module.make_client))
    yield Cli(
        endpoint=site.endpoint,
        version=version,
        ignored=(other, "cyborg.osc"),
        package=package,
        microversion=microversion,
    )
    clientmanager.PLUGIN_MODULES[:] = modules
    setattr(manager, name, client)


def columns(shown: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: shown[name] for name in names}


def test_devices_and_deployables(cli, site) -> None:
    site.populate(std_board_info='{"class": "Fake class"}', vendor_board_info="board")
    (device,) = site.call("GET", "/devices")["devices"]
    uuid = device["uuid"]
    of_board = ("uuid", "type", "vendor", "hostname", "std_board_info")
    long = (*of_board, "created_at", "updated_at", "model", "vendor_board_info")

    def status() -> Any:
        """How the status is now, which clients that ask for less are not told."""
        now = site.call("GET", f"/devices/{uuid}", version="2.3")["status"]
        told = cli("device", "show", uuid).get("status")
        assert told == (now if cli.microversion == "2.3" else None)
        return now

    (listed,) = cli("device", "list")
    assert columns(listed, *of_board) == columns(device, *of_board)
    for shown in (*cli("device", "list", "--long"), cli("device", "show", uuid)):
        assert columns(shown, *long) == columns(device, *long)
    assert status() == "enabled"
    cli.do("device", "disable", uuid)
    assert status() == "maintaining"
    cli.do("device", "enable", uuid)
    assert status() == "enabled"
    # A fault of the client's: the SDK does not look at the answer.
    cli.do("device", "disable", UNKNOWN)

    (deployable,) = site.call("GET", "/deployables")["deployables"]
    short = ("uuid", "name", "device_id")
    times = ("created_at", "updated_at")
    whole = (*short, *times, "parent_id", "root_id", "num_accelerators")
    assert cli("deployable", "list") == [columns(deployable, *short)]
    assert cli("deployable", "list", "--long") == [columns(deployable, *whole)]
    shown = cli("deployable", "show", deployable["uuid"])
    assert shown == columns(deployable, *times, "uuid", "name")
    for words in (["device", "show"], ["deployable", "show"], ["deployable", "program", UNKNOWN]):
        assert "found" in cli.refused(*words, UNKNOWN)


def test_attributes_and_profiles(cli, site) -> None:
    site.populate()
    of_driver = cli("device", "attribute", "list")
    assert {item["value"] for item in of_driver} == {"FPGA", "CUSTOM_FAKE_DEVICE"}
    deployable = of_driver[0]["deployable_id"]
    create = ("device", "attribute", "create")
    made = cli(*create, str(deployable), "rack", "12")
    assert (made["deployable_id"], made["key"], made["value"]) == (deployable, "rack", "12")
    assert cli("device", "attribute", "show", made["uuid"]) == made
    listed = cli("device", "attribute", "list", "--long")
    assert (len(listed), made in listed) == (3, True)
    assert "already" in cli.refused(*create, str(deployable), "rack", "13")
    assert cli.refused(*create, NAME, "rack", "13")
    cli.do("device", "attribute", "delete", made["uuid"])
    for act in ("delete", "show"):
        assert cli.refused("device", "attribute", act, made["uuid"])
    assert cli("device", "attribute", "list") == of_driver

    fields = ("uuid", "name", "groups", "description")
    text = json.dumps(GROUPS)
    made = cli("device", "profile", "create", "one", text, "--description", "the first")
    assert [made[name] for name in fields[1:]] == ["one", GROUPS, "the first"]
    assert cli("device", "profile", "list") == [columns(made, *fields)]
    (listed,) = cli("device", "profile", "list", "--long")
    shown = cli("device", "profile", "show", made["uuid"])
    assert columns(listed, *fields) == columns(shown, *fields) == columns(made, *fields)
    by_name = ("device", "profile", "show", "one")
    if cli.microversion == "2.3":
        assert cli(*by_name) == shown
    else:
        assert "required API version should be 2.2" in cli.refused(*by_name)
    assert "already exists" in cli.refused("device", "profile", "create", "one", text)
    assert "name" in cli.refused("device", "profile", "create", "no blanks", text)
    for act in ("show", "delete"):
        assert cli.refused("device", "profile", act, UNKNOWN)
    cli("device", "profile", "create", "two", text)
    cli.do("device", "profile", "delete", made["uuid"], "two")
    assert cli("device", "profile", "list") == []


def test_arqs(cli, site) -> None:
    site.populate()
    cli("device", "profile", "create", "fpga", json.dumps(GROUPS))
    instance = models.new_uuid()

    first = cli("arq", "create", "fpga")

    assert (first["state"], first["device_profile_name"]) == (models.INITIAL, "fpga")
    assert cli("arq", "show", first["uuid"]) == first
    # The other one is not shown by the client when it is made.
    uuid, other = (arq["uuid"] for arq in cli("arq", "list", "--long"))
    assert uuid == first["uuid"]
    target = [hosts.ROOT, instance, RP]
    if cli.package == "cyborgclient":
        target.append("project-1")
    assert cli("arq", "bind", uuid, *target)["state"] == models.BOUND

    bound = cli("arq", "show", uuid)
    expected = {
        "state": models.BOUND,
        "hostname": hosts.ROOT,
        "device_rp_uuid": RP,
        "instance_uuid": instance,
        "attach_handle_type": "TEST_PCI",
        "attach_handle_info": {"bus": "0c", "device": "00", "domain": "0000", "function": "0"},
    }
    assert columns(bound, *expected) == expected
    short = ("uuid", "state", "device_profile_name", "instance_uuid", "attach_handle_info")
    assert columns(cli("arq", "list")[0], *short) == columns(bound, *short)

    assert cli("arq", "unbind", uuid)["state"] == models.UNBOUND
    assert site.held() == {}
    cli("arq", "bind", uuid, *target)
    cli.do("arq", "delete", uuid, other)
    assert cli("arq", "list") == []
    for words in (["show", other], ["delete", other], ["create", "nothing"]):
        assert cli.refused("arq", *words)
    assert cli.refused("arq", "bind", other, *target)
    assert cli.refused("arq", "unbind", other)
