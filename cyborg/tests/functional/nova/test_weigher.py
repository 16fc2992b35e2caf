# SPDX-License-Identifier: Apache-2.0
"""The order in which nova-scheduler's own code puts hosts with our weigher, in Nova's process."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import hosts, service
from cyborg.tests.compute import Compute
from cyborg.tests.liar import SLOW, Liar, Lie
from cyborg.tests.service import Site

AES, ZIP = "aaaa-1", "zzzz-2"
FPGA = {"resources:FPGA": "1"}
HOSTS = ("host-1", "host-2", "host-3")
NODES = [f"{name}.example" for name in HOSTS]


@pytest.fixture
def cloud(site: Site) -> Site:
    """Three hosts with a card each. Two run a function, and the third cannot be programmed."""
    runs: tuple[dict[str, Any], ...]
    runs = ({"function": ZIP}, {"function": AES}, {"program_mode": None})
    for number, (name, fields) in enumerate(zip(HOSTS, runs, strict=True)):
        site.placement.make_provider(f"{name}.example")
        known = {"program_mode": "dynamic", **fields}
        card = hosts.deployable(f"{name}_card", range(8 * number, 8 * number + 2), **known)
        hosts.apply(hosts.device(name, card), host=name)
        site.placement.sync_host(name)
    return site


@pytest.fixture
def nova(compute: Compute) -> Compute:
    """Nova's scheduler, which asks as the service that it is."""
    return compute


def options(site: Site, **weigher: float) -> dict[str, dict[str, Any]]:
    return {
        "cyborg": {"endpoint_override": site.endpoint},
        "service_user": {"auth_type": "none"},
        "cyborg_weigher": {"timeout": float(service.PATIENCE), "multiplier": 1.0} | weigher,
    }


def weigh(nova: Compute, profile: str | None, nodes: list[str] = NODES) -> dict[str, float]:
    found: dict[str, float] = nova.client.weigh(profile, nodes)
    return found


def test_nova_loads_it_by_the_name_in_its_options(nova: Compute) -> None:
    assert nova.client.listed_weighers() == ["AcceleratorWeigher", "AcceleratorFilter"]


def test_the_best_hosts_come_first(cloud: Site, nova: Compute) -> None:
    nova.client.configure(options(cloud), {})
    preferred = nova.make_profile(FPGA | {"accel:preferred_function": AES})
    assert weigh(nova, preferred) == {NODES[0]: 0.0, NODES[1]: 1.0, NODES[2]: 0.0}
    # Fewer reprogrammings come first, and no candidate last.
    wanted = nova.make_profile(FPGA | {"accel:function_id": ZIP})
    assert weigh(nova, wanted) == {NODES[0]: 1.0, NODES[1]: 0.5, NODES[2]: 0.0}
    # Hosts are equal where nothing is preferred.
    for profile in (None, nova.make_profile(FPGA), "no-such-profile"):
        assert set(weigh(nova, profile).values()) == {0.0}
    nova.client.configure(options(cloud, multiplier=10.0), {})
    assert weigh(nova, wanted)[NODES[0]] == 10.0


def test_an_api_that_does_not_answer_costs_one_time_out_and_no_boot(cloud, nova) -> None:
    profile = nova.make_profile(FPGA | {"accel:preferred_function": AES})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v2"
        group = {"cyborg": {"endpoint_override": url}}
        nova.client.configure(options(cloud, timeout=0.2) | group, {})
        assert set(weigh(nova, profile).values()) == {0.0}
        silent.settimeout(service.PATIENCE)
        silent.accept()[0].close()
        # For a while nobody waits for it again.
        assert set(weigh(nova, profile).values()) == {0.0}
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


CARDS = ("plain", "aes", "zip", "fast", "used")


@pytest.fixture
def rack(site: Site) -> Site:
    """One host with cards of four accelerators: two run a function, one a trait, one is used."""
    has: dict[str, dict[str, Any]] = {
        "aes": {"function": AES, "program_mode": "dynamic"},
        "zip": {"function": ZIP, "program_mode": "dynamic"},
        "fast": {"traits": ("CUSTOM_FAKE_DEVICE", "CUSTOM_FAST")},
    }
    site.placement.make_provider(hosts.ROOT)
    cards = {
        name: hosts.deployable(f"host-1_{name}", range(4 * n, 4 * n + 4), **has.get(name, {}))
        for n, name in enumerate(CARDS)
    }
    hosts.apply(*(hosts.device(name, card) for name, card in cards.items()))
    site.placement.sync()
    site.placement.allocate(models.new_uuid(), provider_uuid("host-1_used"), FPGA=1)
    return site


def first(nova: Compute, profile: str, *, by: str, last: str | None = None) -> list[str]:
    """The cards in the order in which Nova would claim them, which named ``last`` first before."""
    names = {provider_uuid(f"host-1_{name}"): name for name in CARDS}
    claims = nova.offers(profile)
    claims.sort(key=lambda each: names[next(iter(each["allocations"]))] != last)
    empty: dict[str, list[Any]] = {"host-2.example": []} if "w" in by else {}
    found = nova.client.sort_claims(profile, {hosts.ROOT: claims} | empty, ["server"], by)
    return [names[next(iter(each["allocations"]))] for each in found[0]]


def test_of_one_hosts_cards_the_best_is_claimed(rack: Site, nova: Compute) -> None:
    nova.client.configure(options(rack), {})
    trait = nova.make_profile(FPGA | {"accel:preferred_trait": "CUSTOM_FAST"})
    function = nova.make_profile(FPGA | {"accel:preferred_function": AES})
    for by, last in itertools.product(("w", "f", "fw"), CARDS):
        assert first(nova, trait, by=by, last=last)[0] == "fast", by
        assert first(nova, function, by=by, last=last)[0] == "aes", by


