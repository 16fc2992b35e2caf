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
from cyborg.policy import context
from cyborg.programming import operations, program
from cyborg.tests import boots, engine, hosts
from cyborg.tests.mounted_api import Api, anonymous
from cyborg.tests.placement_server import PlacementServer

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


@pytest.mark.parametrize(("path", "name"), [("/", "versions"), ("/v2", "version")])
def test_version_documents(api: Api, path: str, name: str) -> None:
    assert api.call("GET", path) == sample(name)


@pytest.mark.parametrize(("path", "name"), [("devices", "device"), ("deployables", "deployable")])
def test_hardware(api: Api, path: str, name: str) -> None:
    found = api.call("GET", f"/v2/{path}")
    assert shape(found) == shape(sample(f"{name}-list-response"))
    shown = api.call("GET", f"/v2/{path}/{found[path][0]['uuid']}")
    assert shape(shown) == shape(sample(f"{name}-show-response"))


def test_services(api: Api) -> None:
    hosts.apply(
        hosts.card("a"),
        errors={"another_driver": "it raised"},
        not_offered=1,
        not_offered_reasons=["0000:3b:00.0 10de:2330: no driver claims it"],
    )
    liveness.record_heartbeat(models.new_uuid(), "controller-1/1", "controller-1")
    found = api.call("GET", "/v2/services")
    expected = sample("service-list-response")
    for agent in (found["services"][0], expected["services"][0]):
        agent["driver_errors"] = list(agent["driver_errors"].values())
    assert shape(found) == shape(expected)
    shown = api.call("GET", f"/v2/services/{found['services'][1]['uuid']}")
    assert shape(shown) == shape(expected["services"][1])


def test_history(api: Api, conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    found = api.call("GET", "/v2/history")
    assert shape(found) == shape(sample("history-list-response"))
    (entry,) = found["history"]
    assert api.call("GET", f"/v2/devices/{entry['device_uuid']}/history") == found


def test_attach_handles(api: Api, conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card("a", range(1)))
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    found = api.call("GET", "/v2/attach_handles?state=in_use")
    (handle,) = found["attach_handles"]
    (expected,) = sample("attach-handle-list-response")["attach_handles"]
    for each in (handle, expected):
        # What is in it depends on the kind of device.
        each["attach_handle_info"] = list(each["attach_handle_info"].values())[:1]
    assert shape(handle) == shape(expected)


def test_usages(api: Api, conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    found = api.call("GET", "/v2/usages?all_projects=true")
    assert shape(found) == shape(sample("usage-list-response"))


def test_allocations(conf, placement, api) -> None:
    placement.make_provider(hosts.ROOT)
    placement.sync()
    conf.set_override("bind_wait", 0, group="api")
    profile = {"name": "fpga", "groups": [boots.GROUP]}
    api.call("POST", "/v2/device_profiles", profile)
    made = api.call("POST", "/v2/allocations", sample("allocation-create-request"))
    engine.drain(conf)
    shown = api.call("GET", f"/v2/allocations/{made['uuid']}")
    for each in (made, shown):
        assert [*each] == [*sample("allocation-show-response")]
    assert shape(shown) == shape(sample("allocation-show-response"))
    assert shape(api.call("GET", "/v2/allocations")) == shape(sample("allocation-list-response"))
    renewal = sample("allocation-renew-request")
    renewed = api.call("POST", f"/v2/allocations/{made['uuid']}/renew", renewal)
    assert renewed["lease_seconds"] == renewal["lease_seconds"]
    assert api.ask("DELETE", f"/v2/allocations/{made['uuid']}").status_int == 204
    engine.drain(conf)


def test_drain(api: Api, conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), program_mode="dynamic"))
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    programmable = hosts.deployables()[-1].uuid
    operations.ask(programmable, program.Program(function_id="aes"), "user 1")
    found = api.call("POST", "/v2/hosts/host-1/drain", sample("reason-request"))
    assert shape(found) == shape(sample("host-show-response"))
    assert found["drain_reason"] == sample("reason-request")["reason"]
    assert api.call("GET", "/v2/hosts/host-1") == found
    undrained = api.call("POST", "/v2/hosts/host-1/undrain")
    assert shape(undrained) == shape(sample("host-show-response"))


