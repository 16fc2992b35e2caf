# SPDX-License-Identifier: Apache-2.0
"""A host with many new devices: few calls of the real Placement, several at a time."""

from __future__ import annotations

import pytest
import webob
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg.inventory.apply import provider_uuid
from cyborg.placement import audit
from cyborg.tests import hosts
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.usefixtures("database", "root")

CARDS = 20
RESHAPER = "POST /reshaper"
#: To find the root, to offer all, and to read how that left the providers.
ONCE = 4
A = provider_uuid("host-1_0")


def report(count: int = CARDS) -> None:
    """The host has so many cards with two handles each."""
    hosts.apply(*(hosts.card(str(number), range(2)) for number in range(count)))


def writes(placement: PlacementServer) -> list[str]:
    """What was written to Placement."""
    return [call for call in placement.calls if not call.startswith("GET")]


def test_a_new_host_takes_two_calls_a_device_and_is_not_audited_at_once(
    placement: PlacementServer, conf: cfg.ConfigOpts
) -> None:
    report()
    placement.sync()

    placement.assert_right("host-1")
    # While Placement is slow, each thread has the trait made.
    counted = [call for call in placement.calls if " /traits/" not in call]
    assert len(counted) <= 2 * CARDS + ONCE
    assert counted.count(RESHAPER) == 1
    for _ in range(2):
        placement.calls.clear()
        placement.sync()
        assert placement.calls == ["GET /resource_providers"]
        audit.take_turns(conf)


def test_children_are_made_after_their_parents(placement: PlacementServer) -> None:
    parents = [hosts.deployable(f"parent-{number}", ()) for number in range(CARDS)]
    children = [
        hosts.deployable(f"child-{number}", range(2), parent=f"parent-{number}")
        for number in range(CARDS)
    ]
    pairs = enumerate(zip(parents, children, strict=True))
    hosts.apply(*(hosts.device(f"d{number}", *pair) for number, pair in pairs))
    placement.sync()
    placement.assert_right("host-1")


def test_without_the_role_inventories_are_sent_one_by_one_and_that_is_said_once(
    placement: PlacementServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    refuse = webob.Response(status=403, json={"errors": [{"detail": "Not permitted"}]})
    placement.before = lambda method, path: refuse if path == "/reshaper" else None
    report()
    placement.sync()
    report(2 * CARDS)
    placement.sync()

    placement.assert_right("host-1")
    assert placement.calls.count(RESHAPER) == 1
    (said,) = [each for each in caplog.messages if "one by one" in each]
    assert said.endswith("Placement answered 403 to POST /reshaper: Not permitted")


def test_a_provider_that_another_changes_meanwhile_does_not_stop_the_others(
    placement: PlacementServer,
) -> None:
    def meddle(_method: str, path: str) -> None:
        if path == "/reshaper":
            placement.before = None
            placement.set_traits(A, "CUSTOM_OF_NOVA")

    placement.before = meddle
    report()
    placement.sync()
    below = placement.below(hosts.ROOT)
    assert below[A].traits == {"CUSTOM_OF_NOVA", "CUSTOM_FAKE_DEVICE"}
    assert {bool(provider.inventories) for provider in below.values()} == {True}


def test_what_others_change_right_after_is_seen_the_next_time(placement: PlacementServer) -> None:
    def meddle(method: str, _path: str) -> None:
        if method == "GET" and RESHAPER in placement.calls:
            placement.before = None
            placement.set_inventories(A, FPGA={"total": 1})

    placement.before = meddle
    report()
    placement.sync()
    assert placement.offered(A) == {"FPGA": (1, 0)}
    placement.sync()
    placement.assert_right("host-1")


def test_each_call_has_the_request_id_of_what_wanted_it(placement: PlacementServer) -> None:
    report()
    placement.request_ids.clear()
    current = oslo_context.RequestContext()
    placement.sync()
    assert placement.request_ids == {current.request_id}
