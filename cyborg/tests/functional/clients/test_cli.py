# SPDX-License-Identifier: Apache-2.0
"""Every ``openstack accelerator`` command, unmodified, against the API over HTTP.

Two packages bring these commands: python-cyborgclient, and newer releases of
python-openstackclient, which then ignore the other's. Both are run, in this process; as whole
programs only once, since that takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from openstackclient.common import clientmanager
from osc_lib import clientmanager as osc_clientmanager

from cyborg.api import versions
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.service import NAME, RP, Site, until

#: By package: the module that makes its client, and the one whose commands it does without.
PACKAGES = {
    "openstackclient": ("openstackclient.accelerator.client", "cyborgclient.osc.v2"),
    "cyborgclient": ("cyborgclient.osc.plugin", "openstackclient.accelerator"),
}

COMMANDS = {
    "arq_bind",
    "arq_create",
    "arq_delete",
    "arq_list",
    "arq_show",
    "arq_unbind",
    "deployable_list",
    "deployable_program",
    "deployable_show",
    "device_attribute_create",
    "device_attribute_delete",
    "device_attribute_list",
    "device_attribute_show",
    "device_disable",
    "device_enable",
    "device_list",
    "device_profile_create",
    "device_profile_delete",
    "device_profile_list",
    "device_profile_show",
    "device_show",
}

UNKNOWN = "11111111-2222-3333-4444-555555555555"
GROUPS = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]

pytestmark = pytest.mark.usefixtures("quiet_openstack")


@dataclass(kw_only=True)
class Cli(OpenStack):
    """``openstack accelerator`` of one package, told to use one microversion or none."""

    package: str

    def __post_init__(self) -> None:
        self.ignored = (PACKAGES[self.package][1], "cyborg.osc")

    @property
    def microversion(self) -> str:
        """What it asks the server for."""
        return self.version or {"openstackclient": "2.0", "cyborgclient": "2.3"}[self.package]


def _module(package: str) -> ModuleType:
    return importlib.import_module(PACKAGES[package][0])


@contextlib.contextmanager
def installed(package: str) -> Iterator[None]:
    """Let the other package's part of the command line be away."""
    module, manager = _module(package), osc_clientmanager.ClientManager
    name = module.API_NAME
    modules, client = list(clientmanager.PLUGIN_MODULES), vars(manager)[name]
    others = [one for one in modules if name != one.API_NAME]
    clientmanager.PLUGIN_MODULES[:] = [*others, module]
    setattr(manager, name, osc_clientmanager.ClientCache(module.make_client))
    yield
    clientmanager.PLUGIN_MODULES[:] = modules
    setattr(manager, name, client)


@pytest.fixture(
    params=[
        ("openstackclient", None),
        ("openstackclient", "2.3"),
        ("cyborgclient", None),
    ],
    ids=lambda param: "-".join(filter(None, param)),
)
def cli(request: pytest.FixtureRequest, site: Site) -> Iterator[Cli]:
    package, version = request.param
    if importlib.util.find_spec(PACKAGES[package][0].rpartition(".")[0]) is None:
        pytest.skip(f"this release of {package} has no accelerator commands")
    with installed(package):
        yield Cli(package=package, version=version, endpoint=site.endpoint)


def columns(shown: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: shown[name] for name in names}


def test_these_are_all_commands() -> None:
    found = importlib.metadata.entry_points(group="openstack.accelerator.v2")
    assert {entry.name for entry in found} == {f"accelerator_{name}" for name in COMMANDS}


def test_devices(cli: Cli, site: Site) -> None:
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

    assert "found" in cli.refused("device", "show", UNKNOWN)
    # A fault of the client's: the SDK does not look at the answer.
    cli.do("device", "disable", UNKNOWN)


def test_deployables(cli: Cli, site: Site) -> None:
    site.populate()
    (deployable,) = site.call("GET", "/deployables")["deployables"]
    uuid = deployable["uuid"]
    short = ("uuid", "name", "device_id")
    times = ("created_at", "updated_at")
    long = (*short, *times, "parent_id", "root_id", "num_accelerators")

    assert cli("deployable", "list") == [columns(deployable, *short)]
    assert cli("deployable", "list", "--long") == [columns(deployable, *long)]
    assert cli("deployable", "show", uuid) == columns(deployable, *times, "uuid", "name")
    assert "found" in cli.refused("deployable", "show", UNKNOWN)