def test_host_keys(api: Api) -> None:
    asked = sample("host-key-enrol-request")
    made = api.call("POST", "/v2/hosts/host-1/keys", asked)
    assert shape(made) == shape(sample("host-key-enrol-response"))
    found = api.call("GET", "/v2/hosts/host-1/keys")
    assert found == {"keys": [made]}
    with db.writer() as session:
        db.update(session, models.HostKey, used_ms=db.now_ms())
    used = api.call("GET", "/v2/hosts/host-1/keys")
    assert shape(used) == shape(sample("host-keys-response"))


@pytest.mark.parametrize("what", ["devices", "services"])
def test_removal(api: Api, conf: cfg.ConfigOpts, ctx: context.RequestContext, what: str) -> None:
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    uuid = api.call("GET", f"/v2/{what}")[what][0]["uuid"]
    assert api.ask("DELETE", f"/v2/{what}/{uuid}").status_int == 409
    given_up = api.call("DELETE", f"/v2/{what}/{uuid}?force=true")
    assert shape(given_up) == shape(sample("removal-response"))


def test_release(api: Api, conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card("a", cleans=True))
    (uuid,) = boots.arqs(ctx)
    boots.bind(ctx, [uuid], models.new_uuid())
    engine.drain(conf)
    assert api.ask("POST", f"/v2/accelerator_requests/{uuid}/release").status_int == 409
    given_up = api.call("POST", f"/v2/accelerator_requests/{uuid}/release?force=true")
    assert shape(given_up) == shape(sample("accelerator-request-release-response"))


def test_device_profiles(api: Api) -> None:
    created = api.call("POST", "/v2/device_profiles", sample("device-profile-create-request"))
    assert shape(created) == shape(sample("device-profile-create-response"))
    found = api.call("GET", "/v2/device_profiles?name=fpga")
    assert shape(found) == shape(sample("device-profile-list-response"))
    shown = api.call("GET", "/v2/device_profiles/fpga")
    assert shape(shown) == shape(sample("device-profile-show-response"))
    body = sample("device-profile-replace-request")
    replaced = api.call("PUT", "/v2/device_profiles/fpga", body)
    assert shape(replaced) == shape(sample("device-profile-replace-response"))


def test_attributes(api: Api) -> None:
    deployable = api.call("GET", "/v2/deployables")["deployables"][0]["uuid"]
    body = {**sample("attribute-create-request"), "deployable_uuid": deployable}
    created = api.call("POST", "/v2/attributes", body)
    assert shape(created) == shape(sample("attribute-create-response"))
    shown = api.call("GET", f"/v2/attributes/{created['uuid']}")
    assert shape(shown) == shape(sample("attribute-show-response"))
    found = api.call("GET", "/v2/attributes?limit=1")
    assert shape(found) == shape(sample("attribute-list-response"))


def test_faults(api: Api) -> None:
    for version, name in (("2.3", "fault"), ("latest", "error")):
        answer = api.ask("GET", "/v2/device_profiles/fpga", version=version)
        assert answer.status_int == 404
        assert shape(answer.json) == shape(sample(name))


def test_programming(api: Api) -> None:
    deployable = api.call("GET", "/v2/deployables")["deployables"][0]["uuid"]
    body = sample("deployable-program-start-request")
    started = api.call("POST", f"/v2/deployables/{deployable}/program", body)
    assert shape(started) == shape(sample("deployable-program-start-response"))
    found = api.call("GET", "/v2/operations")
    shown = api.call("GET", f"/v2/operations/{started['uuid']}")
    expected = sample("operation-list-response")
    for operation in (found["operations"][0], shown, expected["operations"][0]):
        # More has happened in the sample.
        operation["history"] = operation["history"][:1]
    assert shape(found) == shape(expected)
    assert shape(shown) == shape(expected["operations"][0])


