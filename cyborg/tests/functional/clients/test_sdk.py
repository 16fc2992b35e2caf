# SPDX-License-Identifier: Apache-2.0
"""openstacksdk's accelerator proxy, unmodified, against the API over HTTP.

Commands call it for devices, deployables, attributes, profiles and requests: see ``test_cli``.
"""

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

from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.service import NAME, RP, Site

UNKNOWN = "11111111-2222-3333-4444-555555555555"
GROUPS = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]
TARGET = {"hostname": hosts.ROOT, "device_rp_uuid": RP, "instance_uuid": models.new_uuid()}
BIND = [{"path": f"/{field}", "op": "add", "value": value} for field, value in TARGET.items()]
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


@pytest.fixture(params=[None, "2.3"])
def sdk(request: pytest.FixtureRequest, site: Site) -> _proxy.Proxy:
    return connect(site, request.param)


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
    # A fault of the SDK's: it calls itself, and nothing is sent.
    with pytest.raises(RecursionError):
        sdk.update_deployable(deployable.id, PROGRAM)
    # What it runs already is not written.
    site.load(UNKNOWN)
    programmed = sdk.patch_deployable(deployable, PROGRAM)
    assert (programmed.id, programmed.name) == (deployable.id, NAME)
    (operation,) = site.call("GET", "/operations", version="2.4")["operations"]
    assert (operation["state"], operation["image_uuid"]) == ("succeeded", UNKNOWN)


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
    lists = [sdk.accelerator_requests, sdk.attributes, sdk.deployables, sdk.device_profiles]
    for found, limit in itertools.product([*lists, sdk.devices], (1, 2, 5)):
        whole = [item.id for item in found()]
        assert len(whole) >= 2
        assert [item.id for item in found(limit=limit)] == whole
        first = functools.partial(found, limit=limit, paginated=False)
        assert [item.id for item in first()] == whole[:limit]
        assert [item.id for item in first(marker=whole[0])] == whole[1 : limit + 1]


def test_errors_are_shown_with_their_sentence_once(site) -> None:
    for version in ("2.0", "2.3", "2.4"):
        sdk = connect(site, version)
        with pytest.raises(exceptions.NotFoundException) as missing:
            sdk.get_device(UNKNOWN)
        assert missing.value.details == f"Device not found with uuid={UNKNOWN}"
        assert str(missing.value).count(missing.value.details) == 1
    with pytest.raises(ksa_exceptions.NotFound) as absent:
        sdk.get(f"/devices/{UNKNOWN}", microversion="2.4", raise_exc=True)
    assert str(absent.value).startswith(f"Device not found with uuid={UNKNOWN} (HTTP 404)")
    # The SDK sends a list of one at every microversion.
    with pytest.raises(exceptions.BadRequestException, match="must be an object"):
        sdk.create_device_profile(name="fpga", groups=GROUPS)
