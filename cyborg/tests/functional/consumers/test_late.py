# SPDX-License-Identifier: Apache-2.0
"""Conductors that are late: their lease has ended, or Placement hears of their claim at last."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, profiles, work
from cyborg.allocations import allocation_steps, service, wishes
from cyborg.audits import differences, finding
from cyborg.common import errors
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import client
from cyborg.policy import context
from cyborg.states import allocation_states as states
from cyborg.tests import callers, engine, hosts
from cyborg.tests.placement_server import PlacementServer

CONSUMER = "c0000000-0000-4000-8000-000000000001"
#: The plan's provider, since it is smaller, and another one.
SMALL, LARGE = provider_uuid("host-1_b"), provider_uuid("host-1_a")
OURS = client.Owner(project_id="project-1", user_id="user-1", consumer_type="CYBORG_PROXY")
THEIRS = client.Owner(project_id="project-1", user_id="user-1", consumer_type="INSTANCE")


@pytest.fixture
def ctx(database, placement, enforcer) -> context.RequestContext:
    """An administrator, where a host has two cards of four and two accelerators."""
    placement.make_provider(hosts.ROOT)
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 6)))
    placement.sync()
    profiles.create_profile(name="p", groups=[{"resources:FPGA": "1"}], description=None)
    return callers.admin(enforcer, project_id="project-1")


def ask(conf: cfg.ConfigOpts, ctx: context.RequestContext) -> work.Item:
    """Ask for an accelerator, and claim the work that this makes."""
    body = {"consumer": {"uuid": CONSUMER, "type": "PROXY"}, "device_profile_name": "p"}
    service.create(conf, ctx, wishes.read(ctx, CONSUMER, body), {})
    item = engine.take("conductor-1", 600, [work.ALLOCATE])
    assert item is not None
    return item


def put(conf: cfg.ConfigOpts, provider: str, owner: client.Owner = OURS) -> None:
    """What a conductor claims for the consumer."""
    client.Client(conf).hold(CONSUMER, owner, {provider: {"FPGA": 1}}, None)


def held(placement: PlacementServer) -> dict[str, Any]:
    found = placement.call("GET", f"/allocations/{CONSUMER}")["allocations"]
    return {provider: of["resources"] for provider, of in found.items()}


def test_a_late_conductor_leaves_what_its_successor_has_claimed(conf, ctx, placement) -> None:
    item = ask(conf, ctx)

    def overtake(_method: str, _path: str) -> None:
        placement.before = None
        with db.writer() as session:
            db.update(session, models.Work, models.Work.id == item.id, owner="conductor-2")
        put(conf, LARGE)

    placement.before = overtake
    with pytest.raises(work.LeaseLost):
        allocation_steps.run(conf, item)
    assert held(placement) == {LARGE: {"FPGA": 1}}


def test_what_was_released_meanwhile_is_claimed_no_more(conf, ctx, placement) -> None:
    item = ask(conf, ctx)

    def release(_method: str, _path: str) -> None:
        placement.before = None
        put(conf, LARGE)
        service.delete(ctx, CONSUMER)

    placement.before = release
    allocation_steps.run(conf, item)
    assert held(placement) == {LARGE: {"FPGA": 1}}
    work.finish(item)
    engine.drain(conf)
    assert held(placement) == {}


def test_what_arrives_after_its_allocation_has_ended_is_given_back(
    conf, ctx, placement, monkeypatch
) -> None:
    """A conductor is suspended just before it sends, and wakes up when all is over."""
    item = ask(conf, ctx)
    real = client.Client.hold

    def hold(self: client.Client, *arguments: Any) -> None:
        monkeypatch.setattr(client.Client, "hold", real)
        with db.writer() as session:
            db.delete(session, models.Work, models.Work.id == item.id)
            work.want(session, work.ALLOCATE, [CONSUMER])
        service.delete(ctx, CONSUMER)
        engine.drain(conf)
        real(self, *arguments)

    monkeypatch.setattr(client.Client, "hold", hold)
    with pytest.raises(work.LeaseLost):
        allocation_steps.run(conf, item)
    assert held(placement) == {SMALL: {"FPGA": 1}}
    engine.drain(conf)
    assert held(placement) == {}


def expected() -> list[str]:
    """The consumers that are looked at later; they are due now."""
    with db.writer() as session:
        row = models.Work
        found = session.scalars(sa.select(row.key).where(row.kind == work.LATE_CLAIM))
        db.update(session, row, row.kind == work.LATE_CLAIM, due_ms=0)
        return list(found)


@pytest.mark.parametrize("asked_again", [True, False])
def test_what_a_killed_conductor_had_sent_is_given_back_however_late_it_arrives(
    conf, ctx, placement, asked_again
) -> None:
    killed = ask(conf, ctx)
    work.hand_back([killed.owner])
    service.delete(ctx, CONSUMER)
    engine.drain(conf)
    with pytest.raises(errors.NotFound):
        service.get(ctx, CONSUMER)
    put(conf, LARGE)
    assert engine.drain(conf) == []
    assert held(placement) == {LARGE: {"FPGA": 1}}
    if asked_again:
        work.finish(ask(conf, ctx))
        with db.writer() as session:
            work.want(session, work.ALLOCATE, [CONSUMER])
        engine.drain(conf)
    assert expected() == [CONSUMER]
    engine.drain(conf)
    assert held(placement) == ({SMALL: {"FPGA": 1}} if asked_again else {})
    assert engine.pending() == {}


def test_what_is_not_ours_or_not_known_is_never_given_back_by_itself(conf, ctx, placement) -> None:
    # As after a restore: the allocation was made after the backup.
    put(conf, LARGE)
    placement.sync(full=True)
    assert (engine.drain(conf), expected()) == ([], [])
    placement.release(CONSUMER)
    put(conf, LARGE, THEIRS)
    with db.writer() as session:
        work.want(session, work.LATE_CLAIM, [CONSUMER])
    engine.drain(conf)
    assert held(placement) == {LARGE: {"FPGA": 1}}


def test_what_is_allocated_without_a_fault_is_not_looked_at_later(conf, ctx) -> None:
    allocation_steps.run(conf, ask(conf, ctx))
    assert expected() == []


def test_what_is_claimed_for_nobody_is_repaired_without_nova(conf, ctx, placement) -> None:
    put(conf, SMALL)
    found = differences.find(conf, settle=0)
    ((_, outcome),) = finding.repair(found, lambda _: None)
    assert (outcome or "").endswith("Done.")
    engine.drain(conf)
    assert held(placement) == {}
    put(conf, SMALL, THEIRS)
    ((_, outcome),) = finding.repair(differences.find(conf, settle=0), lambda _: None)
    assert "[nova] is not configured" in (outcome or "")


@pytest.mark.parametrize("first", ["PUT", "GET"])
def test_nothing_is_sent_when_the_lease_has_ended(conf, ctx, placement, first: str) -> None:
    item = ask(conf, ctx)
    put(conf, SMALL)
    if first == "GET":
        # It is given back.
        service.delete(ctx, CONSUMER)
    placement.calls.clear()
    placement.before = lambda _method, _path: item.lose()
    with pytest.raises(work.LeaseLost):
        allocation_steps.run(conf, item)
    assert placement.calls == [f"{first} /allocations/{CONSUMER}"]
    assert held(placement) == {SMALL: {"FPGA": 1}}


@pytest.mark.parametrize("after_failure", ["", "failed"])
def test_what_is_claimed_without_an_allocation_is_given_back(
    conf, ctx, placement, after_failure
) -> None:
    if after_failure:
        item = ask(conf, ctx)
        put(conf, LARGE, THEIRS)
        allocation_steps.run(conf, item)
        work.finish(item)
        placement.release(CONSUMER)
        engine.drain(conf)
        assert service.get(ctx, CONSUMER).row.state == states.FAILED
    for owner, left in ((OURS, {}), (THEIRS, {LARGE: {"FPGA": 1}})):
        put(conf, LARGE, owner)
        with db.writer() as session:
            work.want(session, work.ALLOCATE, [CONSUMER])
        engine.drain(conf)
        assert held(placement) == left