def test_function_pools(api: Api) -> None:
    created = api.call("POST", "/v2/function_pools", sample("function-pool-create-request"))
    assert shape(created) == shape(sample("function-pool-create-response"))
    path = f"/v2/function_pools/{created['uuid']}"
    replaced = api.call("PUT", path, sample("function-pool-replace-request"))
    assert shape(replaced) == shape(sample("function-pool-replace-response"))
    assert shape(api.call("GET", path)) == shape(sample("function-pool-show-response"))
    found = api.call("GET", "/v2/function_pools")
    assert shape(found) == shape(sample("function-pool-list-response"))


def test_function_misses(api: Api) -> None:
    body = sample("device-profile-create-request")
    body["groups"][0]["accel:function_id"] = sample("function-pool-create-request")["function_id"]
    api.call("POST", "/v2/device_profiles", body)
    api.call("POST", "/v2/function_pools", sample("function-pool-create-request"))
    missed = api.call("POST", "/v2/function_misses", sample("function-miss-request"))
    assert shape(missed) == shape(sample("function-miss-response"))


def test_candidates(placement: PlacementServer, api: Api) -> None:
    placement.make_provider(hosts.ROOT)
    placement.sync()
    groups = [{"resources:FPGA": "1"}]
    api.call("POST", "/v2/device_profiles", {"name": "p", "groups": groups})
    found = api.call("GET", "/v2/device_profiles/p/candidates")
    assert shape(found) == shape(sample("device-profile-candidates-response"))


def test_programming_with_an_image_that_runs_already(api: Api) -> None:
    body = sample("deployable-program-request")
    with db.writer() as session:
        image = body[0]["value"][0]["image_uuid"]
        db.update(session, models.Deployable, bitstream_id=image)
    deployable = api.call("GET", "/v2/deployables")["deployables"][0]["uuid"]
    shown = api.call("PATCH", f"/v2/deployables/{deployable}/program", body)
    assert shape(shown) == shape(sample("deployable-show-response"))


def test_accelerator_requests(api: Api, conf: cfg.ConfigOpts) -> None:
    api.call("POST", "/v2/device_profiles", sample("device-profile-create-request"))
    body = sample("accelerator-request-create-request")
    created = api.call("POST", "/v2/accelerator_requests", body)
    assert shape(created) == shape(sample("accelerator-request-create-response"))
    uuid = created["arqs"][0]["uuid"]
    provider = api.call("GET", "/v2/deployables")["deployables"][0]["rp_uuid"]
    ((_, operations),) = sample("accelerator-request-bind-request").items()
    operations[0]["value"], operations[1]["value"] = "host-1", provider
    api.call("PATCH", "/v2/accelerator_requests", {uuid: operations})
    engine.drain(conf)
    shown = api.call("GET", f"/v2/accelerator_requests/{uuid}")
    assert shown["state"] == "Bound"
    assert shape(shown) == shape(sample("accelerator-request-show-response"))
    found = api.call("GET", "/v2/accelerator_requests?bind_state=resolved")
    assert shape(found) == shape(sample("accelerator-request-list-response"))
    ((_, operations),) = sample("accelerator-request-unbind-request").items()
    api.call("PATCH", "/v2/accelerator_requests", {uuid: operations})
    assert api.call("GET", f"/v2/accelerator_requests/{uuid}")["state"] == "Unbound"


def test_every_operation_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in (REFERENCE / "source").glob("*.inc"))
    described = set(re.findall(r"^.. rest_method:: (\S+ \S+)$", pages, re.MULTILINE))
    declared = {f"{method} {path}" for method, path, _handler in root.declared()}
    assert {anonymous(route) for route in described} == {anonymous(route) for route in declared}


def test_every_sample_is_shown() -> None:
    pages = "".join(page.read_text() for page in (REFERENCE / "source").glob("*.inc"))
    unused = [path.name for path in SAMPLES.iterdir() if path.name not in pages]
    assert unused == []