def test_programming(cli: Cli, site: Site) -> None:
    site.populate()
    (deployable,) = cli("deployable", "list")
    assert "found" in cli.refused("deployable", "program", UNKNOWN, UNKNOWN)
    complaint = cli.refused("deployable", "program", deployable["uuid"], UNKNOWN)
    if cli.package == "cyborgclient":
        # A fault of the client's: the SDK's update_deployable calls itself; nothing is sent.
        assert "maximum recursion depth exceeded" in complaint
        return
    assert "does not say that it can" in complaint
    assert "501" in complaint
    # What it runs already is not written.
    site.load(UNKNOWN)
    programmed = cli("deployable", "program", deployable["uuid"], UNKNOWN)
    assert programmed["uuid"] == deployable["uuid"]
    (operation,) = site.call("GET", "/operations", version="2.4")["operations"]
    assert (operation["state"], operation["image_uuid"]) == ("succeeded", UNKNOWN)


def test_attributes(cli: Cli, site: Site) -> None:
    site.populate()
    of_driver = cli("device", "attribute", "list")
    assert {item["value"] for item in of_driver} == {"FPGA", "CUSTOM_FAKE_DEVICE"}
    deployable = of_driver[0]["deployable_id"]

    made = cli("device", "attribute", "create", str(deployable), "rack", "12")

    assert (made["deployable_id"], made["key"], made["value"]) == (deployable, "rack", "12")
    assert cli("device", "attribute", "show", made["uuid"]) == made
    listed = cli("device", "attribute", "list", "--long")
    assert made in listed
    assert len(listed) == 3
    assert "already" in cli.refused("device", "attribute", "create", str(deployable), "rack", "13")
    assert cli.refused("device", "attribute", "create", NAME, "rack", "13")
    cli.do("device", "attribute", "delete", made["uuid"])
    assert cli.refused("device", "attribute", "delete", made["uuid"])
    assert cli.refused("device", "attribute", "show", made["uuid"])
    assert cli("device", "attribute", "list") == of_driver


def test_profiles(cli: Cli, site: Site) -> None:
    fields = ("uuid", "name", "groups", "description")
    text = json.dumps(GROUPS)
    made = cli("device", "profile", "create", "one", text, "--description", "the first")
    assert [made[name] for name in fields[1:]] == ["one", GROUPS, "the first"]
    assert cli("device", "profile", "list") == [columns(made, *fields)]
    (listed,) = cli("device", "profile", "list", "--long")
    assert columns(listed, *fields) == columns(made, *fields)
    shown = cli("device", "profile", "show", made["uuid"])
    assert columns(shown, *fields) == columns(made, *fields)
    by_name = ("device", "profile", "show", "one")
    if cli.microversion == "2.3":
        assert cli(*by_name) == shown
    else:
        assert "required API version should be 2.2" in cli.refused(*by_name)

    assert "already exists" in cli.refused("device", "profile", "create", "one", text)
    assert "name" in cli.refused("device", "profile", "create", "no blanks", text)
    assert cli.refused("device", "profile", "show", UNKNOWN)
    assert cli.refused("device", "profile", "delete", UNKNOWN)
    cli("device", "profile", "create", "two", text)
    cli.do("device", "profile", "delete", made["uuid"], "two")
    assert cli("device", "profile", "list") == []


def test_arqs(cli: Cli, site: Site) -> None:
    site.populate()
    cli("device", "profile", "create", "fpga", json.dumps(GROUPS))
    instance = models.new_uuid()

    first = cli("arq", "create", "fpga")

    assert (first["state"], first["device_profile_name"]) == (models.INITIAL, "fpga")
    assert cli("arq", "show", first["uuid"]) == first
    listed = cli("arq", "list", "--long")
    # The other one is not shown by the client when it is made.
    (uuid, other) = (arq["uuid"] for arq in listed)
    assert uuid == first["uuid"]
    target = [hosts.ROOT, instance, RP]
    if cli.package == "cyborgclient":
        target.append("project-1")

    bound_at_once = cli("arq", "bind", uuid, *target)
    assert bound_at_once["state"] == models.BOUND

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


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_the_sentence_of_an_error(site: Site, package: str) -> None:
    with installed(package):
        cli = Cli(package=package, version=str(versions.MAX), endpoint=site.endpoint)
        complaint = cli.refused("device", "profile", "create", "one", json.dumps(GROUPS))
    assert "A device profile must be an object with a name and groups." in complaint


def test_the_program_as_it_is_installed(site: Site) -> None:
    site.start()
    site.call("POST", "/device_profiles", [{"name": "fpga", "groups": GROUPS}])
    uuid = site.call("POST", "/accelerator_requests", {"device_profile_name": "fpga"})["arqs"][0][
        "uuid"
    ]
    options = ["--os-auth-type", "none", "--os-endpoint", site.endpoint]
    words = ["accelerator", "arq", "bind", uuid, hosts.ROOT, models.new_uuid(), RP]
    done = subprocess.run(
        [sys.executable, "-m", "openstackclient.shell", *options, *words, "-f", "json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["uuid"] == uuid
    until(lambda: site.call("GET", f"/accelerator_requests/{uuid}")["state"] == models.BOUND)
