# SPDX-License-Identifier: Apache-2.0
"""The checks of the database's soundness see what is unsound, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, notifications, work
from cyborg.audits import consistency, orphans
from cyborg.db import models
from cyborg.function_pools import pools
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, leaving
from cyborg.tests.fpgas import pool_spec

pytestmark = [
    pytest.mark.usefixtures("database"),
    pytest.mark.every_database,
    pytest.mark.makes_up_rows,
]


def _change(model: type[models.Base], **values: object) -> None:
    with db.writer() as session:
        db.update(session, model, **values)


@pytest.fixture
def arq(database: sa.Engine, ctx: context.RequestContext, conf: cfg.ConfigOpts) -> str:
    """The uuid of a Bound ARQ."""
    hosts.apply(hosts.card("a", range(1)))
    (uuid,) = boots.arqs(ctx)
    boots.bind(ctx, [uuid], models.new_uuid())
    engine.drain(conf)
    return uuid


OTHER = "5b0a3b3e-6d0c-4c7e-9f5d-0c8a1d8f3e11"
UNFIT = "but its fields or its attach handle do not fit that."


#: Changes of a Bound ARQ, and what is said of it then.
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"attach_handle_id": None}, f"is Bound, {UNFIT}"),
    ({"consumer_uuid": None}, f"is Bound, {UNFIT}"),
    (
        {"state": models.BIND_FAILED, "attach_handle_id": None, "hostname": None},
        f"is BindFailed, {UNFIT}",
    ),
    ({"state": models.BIND_FAILED}, f"is BindFailed, {UNFIT}"),
    ({"state": models.INITIAL}, f"is Initial, {UNFIT}"),
    ({"device_rp_uuid": OTHER}, f"asked for provider {OTHER} and has a handle of {boots.RP}."),
    ({"state": models.BIND_STARTED}, "is BindStarted, and there is no work that would end that."),
]


def test_an_arq_that_is_not_what_its_state_says_is_seen(arq: str) -> None:
    with db.writer() as session:
        db.delete(session, models.Work)
        before = session.execute(sa.select(models.Arq.__table__)).one()._asdict()
    for changes, sentence in CHANGES:
        assert consistency.violations() == []
        _change(models.Arq, **changes)
        found = [each.sentence for each in consistency.violations()]
        assert found == [f"ARQ {arq} {sentence}"], changes
        _change(models.Arq, **before)


@pytest.mark.parametrize("field", ["left_arq", "left_ms", None])
def test_a_handle_that_was_left_by_nobody_or_is_nobodys_work_is_seen(
    field: str | None, arq: str
) -> None:
    handle = models.AttachHandle
    with db.writer() as session:
        mine = sa.select(handle).join(models.Arq, models.Arq.attach_handle_id == handle.id)
        row = session.scalars(mine).one()
        db.delete(session, models.Arq)
        leaving.left(session, row)
        work.want(session, work.HOST_STEP, [row.uuid])
    assert consistency.violations() == []
    if field is None:
        with db.writer() as session:
            db.delete(session, models.Work)
    else:
        _change(handle, **{field: None})
    expected = "and its user, its fields or its work do not fit."
    assert any(expected in each.sentence for each in consistency.violations())


def test_what_has_vanished_and_is_free_is_seen(arq: str) -> None:
    _change(models.AttachHandle, missing=True)
    assert consistency.violations() == []
    with db.writer() as session:
        db.delete(session, models.Arq)
    (sentence,) = (each.sentence for each in consistency.violations())
    assert "has vanished from its host, is free" in sentence
    _change(models.Deployable, missing=True)
    with db.writer() as session:
        db.delete(session, models.AttachHandle)
    (sentence,) = (each.sentence for each in consistency.violations())
    assert boots.NAME in sentence


def _want(kind: str, key: str, **values: object) -> None:
    """Want that a long time ago; it is not due yet unless ``values`` says so."""
    with db.writer() as session:
        work.want(session, kind, [key])
        row = models.Work
        values = {"wanted_ms": 0, "due_ms": db.now_ms() + 60_000, **values}
        db.update(session, row, row.kind == kind, row.key == key, **values)


def test_work_about_something_is_no_orphan(arq: str) -> None:
    with db.reader() as session:
        instance = session.scalar(sa.select(models.Arq.consumer_uuid))
        handle = session.scalars(sa.select(models.AttachHandle.uuid)).one()
        deployable = session.scalars(sa.select(models.Deployable.uuid)).one()
    assert instance is not None
    _want(work.BIND, instance)
    _want(work.NOVA_EVENT, instance)
    _want(work.HOST_STEP, handle)
    _want(work.PROGRAM, deployable)
    _want(work.PLACEMENT, "host-1")
    _want(work.FUNCTION_POOL, pools.create_pool(pool_spec()).uuid)
    # These are about the whole cloud, and wait for long without a broker, or a Nova that answers.
    _want(work.INSTANCES, orphans.KEY)
    _want(notifications.KIND, notifications.KEY)
    assert consistency.orphans() == []


def test_a_removed_host_that_is_never_forgotten_is_seen(arq: str) -> None:
    hosts.apply(host="host-2")
    with db.writer() as session:
        db.update(session, models.Host, models.Host.name == "host-2", removed=True)
    assert consistency.violations() == []
    with db.writer() as session:
        db.delete(session, models.Work)
    (sentence,) = (each.sentence for each in consistency.violations())
    assert sentence.startswith("Host host-2 was removed")
    _change(models.Host, removed=True)
    assert len(consistency.violations()) == 2


def test_old_work_about_nothing_and_what_no_conductor_does_is_seen(arq: str) -> None:
    def said_without_work() -> str:
        (found,) = consistency.orphans()
        with db.writer() as session:
            db.delete(session, models.Work)
        return found.sentence

    with db.writer() as session:
        db.delete(session, models.Work)
        work.want(session, work.BIND, ["new"])
    _want(work.BIND, "old")
    _want(work.BIND, "held", owner="somebody", lease_ms=db.now_ms() + 60_000)
    assert said_without_work() == "Work bind/old is about nothing that there is."

    _want(work.PLACEMENT, "host-1", due_ms=db.now_ms() - 300_000)
    told = "No conductor does the work of kind placement: 1 rows wait, for up"
    assert said_without_work().startswith(told)

    with db.writer() as session:
        for occurred in (db.now_ms(), db.now_ms() - 300_000):
            row = {"event_type": "e", "priority": "INFO", "payload": {}, "occurred_ms": occurred}
            session.add(models.Notification(**row))
    assert said_without_work().startswith("No conductor sends notifications, and 1 wait")
    _want(notifications.KIND, notifications.KEY)
    assert consistency.orphans() == []


def test_all_is_read_as_of_one_moment(database: sa.Engine, ctx: context.RequestContext) -> None:
    """What changes between two checks is in none of them, so that it is not seen in part."""
    (arq,) = boots.arqs(ctx)
    done: list[str] = []

    def change(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith("SELECT") and not done:
            done.append(arq)
            values = {"hostname": "a", "device_rp_uuid": arq, "consumer_uuid": arq}
            with db.writer() as session:
                db.update(
                    session, models.Arq, models.Arq.uuid == arq, state=models.BIND_STARTED, **values
                )

    for each in db.engines():
        sa.event.listen(each, "after_cursor_execute", change)
    assert consistency.violations() == []
    assert done
    assert [each.sentence for each in consistency.violations()] == [
        f"ARQ {arq} is BindStarted, and there is no work that would end that."
    ]
