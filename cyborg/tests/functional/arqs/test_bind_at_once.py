# SPDX-License-Identifier: Apache-2.0
"""A bind that takes nothing but the database is made by PATCH itself, without a conductor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import metrics
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.at_once import at_once
from cyborg.tests.mounted_api import Api
from cyborg.tests.novasink import NovaSink

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

ARQS = "/v2/accelerator_requests"


@pytest.fixture
def api(conf: cfg.ConfigOpts, database: sa.Engine) -> Api:
    conf.set_override("auth_strategy", "noauth", group="api")
    return Api(conf)


def count(outcome: str) -> float:
    name = "cyborg_bind_duration_seconds_count"
    return metrics.REGISTRY.get_sample_value(name, {"outcome": outcome}) or 0


def test_after_patch_they_are_bound_and_a_conductor_tells_nova(ctx, conf, api, sink) -> None:
    hosts.apply(hosts.card())
    uuids, instance = boots.arqs(ctx, 3), models.new_uuid()

    api.call("PATCH", ARQS, boots.patch(uuids, instance), version="2.0")

    path = f"{ARQS}?instance={instance}&bind_state=resolved"
    found = api.call("GET", path, version="2.0")["arqs"]
    assert [(arq["uuid"], arq["state"]) for arq in found] == [(uuid, "Bound") for uuid in uuids]
    held = boots.handles(ctx)
    assert len({arq["attach_handle_uuid"] for arq in found} & set(held)) == 3
    assert engine.pending() == {f"nova-event/{instance}": None}
    assert sink.requests == []
    assert engine.drain(conf) == [f"nova-event/{instance}"]
    assert [len(events) for events in sink.requests] == [3]
    assert sink.events == dict.fromkeys(uuids, "completed")
    assert engine.pending() == {}

    # A repeat only sends the event again.
    boots.bind(ctx, uuids, instance)
    assert boots.handles(ctx) == held
    assert engine.drain(conf) == [f"nova-event/{instance}"]
    assert len(sink.requests) == 2


def test_after_patch_those_for_which_there_is_no_handle_have_failed(ctx, conf, api, sink) -> None:
    hosts.apply(hosts.card(handles=range(1)))
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    before = count("bound"), count("failed")

    api.call("PATCH", ARQS, boots.patch(uuids, instance), version="2.0")

    found = service.list_arqs(ctx)
    assert Counter(arq.state for arq in found) == {models.BOUND: 1, models.BIND_FAILED: 1}
    reason = f"Provider {boots.RP} has no free attach handle."
    assert {arq.state_reason for arq in found} == {None, reason}
    # It is measured where it is made.
    assert (count("bound") - before[0], count("failed") - before[1]) == (1, 1)
    engine.drain(conf)
    assert sorted(sink.events.values()) == ["completed", "failed"]


@pytest.mark.parametrize("more", [{"prepares": True}, {"program_mode": "dynamic"}], ids=str)
def test_what_may_take_more_waits_for_a_conductor_and_the_rest_does_not(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink, more: dict[str, Any]
) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", **more))
    (plain, other), instance = boots.arqs(ctx, 2), models.new_uuid()
    there = boots.target(instance, device_rp_uuid=provider_uuid("host-1_b"))

    binding.request_changes(ctx, {other: there, plain: boots.target(instance)}, [])

    assert boots.states(ctx) == {plain: models.BOUND, other: models.BIND_STARTED}
    assert set(engine.pending()) == {f"bind/{instance}", f"nova-event/{instance}"}
    assert len(boots.handles(ctx)) == 1
    engine.drain(conf)
    assert len(boots.handles(ctx)) == 2
    # Nova gets one message for all.
    told = {} if "prepares" in more else dict.fromkeys([plain, other], "completed")
    assert sink.events == told
    assert len(sink.requests) == (1 if told else 0)


def test_arqs_of_two_instances_in_one_request(ctx, conf, sink) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", program_mode="dynamic"))
    (first, second), instances = boots.arqs(ctx, 2), [models.new_uuid(), models.new_uuid()]
    there = boots.target(instances[1], device_rp_uuid=provider_uuid("host-1_b"))

    binding.request_changes(ctx, {first: boots.target(instances[0]), second: there}, [])

    assert boots.states(ctx) == {first: models.BOUND, second: models.BIND_STARTED}
    events = {f"nova-event/{instance}" for instance in instances}
    assert set(engine.pending()) == {f"bind/{instances[1]}", *events}
    engine.drain(conf)
    assert sink.events == dict.fromkeys([first, second], "completed")


def test_eight_requests_for_one_instance_at_once(ctx, conf, sink) -> None:
    hosts.apply(hosts.card(handles=range(8)))
    uuids, instance = boots.arqs(ctx, 8), models.new_uuid()
    refused: list[str] = []

    def bind(uuid: str) -> None:
        try:
            boots.bind(ctx, [uuid], instance)
        except errors.Invalid as exc:
            if "already holds ARQs" not in str(exc):
                raise
            refused.append(uuid)

    at_once(*[lambda uuid=uuid: bind(uuid) for uuid in uuids])

    (winner,) = set(uuids) - set(refused)
    assert boots.states(ctx) == {**dict.fromkeys(refused, models.INITIAL), winner: models.BOUND}
    assert engine.drain(conf) == [f"nova-event/{instance}"]
    assert sink.events == {winner: "completed"}


def test_32_requests_for_3_handles(ctx, conf, api, sink) -> None:
    hosts.apply(hosts.card(handles=range(3)))
    bodies = [boots.patch([uuid], models.new_uuid()) for uuid in boots.arqs(ctx, 32)]

    def boot(body: dict[str, Any]) -> None:
        api.call("PATCH", ARQS, body, version="2.0")
        engine.drain(conf)

    at_once(*[lambda body=body: boot(body) for body in bodies])

    found = service.list_arqs(ctx)
    assert Counter(arq.state for arq in found) == {models.BOUND: 3, models.BIND_FAILED: 29}
    assert len(set(boots.handles(ctx))) == 3
    reasons = {arq.state_reason for arq in found if arq.state == models.BIND_FAILED}
    assert reasons == {f"Provider {boots.RP} has no free attach handle."}
    engine.make_due()
    engine.drain(conf)
    assert sink.events == {
        arq.uuid: "completed" if arq.state == models.BOUND else "failed" for arq in found
    }
    assert engine.pending() == {}


def test_repeats_and_deletions_at_once_come_to_an_end(ctx, conf) -> None:
    """They lock the ARQs and the event of an instance in different orders."""
    hosts.apply(hosts.card("a", program_mode="dynamic"))
    instance = models.new_uuid()
    kept, *leaving = boots.arqs(ctx, 4)
    boots.bind(ctx, [kept, *leaving], instance)

    def repeat() -> None:
        for _ in range(5):
            boots.bind(ctx, [kept], instance)

    at_once(
        repeat,
        repeat,
        lambda: engine.drain(conf),
        *[lambda uuid=uuid: release.delete_arqs(ctx, [uuid]) for uuid in leaving],
    )

    engine.drain(conf)
    assert boots.states(ctx) == {kept: models.BOUND}
    assert engine.pending() == {}
