# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for a host that is dead: an administrator finds and releases them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from cyborg import db, history, rpc, work
from cyborg.arqs import binding, service
from cyborg.audits import consistency, finding, uses
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import giving_up, release
from cyborg.handles.giving_up import GivenUp
from cyborg.states import arq_states, handle_states
from cyborg.tests import boots, hosts
from cyborg.tests.cloud import Cloud

pytestmark = pytest.mark.usefixtures("host_with_cards")


@pytest.mark.every_database
def test_a_request_whose_host_never_cleans_can_be_found_and_released(cloud: Cloud) -> None:
    instance, arq = cloud.boot("b")
    cloud.agent = "is away"
    cloud.placement.release(instance)
    release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()
    assert service.list_arqs(cloud.ctx) == []
    (found,) = service.list_arqs(cloud.ctx, state=models.DELETING)
    assert (found.uuid, found.hostname) == (arq, hosts.ROOT)
    assert cloud.offered("b") == 2
    with pytest.raises(errors.Conflict, match="not known to be down"):
        giving_up.release_arq(cloud.ctx, arq, force=False)
    cloud.go_down()

    released = giving_up.release_arq(cloud.ctx, arq, force=False)

    (given_up,) = released.arqs
    handle = given_up.attach_handle_uuid
    said = f"Host host-1 may still clean attach handle {handle}, if it was asked before."
    assert released.not_excluded == (said,)
    assert (given_up.uuid, given_up.state, given_up.host_step) == (arq, models.DELETING, "clean")
    assert "the agent does not answer" in str(given_up.last_error)
    cloud.work_off()
    assert cloud.rows(models.Arq, models.Work) == {}
    # Nothing is offered of a host that is down.
    assert cloud.offered("b") == 0
    cloud.report()
    cloud.work_off()
    assert cloud.offered("b") == 3
    with pytest.raises(errors.NotFound):
        giving_up.release_arq(cloud.ctx, arq, force=True)


@pytest.mark.every_database
def test_what_is_prepared_bound_unbound_or_failed_can_be_released(cloud: Cloud) -> None:
    _, bound = cloud.boot("a")
    instance, unbound = cloud.boot("b")
    _, failed = cloud.boot("b")
    cloud.agent = "is away"
    binding.request_changes(cloud.ctx, {}, [unbound])
    cloud.placement.release(instance)
    with db.writer() as session:
        started = models.Arq.uuid == failed
        row = session.scalars(sa.select(models.Arq).where(started)).one()
        gone = handle_states.Leaving(row.attach_handle_id or 0, row, handle_states.Event.LEFT)
        handle_states.leave(session, [gone])
        db.update(session, models.Arq, started, state=models.BIND_STARTED)
        values = {"state_reason": "made up", "attach_handle_id": None}
        arq_states.enter(session, models.BIND_FAILED, started, **values)
        work.want(session, work.HOST_STEP, session.scalars(sa.select(models.AttachHandle.uuid)))
    _, preparing = cloud.boot("c")
    cloud.go_down()
    with pytest.raises(errors.Conflict, match="its device, though its host does not report"):
        giving_up.release_arq(cloud.ctx, bound, force=False)

    steps = {
        uuid: giving_up.release_arq(cloud.ctx, uuid, force=uuid == bound).arqs[0].host_step
        for uuid in (bound, preparing, unbound, failed)
    }

    assert steps == {bound: None, preparing: "prepare", unbound: "clean", failed: "clean"}
    cloud.work_off()
    left = {unbound: models.UNBOUND, failed: models.BIND_FAILED}
    assert boots.states(cloud.ctx) == left
    assert boots.handles(cloud.ctx) == []
    assert cloud.rows(models.Work) == {}
    cloud.report()
    cloud.work_off()
    assert [cloud.offered(letter) for letter in "abc"] == [3, 3, 3]
    for uuid in left:
        with pytest.raises(errors.Conflict, match="without an attach handle"):
            giving_up.release_arq(cloud.ctx, uuid, force=True)


@pytest.mark.every_database
@pytest.mark.parametrize("fails", [True, False])
def test_a_clean_that_ends_after_the_forced_release_says_nothing_of_the_handle(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    instance, arq = cloud.boot("b")
    given_up: list[GivenUp] = []

    def step(*_arguments: object) -> None:
        given_up.append(giving_up.release_arq(cloud.ctx, arq, force=True))
        if fails:
            raise rpc.HostStepFailed("the card does not answer")

    monkeypatch.setattr(rpc, "run_host_step", step)
    cloud.placement.release(instance)
    release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()
    assert len(given_up) == 1
    assert consistency.withheld() == []
    assert cloud.rows(models.Arq, models.Work) == {}


def test_what_stayed_unclean_for_nobody_is_ended_by_a_repair(cloud: Cloud) -> None:
    """As a backup may have it that was restored in part."""
    _, arq = cloud.boot("b")
    with db.writer() as session:
        row = session.scalars(sa.select(models.Arq)).one()
        handle = session.scalars(
            sa.select(models.AttachHandle.uuid).where(
                models.AttachHandle.id == row.attach_handle_id
            )
        ).one()
        history.note_unclean(session, row, handle, models.new_uuid(), "the card does not answer")
    (mistake,) = uses.find()
    assert "nothing of that ARQ is to be cleaned in it" in mistake.sentence
    assert len(list(finding.repair([mistake], lambda _: None))) == 1
    assert uses.find() == []
    with db.reader() as session:
        used = session.scalars(sa.select(models.HistoryEntry).filter_by(kind=history.USED)).one()
    assert (used.arq_uuid, used.ended_ms) == (arq, None)


def test_a_host_that_is_up_can_be_given_up_on_by_force(cloud: Cloud) -> None:
    _, arq = cloud.boot("b")
    cloud.agent = "fails"
    (stuck,) = boots.arqs(cloud.ctx)
    with pytest.raises(errors.Conflict, match=r"may still run with its device, and its host is up"):
        giving_up.release_arq(cloud.ctx, arq, force=False)
    giving_up.release_arq(cloud.ctx, arq, force=True)
    cloud.work_off()
    assert boots.states(cloud.ctx) == {stuck: models.INITIAL}
    # What is only asked for holds nothing yet.
    boots.bind(cloud.ctx, [stuck], models.new_uuid(), device_rp_uuid=cloud.cards["c"].provider)
    with pytest.raises(errors.Conflict):
        giving_up.release_arq(cloud.ctx, stuck, force=False)
    assert giving_up.release_arq(cloud.ctx, stuck, force=True).arqs[0].state == models.BIND_STARTED
    cloud.work_off()
    assert cloud.rows(models.Arq, models.Work) == {}
