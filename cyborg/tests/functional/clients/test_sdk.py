# SPDX-License-Identifier: Apache-2.0
"""Every call of openstacksdk's accelerator proxy, unmodified, against the API over HTTP."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import openstack
import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions
from openstack.accelerator.v2 import _proxy, accelerator_request

from cyborg.api import versions
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.service import NAME, RP, Site

#: What the proxy offers, and what a released SDK cannot do with it for faults of its own.
CALLS: dict[str, str | None] = {
    "accelerator_requests": None,
    "api_version": None,
    "attributes": None,
    "create_accelerator_request": "returns the first ARQ of the profile only; the others are in "
    "the list",
    "create_attribute": None,
    "create_device_profile": "sends a list of one at every microversion, which the API takes below "
    "2.4",
    "delete_accelerator_request": None,
    "delete_attribute": None,
    "delete_device_profile": None,
    "deployables": None,
    "device_profiles": None,
    "devices": "its sort argument is no parameter of the API; below 2.4 limit and marker are none",
    "disable_device": "does not look at the answer, so an unknown device passes for done",
    "enable_device": "as disable_device",
    "get_accelerator_request": None,
    "get_attribute": None,
    "get_deployable": None,
    "get_device": None,
    "get_device_profile": None,
    "patch_accelerator_request": "returns what it knew before: the answer has no body",
    "patch_deployable": "asks for /deployables/U/program/U, which the server takes for the path "
    "without the second U",
    "update_accelerator_request": None,
    "update_deployable": "calls itself until Python gives up; nothing is sent",
    "wait_for_delete": None,
    "wait_for_status": None,
}

UNKNOWN = "11111111-2222-3333-4444-555555555555"
GROUPS = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]
TARGET = {"hostname": hosts.ROOT, "device_rp_uuid": RP, "instance_uuid": models.new_uuid()}
BIND = [{"path": f"/{field}", "op": "add", "value": value} for field, value in TARGET.items()]
UNBIND = [{"path": f"/{field}", "op": "remove"} for field in TARGET]
PROGRAM = [{"path": "/program", "op": "replace", "value": [{"image_uuid": UNKNOWN}]}]

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK50Warning")


def connect(site: Site, version: str | None) -> _proxy.Proxy:
    options: dict[str, Any] = {"accelerator_default_microversion": version} if version else {}
    connection = openstack.connect(
        auth_type="none",
        endpoint=site.endpoint,
        load_yaml_config=False,
        load_envvars=False,
        **options,
    )
    proxy: _proxy.Proxy = connection.accelerator
    return proxy


@pytest.fixture(params=[None, "2.0", "2.3"])
def sdk(request: pytest.FixtureRequest, site: Site) -> _proxy.Proxy:
    return connect(site, request.param)


def test_these_are_all_calls() -> None:
    offered = {name for name in vars(_proxy.Proxy) if not name.startswith("_")}
    assert offered == CALLS.keys()


def test_devices(sdk: _proxy.Proxy, site: Site) -> None:
    hosts.apply(
        hosts.device("a", hosts.deployable(NAME)),
        hosts.device("b", hosts.deployable("host-1_b"), type="GPU"),
    )
    shown = {device["uuid"]: device for device in site.call("GET", "/devices")["devices"]}
    fields = ("created_at", "hostname", "model", "std_board_info", "type", "vendor")

    devices = list(sdk.devices())

    assert [device.id for device in devices] == list(shown)
    for device in devices:
        got = sdk.get_device(device.id)
        for field in fields:
            assert getattr(got, field) == getattr(device, field) == shown[device.id][field]
    (gpu,) = sdk.devices(type="GPU")
    assert list(sdk.devices(hostname="host-1.example", vendor="0xABCD")) == devices
    assert list(sdk.devices(hostname="host-2")) == []

    def statuses() -> set[str]:
        return {device.status for device in connect(site, "2.3").devices()}

    asks_for_status = sdk.default_microversion == "2.3"
    assert gpu.status == ("enabled" if asks_for_status else None)
    sdk.disable_device(gpu)
    assert statuses() == {"enabled", "maintaining"}
    sdk.enable_device(gpu.id)
    assert statuses() == {"enabled"}
    with pytest.raises(exceptions.NotFoundException, match="Device not found with uuid"):
        sdk.get_device(UNKNOWN)
    # A fault of the SDK's.
    sdk.disable_device(UNKNOWN)


def test_below_24_lists_have_no_pages(sdk: _proxy.Proxy) -> None:
    with pytest.raises(exceptions.BadRequestException, match="limit"):
        list(sdk.devices(limit=1))


def test_deployables(sdk: _proxy.Proxy, site: Site) -> None:
    site.populate()
    (shown,) = site.call("GET", "/deployables")["deployables"]

    (deployable,) = sdk.deployables()

    got = sdk.get_deployable(deployable)
    assert got.id == deployable.id == shown["uuid"]
    for field in ("created_at", "device_id", "name", "num_accelerators", "parent_id", "root_id"):
        assert getattr(got, field) == getattr(deployable, field) == shown[field]
    assert list(sdk.deployables(name=NAME)) == [deployable]
    with pytest.raises(exceptions.NotFoundException, match="Deployable not found with uuid"):
        sdk.get_deployable(UNKNOWN)


def test_programming(sdk: _proxy.Proxy, site: Site) -> None:
    site.populate()
    (deployable,) = sdk.deployables()
    with pytest.raises(exceptions.HttpException, match="does not say that it can") as refused:
        sdk.patch_deployable(deployable, PROGRAM)
    assert refused.value.status_code == 501
    with pytest.raises(exceptions.BadRequestException, match="image_uuid"):
        sdk.patch_deployable(deployable.id, [PROGRAM[0] | {"value": [{"image_uuid": "x"}]}])
    with pytest.raises(exceptions.NotFoundException):
        sdk.patch_deployable(UNKNOWN, PROGRAM)
    # A fault of the SDK's.
    with pytest.raises(RecursionError):
        sdk.update_deployable(deployable.id, PROGRAM)


def test_programming_what_runs_already(sdk: _proxy.Proxy, site: Site) -> None:
    site.populate()
    site.load(UNKNOWN)
    (deployable,) = sdk.deployables()
    programmed = sdk.patch_deployable(deployable, PROGRAM)
    assert (programmed.id, programmed.name) == (deployable.id, NAME)
    (operation,) = site.call("GET", "/operations", version="2.4")["operations"]
    assert (operation["state"], operation["image_uuid"]) == ("succeeded", UNKNOWN)


def test_device_profiles(sdk: _proxy.Proxy) -> None:
    made = sdk.create_device_profile(name="one", groups=GROUPS, description="the first")

    assert (made.name, made.groups, made.description) == ("one", GROUPS, "the first")
    (listed,) = sdk.device_profiles()
    got = sdk.get_device_profile(made.uuid)
    for profile in (listed, got):
        assert (profile.uuid, profile.name, profile.groups) == (made.uuid, "one", GROUPS)
    if sdk.default_microversion == "2.3":
        assert sdk.get_device_profile("one").uuid == made.uuid
    else:
        with pytest.raises(exceptions.HttpException, match=r"should be 2\.2"):
            sdk.get_device_profile("one")
    with pytest.raises(exceptions.ConflictException, match="already exists"):
        sdk.create_device_profile(name="one", groups=GROUPS)
    with pytest.raises(exceptions.BadRequestException):
        sdk.create_device_profile(name="two")

    sdk.create_device_profile(name="three", groups=GROUPS)
    assert [found.name for found in sdk.device_profiles(name="three")] == ["three"]
    sdk.delete_device_profile("three")
    sdk.delete_device_profile(made)
    assert list(sdk.device_profiles()) == []
    assert sdk.delete_device_profile(made) is None
    with pytest.raises(exceptions.NotFoundException):
        sdk.delete_device_profile(made, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        sdk.get_device_profile(made)


def test_attributes(sdk: _proxy.Proxy, site: Site) -> None:
    site.populate()
    of_driver = list(sdk.attributes())
    assert {attribute.value for attribute in of_driver} == {"FPGA", "CUSTOM_FAKE_DEVICE"}
    deployable = of_driver[0].deployable_id

    made = sdk.create_attribute(deployable_id=deployable, key="rack", value="12")

    got = sdk.get_attribute(made)
    (listed,) = sdk.attributes(key="rack")
    for attribute in (made, got, listed):
        assert (attribute.deployable_id, attribute.key, attribute.value) == (
            deployable,
            "rack",
            "12",
        )
    with pytest.raises(exceptions.ConflictException):
        sdk.create_attribute(deployable_id=deployable, key="rack", value="13")
    with pytest.raises(exceptions.BadRequestException):
        sdk.create_attribute(deployable_id=NAME, key="room", value="1")
    sdk.delete_attribute(made.uuid)
    assert sdk.delete_attribute(made.uuid) is None
    with pytest.raises(exceptions.NotFoundException):
        sdk.delete_attribute(made.uuid, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        sdk.get_attribute(made.uuid)
    assert list(sdk.attributes()) == of_driver


def test_accelerator_requests(sdk: _proxy.Proxy, site: Site) -> None:
    site.populate()
    sdk.create_device_profile(name="fpga", groups=GROUPS)

    made = sdk.create_accelerator_request(device_profile_name="fpga")

    assert (made.state, made.device_profile_name) == (models.INITIAL, "fpga")
    one, other = sdk.accelerator_requests()
    assert one.uuid == made.uuid
    sdk.patch_accelerator_request(made, BIND)
    bound = sdk.get_accelerator_request(made)
    assert bound.state == models.BOUND
    assert {field: getattr(bound, field) for field in TARGET} == TARGET
    assert (bound.attach_handle_type, bound.device_profile_group_id) == ("TEST_PCI", 0)
    assert bound.attach_handle_info.keys() == {"domain", "bus", "device", "function"}
    assert [arq.state for arq in sdk.accelerator_requests()] == [models.BOUND, models.INITIAL]

    sdk.update_accelerator_request(made.uuid, UNBIND)
    assert sdk.get_accelerator_request(made).state == models.UNBOUND
    with pytest.raises(exceptions.BadRequestException, match="Fields absent"):
        sdk.patch_accelerator_request(made, BIND[:1])
    sdk.update_accelerator_request(made.uuid, BIND)
    sdk.delete_accelerator_request(made)
    sdk.delete_accelerator_request(made)
    with pytest.raises(exceptions.NotFoundException):
        sdk.delete_accelerator_request(made, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        sdk.get_accelerator_request(made.uuid)
    with pytest.raises(exceptions.NotFoundException):
        sdk.patch_accelerator_request(made.uuid, BIND)
    with pytest.raises(exceptions.NotFoundException, match="Device Profile not found"):
        sdk.create_accelerator_request(device_profile_name="nothing")
    assert [arq.uuid for arq in sdk.accelerator_requests()] == [other.uuid]


def test_waiting(site: Site) -> None:
    site.start(host_step=True)
    sdk = connect(site, "2.3")
    sdk.create_device_profile(name="fpga", groups=[{"resources:FPGA": "1"}])
    site.hang("prepare")
    arq = sdk.create_accelerator_request(device_profile_name="fpga")
    sdk.patch_accelerator_request(arq, BIND)
    waited: list[int] = []

    def wait(
        state: str, callback: Callable[[int], None] = waited.append
    ) -> accelerator_request.AcceleratorRequest:
        return sdk.wait_for_status(
            sdk.get_accelerator_request(arq),
            state,
            failures=[models.BIND_FAILED],
            interval=0.05,
            attribute="state",
            callback=callback,
        )

    assert wait(models.BIND_STARTED).uuid == arq.uuid
    assert wait(models.BOUND, lambda _progress: site.obey()).attach_handle_info
    site.hang("clean")
    sdk.delete_accelerator_request(arq)
    # Deletion is final to whoever asked for it, whatever the host is still doing.
    assert sdk.wait_for_delete(arq, interval=0.05).uuid == arq.uuid
    assert site.held().keys() == {arq.uuid}


def test_from_24_on_the_sdk_takes_pages(site: Site) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abcde"))
    older, sdk = connect(site, "2.3"), connect(site, "2.4")
    older.create_device_profile(name="fpga", groups=[{"resources:FPGA": "5"}])
    older.create_device_profile(name="gpu", groups=[{"resources:GPU": "5"}])
    sdk.create_accelerator_request(device_profile_name="fpga")
    for found, limit in itertools.product(
        (
            sdk.accelerator_requests,
            sdk.attributes,
            sdk.deployables,
            sdk.device_profiles,
            sdk.devices,
        ),
        (1, 2, 5),
    ):
        whole = [item.id for item in found()]
        assert len(whole) >= 2
        assert [item.id for item in found(limit=limit)] == whole
        first = functools.partial(found, limit=limit, paginated=False)
        assert [item.id for item in first()] == whole[:limit]
        assert [item.id for item in first(marker=whole[0])] == whole[1 : limit + 1]


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.4"])
def test_the_sdk_shows_the_sentence_of_an_error_once(site: Site, version: str) -> None:
    sdk = connect(site, version)
    with pytest.raises(exceptions.NotFoundException) as missing:
        sdk.get_device(UNKNOWN)
    assert missing.value.details == f"Device not found with uuid={UNKNOWN}"
    assert str(missing.value).count(f"Device not found with uuid={UNKNOWN}") == 1


@pytest.mark.parametrize("version", ["2.4", str(versions.MAX)])
def test_keystoneauth_shows_the_sentence_of_an_error(site: Site, version: str) -> None:
    adapter = connect(site, version)
    with pytest.raises(ksa_exceptions.NotFound) as missing:
        adapter.get(f"/devices/{UNKNOWN}", microversion=version, raise_exc=True)
    assert str(missing.value).startswith(f"Device not found with uuid={UNKNOWN} (HTTP 404)")


def test_from_24_on_the_sdk_sends_a_device_profile_as_no_object(site: Site) -> None:
    with pytest.raises(exceptions.BadRequestException, match="must be an object"):
        connect(site, "2.4").create_device_profile(name="fpga", groups=GROUPS)
