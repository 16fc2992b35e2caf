# SPDX-License-Identifier: Apache-2.0
"""Allocations where devices are tainted, drained or refused, and where a quota ends them."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import pytest
import requests

from cyborg import db, quotas, work
from cyborg.arqs import candidates
from cyborg.common.request_groups import TOLERATE_TAINT
from cyborg.db import models
from cyborg.hosts import draining, flags
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import boots, hosts
from cyborg.tests.consumers import (
    FPGA,
    ask,
    before_the_claim,
    call,
    claimed,
    profile,
    refusal,
    wish,
)
from cyborg.tests.named_devices import device
from cyborg.tests.service import Site

A, B = provider_uuid("host-1_a"), provider_uuid("host-1_b")


def providers(answer: requests.Response) -> set[str]:
    assert answer.status_code == 202, answer.text
    return {each["device_rp_uuid"] for each in answer.json()["accelerators"]}


def taint(rack: Site, letters: str, *, off: bool = False) -> None:
    for letter in letters:
        (flags.untaint_device if off else flags.taint_device)(device(letter))
    rack.hurry(rack.idle)


def test_what_is_tainted_is_for_those_who_tolerate_it(rack: Site) -> None:
    # Placement is asked for what is not tainted, else all that it names may be.
    for tainted, other in (("a", B), ("b", A)):
        taint(rack, tainted)
        (found,) = candidates.find(rack.conf, [FPGA], most=1)
        assert [each.deployable.rp_uuid for each in found.choices] == [other]
        taint(rack, tainted, off=True)
    profile(rack, {TOLERATE_TAINT: "true"}, name="tolerant")
    taint(rack, "ab")
    assert "tainted" in refusal(rack, wish())
    assert rack.held() == {}
    call(rack, "POST", "", wish(device_profile_name="tolerant"))
    taint(rack, "a", off=True)
    assert providers(ask(rack, "POST", "", wish())) == {A}


@pytest.mark.every_database
def test_a_gang_goes_elsewhere_if_one_is_tainted_meanwhile(rack: Site) -> None:
    profile(rack, {}, {}, name="two")
    before_the_claim(rack, lambda: flags.taint_device(device("b")))
    # What is fuller comes first.
    found = ask(rack, "POST", "", wish(device_profile_name="two"))
    assert providers(found) == {A}
    assert claimed(rack, found.json()["uuid"]) == {A: {"FPGA": 2}}


@pytest.mark.every_database
def test_a_gang_goes_elsewhere_if_one_has_no_handle(rack, ctx) -> None:
    """A handle may be taken without a claim, and its set has what the next one needs as well."""
    parts = [{"device_profile_name": "p", "count": 2}]
    for _ in range(3):
        call(rack, "POST", "", wish(groups=[{**FPGA, "trait:CUSTOM_B": "forbidden"}]))

    # A has one left, and is chosen first, as it is fuller.
    before_the_claim(rack, lambda: boots.ask(ctx))
    found = ask(rack, "POST", "", wish(parts=parts))
    assert providers(found) == {B}
    assert claimed(rack, found.json()["uuid"]) == {B: {"FPGA": 2}}


def test_a_gang_that_is_refused_everywhere_says_why(rack: Site) -> None:
    profile(rack, {}, {}, name="two")
    before_the_claim(rack, lambda: draining.drain("host-1", None, 1))
    body = wish(device_profile_name="two")
    assert "drained" in refusal(rack, body)
    rack.hurry(rack.idle)
    assert (rack.held(), claimed(rack, body["consumer"]["uuid"])) == ({}, {})
    assert "drained" in refusal(rack, wish())
    draining.undrain("host-1", 1)
    rack.hurry(rack.idle)
    assert call(rack, "POST", "", body)["state"] == "Active"


def add_host(rack: Site, name: str = "host-2") -> None:
    """Another host, with a card of eight."""
    rack.placement.make_provider(f"{name}.example")
    there = hosts.deployable(f"{name}_c", range(8))
    hosts.apply(hosts.device("c", there), host=name)
    rack.hurry(rack.idle)


def questions(rack: Site) -> int:
    """How often Placement was asked for candidates, or for where to ask for them."""
    calls = rack.placement.calls
    return calls.count("GET /allocation_candidates") + calls.count("GET /resource_providers")


def test_what_is_refused_on_one_host_is_found_on_another(rack: Site) -> None:
    """Also before Placement has been told that the first one gives out nothing."""
    add_host(rack)

    def flag(column: str, *, value: bool) -> None:
        with db.writer() as session:
            db.update(session, models.Host, models.Host.name == "host-1", **{column: value})
            if not value:
                work.want(session, work.PLACEMENT, ["host-1"])

    for column in ("drained", "down"):
        # What is fuller comes first, so that it is on host-1.
        before_the_claim(rack, functools.partial(flag, column, value=True))
        found = ask(rack, "POST", "", wish())
        assert providers(found) == {provider_uuid("host-2_c")}
        assert set(claimed(rack, found.json()["uuid"])) == {provider_uuid("host-2_c")}
        call(rack, "DELETE", f"/{found.json()['uuid']}")
        flag(column, value=False)
        rack.hurry(rack.idle)


def test_other_hosts_take_no_candidates_from_those_that_are_named(rack, monkeypatch) -> None:
    """Of a large cloud Placement names so many candidates, and no more."""
    add_host(rack)
    monkeypatch.setattr("cyborg.allocations.choosing._MOST", 1)
    part = {"groups": [FPGA], "device_rp_uuid": provider_uuid("host-2_c")}
    names = ("*host-1*", "*host-2*", "host-2")
    asked: list[dict[str, Any]] = [{"groups": [FPGA], "hosts": name} for name in names]
    for narrow in (1, 20):
        monkeypatch.setattr("cyborg.allocations.choosing._MOST_HOSTS", narrow)
        for fields in (*asked, {"parts": [part]}):
            found = call(rack, "POST", "", wish(**fields, dry_run=True))
            assert found["state"] == "Possible", (narrow, fields)


def test_of_many_named_hosts_those_with_room_are_asked(rack, monkeypatch) -> None:
    add_host(rack)
    call(rack, "POST", "", wish(parts=[{"groups": [FPGA], "hosts": "host-1", "count": 6}]))
    rack.hurry(rack.idle)
    monkeypatch.setattr("cyborg.allocations.choosing._MOST_HOSTS", 1)
    search = candidates.search

    def search_on_hosts(*given: Any, host: str | None = None, **options: Any) -> Any:
        """Without a host Placement names others only."""
        if host is None:
            return candidates.Found(candidates=[], named=1000)
        return search(*given, host=host, **options)

    monkeypatch.setattr(candidates, "search", search_on_hosts)
    body = wish(groups=[FPGA], hosts="host-*", dry_run=True)
    assert call(rack, "POST", "", body)["state"] == "Possible"
    # A part that asks for no resource has no room anywhere.
    parts = [{"groups": [FPGA]}, {"groups": [{"trait:CUSTOM_B": "required"}]}]
    body = wish(parts=parts, hosts="host-*", dry_run=True)
    assert call(rack, "POST", "", body)["state"] == "Impossible"


def test_what_no_host_has_together_costs_one_question(
    rack: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cyborg.allocations.choosing._MOST_HOSTS", 1)
    large, of_b = {"resources:FPGA": "6"}, {**FPGA, "trait:CUSTOM_B": "required"}
    # Each host has room for either group, and none for both.
    both = {"groups": [large, of_b], "hosts": "*"}
    # The first host has both, and is not named; of the others each lacks one of the groups.
    lacking = {"groups": [FPGA, of_b], "hosts": "host-2*"}
    for name, asked in (("host-2", {"parts": [both, both]}), ("host-22", lacking)):
        add_host(rack, name)
        rack.placement.calls.clear()
        refusal(rack, wish(**asked))
        assert questions(rack) == 1


def test_an_allocation_counts_in_the_quota_while_it_is_there(rack, monkeypatch) -> None:
    profile(rack, {}, {}, name="two")
    monkeypatch.setattr(quotas, "limits_of", lambda _conf, _project: {"class:FPGA": 3})
    first = call(rack, "POST", "", wish(device_profile_name="two"))
    reason = "class:FPGA: used 2, limit 3, asked for 2"
    assert reason in refusal(rack, wish(device_profile_name="two"), 403)
    dry = call(rack, "POST", "", wish(device_profile_name="two", dry_run=True))
    assert (dry["state"], reason in dry["state_reason"]) == ("Impossible", True)
    # What the consumer has already is nothing new.
    body = wish(first["uuid"], device_profile_name="two")
    assert call(rack, "POST", "", body | {"dry_run": True})["state"] == "Possible"
    # What fails is counted no more.
    before_the_claim(rack, lambda: rack.placement.allocate(str(uuid.uuid4()), A, FPGA=4))
    ask(rack, "POST", "", wish(groups=[{**FPGA, "trait:CUSTOM_B": "forbidden"}]))
    call(rack, "DELETE", f"/{first['uuid']}")
    rack.hurry(rack.idle)
    assert ask(rack, "POST", "", wish(device_profile_name="two")).status_code == 202
    assert len(rack.held()) == 2
