# SPDX-License-Identifier: Apache-2.0
"""Facts with types, and the health of devices, as the API shows them from microversion 2.4."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.db import models
from cyborg.drivers import trait_names
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.mounted_api import Api

Call = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("database")

HOT = "temperature is 105 degrees"
FACTS: dict[str, str | int] = {"memory_mib": 81559, "numa_node": 0, "product": "A100 80GB"}
TRAITS = ("CUSTOM_FAKE_DEVICE",)


def _traits(facts: dict[str, str | int]) -> dict[str, str]:
    """The driver's traits and those of the facts, by key."""
    names = (*TRAITS, *trait_names.of_facts(facts))
    return {f"traits{number}": name for number, name in enumerate(names, 1)}


@pytest.fixture
def call(conf: cfg.ConfigOpts) -> Call:
    conf.set_override("auth_strategy", "noauth", group="api")
    api = Api(conf)

    def calling(
        method: str, url: str, body: Any = None, *, version: str = "2.4", status: int = 200
    ) -> Any:
        answer = api.ask(method, url, body, version=version)
        assert answer.status_int == status, answer.text
        return answer.json if answer.body else None

    return calling


def _report(*, unhealthy: str | None = None, **changes: Any) -> None:
    fields = {"traits": TRAITS, "attributes": FACTS} | changes
    hosts.apply(hosts.card("a", range(1), unhealthy=unhealthy, **fields), hosts.card("b"))


def test_values_are_shown_in_their_types_from_2_4(call: Call) -> None:
    _report()
    shown = call("GET", "/v2/deployables?name=host-1_a")["deployables"][0]
    assert shown["attributes"] == {**_traits(FACTS), "rc": "FPGA", **FACTS}
    assert call("GET", f"/v2/deployables/{shown['uuid']}") == shown
    assert "attributes_list" not in shown

    texts = [{key: name} for key, name in _traits(FACTS).items()] + [{"rc": "FPGA"}]
    texts += [{key: str(value)} for key, value in FACTS.items()]
    for version in ("2.0", "2.3"):
        shown = call("GET", "/v2/deployables", version=version)["deployables"][0]
        assert shown["attributes_list"] == json.dumps(texts)
        assert "attributes" not in shown

    for version, value in (("2.4", 81559), ("2.3", "81559"), ("2.0", "81559")):
        (shown,) = call("GET", "/v2/attributes?key=memory_mib", version=version)["attributes"]
        assert shown["value"] == value
        one = call("GET", f"/v2/attributes/{shown['uuid']}", version=version)
        assert one["value"] == value


@pytest.mark.every_database
def test_attributes_are_found_by_their_value_exactly(call: Call) -> None:
    _report()
    for query, keys in (
        ("key=memory_mib&value=81559", ["memory_mib"]),
        ("value=A100+80GB", ["product"]),
        ("value=a100+80gb", []),
        ("value=81559.0", []),
        ("key=rc&value=FPGA&limit=1", ["rc"]),
    ):
        found = call("GET", f"/v2/attributes?{query}")["attributes"]
        assert [attribute["key"] for attribute in found] == keys
        call("GET", f"/v2/attributes?{query}", version="2.3", status=400)


def test_what_an_administrator_says_has_the_type_of_its_key(call: Call) -> None:
    hosts.apply(hosts.card("a"))
    known = call("GET", "/v2/deployables")["deployables"][0]
    values = ["", "16 GB", "-1", -1, "1.5", "٣", "1\n", 2**31, "9" * 300]
    for key, value in itertools.product(["memory_mib", "numa_node", "capacity_mib"], values):
        body = {"deployable_id": known["device_id"], "key": key, "value": value}
        for version in ("2.0", "2.4"):
            call("POST", "/v2/attributes", body, version=version, status=400)

    deployable = known["uuid"]
    for key, value, shown in (
        ("memory_mib", 1024, 1024),
        ("capacity_mib", "2147483647", 2147483647),
        ("numa_node", "0000", 0),
        ("product", 5, "5"),
        ("slot", 5, "5"),
        ("shelf", "0005", "0005"),
    ):
        body = {"deployable_uuid": deployable, "key": key, "value": value}
        made = call("POST", "/v2/attributes", body, status=201)
        assert made["value"] == shown
        assert call("GET", f"/v2/deployables/{deployable}")["attributes"][key] == shown


