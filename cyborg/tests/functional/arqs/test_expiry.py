# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests that nobody ever binds come to an end, and no other ones do."""

from __future__ import annotations

import datetime

import pytest
import sqlalchemy as sa

from cyborg import db
from cyborg.arqs import binding
from cyborg.audits import orphans
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.tests import boots, engine, hosts

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


def let_days_pass(days: int = 2) -> None:
    """Make every ARQ that much older."""
    with db.writer() as session:
        for arq in session.scalars(sa.select(models.Arq)):
            arq.created_at -= datetime.timedelta(days=days)


def test_what_nobody_binds_is_deleted(conf, ctx, caplog) -> None:
    caplog.set_level("INFO", "cyborg.audits.orphans")
    hosts.apply(hosts.card("a"))
    (bound,), (unbound,), old = boots.arqs(ctx), boots.arqs(ctx), boots.arqs(ctx, 2)
    for uuid in (bound, unbound):
        boots.bind(ctx, [uuid], models.new_uuid())
    engine.drain(conf)
    binding.request_changes(ctx, {}, [unbound])
    let_days_pass()
    young = boots.arqs(ctx)
    conf.set_override("arq_expiry", 0, group="conductor")
    orphans.delete_expired(conf)
    assert set(old) <= boots.states(ctx).keys()

    conf.clear_override("arq_expiry", group="conductor")
    for _ in range(2):
        orphans.delete_expired(conf)

    assert boots.states(ctx).keys() == {bound, unbound, *young}
    told = [record.message for record in caplog.records if record.name == orphans.__name__]
    assert told == ["Deleted 2 ARQs that nobody had bound in 86400 s"]


def test_what_is_being_bound_right_now_is_left(conf, ctx) -> None:
    hosts.apply(hosts.card("a"))
    (arq,), (other,) = boots.arqs(ctx), boots.arqs(ctx)
    let_days_pass()
    if conf.database.connection.startswith("sqlite"):
        boots.bind(ctx, [arq], models.new_uuid())
        orphans.delete_expired(conf)
    else:
        # The transaction of a PATCH, as far as it has got.
        with db.writer() as session:
            release.lock_arqs(session, ctx, [arq])
            orphans.delete_expired(conf)
        boots.bind(ctx, [arq], models.new_uuid())
    assert boots.states(ctx) == {arq: models.BOUND}
    with pytest.raises(errors.NotFound):
        boots.bind(ctx, [other], models.new_uuid())
    engine.drain(conf)


def test_one_transaction_deletes_a_bounded_number(conf, ctx) -> None:
    row = {
        "project_id": ctx.project_id,
        "state": models.INITIAL,
        "device_profile_name": "p",
        "group": dict(boots.GROUP),
        "created_at": models.utcnow() - datetime.timedelta(days=2),
    }
    with db.writer() as session:
        session.execute(
            sa.insert(models.Arq), [{**row, "uuid": models.new_uuid()} for _ in range(501)]
        )
    left = []
    for _ in range(2):
        orphans.delete_expired(conf)
        left.append(len(boots.states(ctx)))
    assert left == [1, 0]
