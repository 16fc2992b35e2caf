# SPDX-License-Identifier: Apache-2.0
"""The samples of the API reference are what the API takes and gives."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import db, liveness
from cyborg.api.controllers import root
from cyborg.db import models
from cyborg.programming import operations, program
from cyborg.tests import boots, engine, hosts
from cyborg.tests.mounted_api import Api, anonymous

REFERENCE = pathlib.Path(__file__).parents[4] / "api-ref"
SAMPLES = REFERENCE / "samples"

pytestmark = pytest.mark.usefixtures("database")


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def shape(document: Any) -> Any:
    """The keys of a document in order, without its values."""
    if isinstance(document, dict):
        return [(key, shape(value)) for key, value in document.items()]
    if isinstance(document, list):
        return [shape(item) for item in document]
    return "value"


@pytest.fixture
def api(conf: cfg.ConfigOpts) -> Api:
    conf.set_override("auth_strategy", "noauth", group="api")
    hosts.apply(
        hosts.card("a", attributes={"memory_mib": 8192}, program_mode="dynamic", function="aes"),
        readings={"a": {"temperature_celsius": 52.5, "power_watts": 91}},
    )
    return Api(conf)


def assert_like(found: Any, name: str) -> None:
    """The document has the keys of that sample."""
    assert shape(found) == shape(sample(name)), name


def test_what_hosts_report(api) -> None:
    assert api.call("GET", "/") == sample("versions")
    assert api.call("GET", "/v2") == sample("version")
    for path, name in (("devices", "device"), ("deployables", "deployable")):
        found = api.call("GET", f"/v2/{path}")
        assert_like(found, f"{name}-list-response")
        shown = api.call("GET", f"/v2/{path}/{found[path][0]['uuid']}")
        assert_like(shown, f"{name}-show-response")
    hosts.apply(
        hosts.card("a"),
        errors={"another_driver": "it raised"},
        not_offered=1,
        not_offered_reasons=["0000:3b:00.0 10de:2330: no driver claims it"],
    )
    liveness.record_heartbeat(models.new_uuid(), "controller-1/1", "controller-1")
    found, expected = api.call("GET", "/v2/services"), sample("service-list-response")
    for agent in (found["services"][0], expected["services"][0]):
        agent["driver_errors"] = list(agent["driver_errors"].values())
    assert shape(found) == shape(expected)
    shown = api.call("GET", f"/v2/services/{found['services'][1]['uuid']}")
    assert shape(shown) == shape(expected["services"][1])


def test_what_a_guest_uses(api, conf, ctx) -> None:
    hosts.apply(hosts.card("a", range(1)))
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    found = api.call("GET", "/v2/history")
    assert_like(found, "history-list-response")
    (entry,) = found["history"]
    assert api.call("GET", f"/v2/devices/{entry['device_uuid']}/history") == found
    (handle,) = api.call("GET", "/v2/attach_handles?state=in_use")["attach_handles"]
    (expected,) = sample("attach-handle-list-response")["attach_handles"]
    for each in (handle, expected):
        # What is in it depends on the kind of device.
        each["attach_handle_info"] = list(each["attach_handle_info"].values())[:1]
    assert shape(handle) == shape(expected)
    assert_like(api.call("GET", "/v2/usages?all_projects=true"), "usage-list-response")

    hosts.apply(hosts.card("a", range(1)), hosts.card("b", range(4, 8), program_mode="dynamic"))
    operations.ask(hosts.deployables()[-1].uuid, program.Program(function_id="aes"), "user 1")
    found = api.call("POST", "/v2/hosts/host-1/drain", sample("reason-request"))
    assert_like(found, "host-show-response")
    assert found["drain_reason"] == sample("reason-request")["reason"]
    assert api.call("GET", "/v2/hosts/host-1") == found
    assert_like(api.call("POST", "/v2/hosts/host-1/undrain"), "host-show-response")


def test_allocations(conf, placement, api) -> None:
    placement.make_provider(hosts.ROOT)
    placement.sync()
    conf.set_override("bind_wait", 0, group="api")
    profile = {"name": "fpga", "groups": [boots.GROUP]}
    api.call("POST", "/v2/device_profiles", profile)
    found = api.call("GET", "/v2/device_profiles/fpga/candidates")
    assert_like(found, "device-profile-candidates-response")
    made = api.call("POST", "/v2/allocations", sample("allocation-create-request"))
    engine.drain(conf)
    path = f"/v2/allocations/{made['uuid']}"
    assert [*made] == [*sample("allocation-show-response")]
    assert_like(api.call("GET", path), "allocation-show-response")
    assert_like(api.call("GET", "/v2/allocations"), "allocation-list-response")
    renewal = sample("allocation-renew-request")
    renewed = api.call("POST", f"{path}/renew", renewal)
    assert renewed["lease_seconds"] == renewal["lease_seconds"]
    assert api.ask("DELETE", path).status_int == 204
    engine.drain(conf)


@pytest.mark.parametrize("what", ["devices", "services", "accelerator_requests"])
def test_what_is_given_up(api, conf, ctx, what) -> None:
    hosts.apply(hosts.card("a", cleans=what == "accelerator_requests"))
    arqs = boots.arqs(ctx)
    boots.bind(ctx, arqs, models.new_uuid())
    engine.drain(conf)
    if what == "accelerator_requests":
        asked, name = ("POST", f"/v2/{what}/{arqs[0]}/release"), "accelerator-request-release"
    else:
        with db.writer() as session:
            db.update(session, models.Host, down=True)
        uuid = api.call("GET", f"/v2/{what}")[what][0]["uuid"]
        asked, name = ("DELETE", f"/v2/{what}/{uuid}"), "removal"
    assert api.ask(*asked).status_int == 409
    method, path = asked
    assert_like(api.call(method, f"{path}?force=true"), f"{name}-response")


def test_what_administrators_make(api) -> None:
    for version, name in (("2.3", "fault"), ("latest", "error")):
        answer = api.ask("GET", "/v2/device_profiles/fpga", version=version)
        assert answer.status_int == 404
        assert_like(answer.json, name)
    body = sample("device-profile-create-request")
    created = api.call("POST", "/v2/device_profiles", body)
    assert_like(created, "device-profile-create-response")
    found = api.call("GET", "/v2/device_profiles?name=fpga")
    assert_like(found, "device-profile-list-response")
    assert_like(api.call("GET", "/v2/device_profiles/fpga"), "device-profile-show-response")
    replaced = api.call(
        "PUT", "/v2/device_profiles/fpga", sample("device-profile-replace-request")
    )
    assert_like(replaced, "device-profile-replace-response")

    pool = sample("function-pool-create-request")
    created = api.call("POST", "/v2/function_pools", pool)
    assert_like(created, "function-pool-create-response")
    path = f"/v2/function_pools/{created['uuid']}"
    body["groups"][0]["accel:function_id"] = pool["function_id"]
    api.call("PUT", "/v2/device_profiles/fpga", {"name": "fpga", "groups": body["groups"]})
    missed = api.call("POST", "/v2/function_misses", sample("function-miss-request"))
    assert_like(missed, "function-miss-response")
    replaced = api.call("PUT", path, sample("function-pool-replace-request"))
    assert_like(replaced, "function-pool-replace-response")
    assert_like(api.call("GET", path), "function-pool-show-response")
    assert_like(api.call("GET", "/v2/function_pools"), "function-pool-list-response")

    made = api.call("POST", "/v2/hosts/host-1/keys", sample("host-key-enrol-request"))
    assert_like(made, "host-key-enrol-response")
    assert api.call("GET", "/v2/hosts/host-1/keys") == {"keys": [made]}
    with db.writer() as session:
        db.update(session, models.HostKey, used_ms=db.now_ms())
    assert_like(api.call("GET", "/v2/hosts/host-1/keys"), "host-keys-response")


def test_attributes_and_programs_of_a_deployable(api) -> None:
    deployable = api.call("GET", "/v2/deployables")["deployables"][0]["uuid"]
    path = f"/v2/deployables/{deployable}/program"
    body = sample("deployable-program-request")
    with db.writer() as session:
        # It runs the image already.
        image = body[0]["value"][0]["image_uuid"]
        db.update(session, models.Deployable, bitstream_id=image)
    assert_like(api.call("PATCH", path, body), "deployable-show-response")
    started = api.call("POST", path, sample("deployable-program-start-request"))
    assert_like(started, "deployable-program-start-response")
    found = api.call("GET", "/v2/operations?state=queued")
    shown = api.call("GET", f"/v2/operations/{started['uuid']}")
    expected = sample("operation-list-response")
    for operation in (found["operations"][0], shown, expected["operations"][0]):
        # More has happened in the sample.
        operation["history"] = operation["history"][:1]
    assert shape(found) == shape(expected)
    assert shape(shown) == shape(expected["operations"][0])

    body = {**sample("attribute-create-request"), "deployable_uuid": deployable}
    created = api.call("POST", "/v2/attributes", body)
    assert_like(created, "attribute-create-response")
    shown = api.call("GET", f"/v2/attributes/{created['uuid']}")
    assert_like(shown, "attribute-show-response")
    assert_like(api.call("GET", "/v2/attributes?limit=1"), "attribute-list-response")


def test_accelerator_requests(api, conf) -> None:
    api.call("POST", "/v2/device_profiles", sample("device-profile-create-request"))
    body = sample("accelerator-request-create-request")
    created = api.call("POST", "/v2/accelerator_requests", body)
    assert_like(created, "accelerator-request-create-response")
    uuid = created["arqs"][0]["uuid"]
    provider = api.call("GET", "/v2/deployables")["deployables"][0]["rp_uuid"]
    (patch,) = sample("accelerator-request-bind-request").values()
    patch[0]["value"], patch[1]["value"] = "host-1", provider
    api.call("PATCH", "/v2/accelerator_requests", {uuid: patch})
    engine.drain(conf)
    shown = api.call("GET", f"/v2/accelerator_requests/{uuid}")
    assert shown["state"] == "Bound"
    assert_like(shown, "accelerator-request-show-response")
    found = api.call("GET", "/v2/accelerator_requests?bind_state=resolved")
    assert_like(found, "accelerator-request-list-response")
    (patch,) = sample("accelerator-request-unbind-request").values()
    api.call("PATCH", "/v2/accelerator_requests", {uuid: patch})
    assert api.call("GET", f"/v2/accelerator_requests/{uuid}")["state"] == "Unbound"


def test_the_reference_has_every_operation_and_every_sample() -> None:
    pages = "".join(page.read_text() for page in (REFERENCE / "source").glob("*.inc"))
    described = set(re.findall(r"^.. rest_method:: (\S+ \S+)$", pages, re.MULTILINE))
    declared = {f"{method} {path}" for method, path, _handler in root.declared()}
    assert {anonymous(route) for route in described} == {anonymous(route) for route in declared}
    assert [path.name for path in SAMPLES.iterdir() if path.name not in pages] == []