@pytest.mark.every_database
def test_what_an_administrator_says_stands_until_it_is_deleted(call: Call) -> None:
    hosts.apply(hosts.card("a", range(1)), hosts.card("b"))
    deployable = call("GET", "/v2/deployables")["deployables"][0]["uuid"]
    body = {"deployable_uuid": deployable, "key": "memory_mib", "value": 40960}
    made = call("POST", "/v2/attributes", body, status=201)
    for told in (FACTS, {}, FACTS):
        _report(attributes=told)
        shown = call("GET", f"/v2/deployables/{deployable}")["attributes"]
        assert shown == {"rc": "FPGA", **_traits(told), **told, "memory_mib": 40960}
    call("POST", "/v2/attributes", {**body, "key": "product", "value": "T4"}, status=409)
    call("DELETE", f"/v2/attributes/{made['uuid']}", status=204)
    _report()
    assert call("GET", f"/v2/deployables/{deployable}")["attributes"]["memory_mib"] == 81559


def test_devices_show_what_ails_them(call: Call) -> None:
    for reason in (None, HOT, None):
        _report(unhealthy=reason)
        shown, other = call("GET", "/v2/devices")["devices"]
        health = "unhealthy" if reason else "healthy"
        assert (shown["health"], shown["health_reason"]) == (health, reason)
        assert (other["health"], other["health_reason"]) == ("healthy", None)
        assert shown["missing"] is other["missing"] is False
        assert call("GET", f"/v2/devices/{shown['uuid']}") == shown | {"readings": None}
        for version in ("2.0", "2.3"):
            old = call("GET", f"/v2/devices/{shown['uuid']}", version=version)
            assert not {"health", "health_reason", "missing"} & old.keys()


@pytest.mark.every_database
def test_devices_are_listed_by_their_health_and_whether_they_are_there(
    call: Call, ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    _report()
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    hosts.apply(hosts.card("b"), hosts.card("c", unhealthy=HOT))
    gone, well, ill = call("GET", "/v2/devices")["devices"]
    assert (gone["missing"], gone["health"]) == (True, "healthy")
    for query, found in (
        ("health=healthy", [gone, well]),
        ("health=unhealthy", [ill]),
        ("health=unhealthy&missing=true", []),
        ("missing=false", [well, ill]),
        ("missing=true", [gone]),
        ("missing=true&hostname=host-2", []),
    ):
        assert call("GET", f"/v2/devices?{query}")["devices"] == found
        call("GET", f"/v2/devices?{query}", version="2.3", status=400)
    for wrong in ("health=ill", "health=", "missing=perhaps", "missing=", "sort_key=health"):
        call("GET", f"/v2/devices?{wrong}", status=400)


def test_what_cannot_be_read_while_a_guest_has_the_device_is_still_known(
    call: Call, ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    made = trait_names.of_facts(FACTS)
    _report(traits=(*TRAITS, *made, "CUSTOM_OF_THE_OPERATOR"))
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx), instance)
    engine.drain(conf)

    _report(attributes={"numa_node": 1})
    (shown,) = call("GET", "/v2/deployables?name=host-1_a")["deployables"]
    attributes = shown["attributes"]
    assert {key: attributes[key] for key in FACTS} == {**FACTS, "numa_node": 1}
    traits = {value for key, value in attributes.items() if key.startswith("trait")}
    assert traits == {*TRAITS, *made, "CUSTOM_NUMA_NODE_1"} - {"CUSTOM_NUMA_NODE_0"}

    release.delete_instance_arqs(ctx, instance)
    _report(attributes={"numa_node": 0})
    (shown,) = call("GET", "/v2/deployables?name=host-1_a")["deployables"]
    # A trait that was there keeps its key.
    left = sorted(map(str, shown["attributes"].values()))
    assert left == ["0", "CUSTOM_FAKE_DEVICE", "CUSTOM_NUMA_NODE_0", "FPGA"]