def test_what_is_scarce_is_spared(rack: Site, nova: Compute) -> None:
    """A card of which something is used comes first, then idle ones that nobody wants more."""
    nova.client.configure(options(rack), {})
    body = {"name": "zips", "function_id": ZIP, "free": 0, "max_devices": 1}
    rack.call("POST", "/function_pools", body, version="2.4")
    one, four = nova.make_profile(FPGA), nova.make_profile({"resources:FPGA": "4"})
    wanting = nova.make_profile(FPGA | {"accel:function_id": ZIP})
    for by in ("w", "f"):
        found = first(nova, one, by=by, last="zip")
        assert found[0] == "used", by
        assert set(found[1:3]) == {"plain", "fast"}, by
        assert found[3:] == ["aes", "zip"], by
        # Four of one card leave nothing of it, and what it runs is what is asked for.
        assert first(nova, four, by=by)[-1] == "zip", by
        assert first(nova, wanting, by=by, last="plain")[0] == "zip", by


def test_groups_are_claimed_together_and_ports_are_left_alone(rack: Site, nova: Compute) -> None:
    nova.client.configure(options(rack), {})
    profile = nova.make_profile(
        FPGA | {"accel:preferred_function": AES}, FPGA | {"accel:preferred_function": ZIP}
    )
    claims = nova.offers(profile)
    for claim in claims:
        claim["mappings"][f"device_profile_0{models.new_uuid()}"] = [models.new_uuid()]
    claims.append({"mappings": {"": [models.new_uuid()]}, "allocations": {}})

    (found,) = nova.client.sort_claims(profile, {hosts.ROOT: claims}, ["server"], "f")

    best = {name: of[0] for name, of in found[0]["mappings"].items() if len(name) < 20}
    assert list(dict(sorted(best.items())).values()) == [
        provider_uuid("host-1_aes"), provider_uuid("host-1_zip")
    ]  # fmt: skip
    assert found[-1] == claims[-1]

    # Filter and weigher ask once for each server.
    profile = nova.make_profile(FPGA)
    places = {hosts.ROOT: nova.offers(profile), "host-2.example": []}
    rack.placement.calls.clear()
    nova.client.sort_claims(profile, places, ["one", "two", "two", "three"], "fw")
    assert rack.placement.calls.count("GET /allocation_candidates") == 3


def group(rp_uuid: object, number: object = 0) -> dict[str, Any]:
    return {"group": number, "rp_uuid": rp_uuid}


#: What the API might say, wrongly.
LIES: dict[str, bytes] = {
    "html": b"<html>", "nothing": b"", "null": b"null", "text": b'"x"', "list": b"[]",
    "other": b"{}", "number": b'{"candidates": 7}', "nulls": b'{"candidates": [null]}',
    "deep": b'{"candidates": ' + b"[" * 100_000, "bytes": b"\xff\xfe\x00",
    "hostname": json.dumps({"candidates": [{"hostname": [], "rank": [], "groups": []}]}).encode(),
    "groups": json.dumps({"candidates": [{"hostname": "h", "rank": 0, "groups": 7}]}).encode(),
    "group": json.dumps(
        {"candidates": [{"hostname": "h", "rank": 0, "groups": [group({}, [])]}]}
    ).encode(),
    "zip": gzip.compress(b"[" * (1 << 26)),
    "long": b'{"candidates": [' + b" " * (1 << 25),
}  # fmt: skip


@pytest.fixture
def api() -> Iterator[Liar]:
    """An API that is wrong."""
    one = Liar()
    yield one
    one.stop()


def answered(url: str, nova: Compute, claims: Mapping[str, Any], **weigher: float) -> float:
    """Sort by an API that is wrong, which must change nothing; the seconds that it took."""
    group = {"cyborg": {"endpoint_override": f"{url}/v2"}}
    nova.client.configure(
        {**group, "service_user": {"auth_type": "none"}, "cyborg_weigher": weigher}, {}
    )
    begin = time.monotonic()
    found = nova.client.sort_claims("p", claims, ["one"], "fw")
    took = time.monotonic() - begin
    assert found == list(claims.values())
    return took


@pytest.fixture
def claims() -> dict[str, list[dict[str, Any]]]:
    """What Nova may claim on two hosts."""
    return {
        node: [{"mappings": {"device_profile_0": [models.new_uuid()]}} for _ in range(3)]
        for node in NODES[:2]
    }


@pytest.mark.parametrize("lie", LIES)
def test_what_the_api_says_wrongly_changes_nothing(nova, claims, api: Liar, lie: str) -> None:
    headers = {"Location": "http://127.0.0.1:9/", "Connection": "close"}
    if lie == "zip":
        headers["Content-Encoding"] = "gzip"
    for status in (200, 500, 302):
        api.lie = Lie(status, LIES[lie], headers)
        answered(api.url, nova, claims, timeout=float(service.PATIENCE), multiplier=1.0)


@pytest.mark.parametrize("where", ["drips the head", "drips the body"])
def test_an_answer_that_drips_costs_one_time_out(nova, claims, api: Liar, where: str) -> None:
    """Each byte comes in time, and the whole never."""
    api.lie = SLOW[where]
    # It ends, should nobody give up.
    ending = threading.Timer(20, api.ended.set)
    ending.start()
    took = answered(api.url, nova, claims, timeout=0.6, multiplier=1.0, pause=0)
    assert 0.5 < took < 5
    # As long as that drips, nobody else waits.
    begun = time.monotonic()
    for server in ("two", "three"):
        nova.client.sort_claims("p", claims, [server], "f")
    assert time.monotonic() - begun < 0.5
    ending.cancel()
