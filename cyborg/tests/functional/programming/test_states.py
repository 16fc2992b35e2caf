# SPDX-License-Identifier: Apache-2.0
"""Each change of a program's state as it is stored."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.db import models
from cyborg.programming import operation_steps, operations, program, states
from cyborg.programming.states import ProgramEvent
from cyborg.states import availability
from cyborg.tests import boots, engine, hosts
from cyborg.tests.one_operation import deployable

# They put a program in any state, whatever led to it.
pytestmark = [
    pytest.mark.usefixtures("database"),
    pytest.mark.every_database,
    pytest.mark.makes_up_rows,
]

AES = states.record(function_id="a-es", bitstream_id=models.new_uuid())


@pytest.fixture
def row() -> models.Deployable:
    """A card that runs nothing."""
    hosts.apply(hosts.card("a", program_mode="dynamic", function=""))
    return deployable()


def begin_with(row: models.Deployable, **values: Any) -> None:
    with db.writer() as session:
        db.update(session, models.Deployable, models.Deployable.id == row.id, **values)


def locked(session: orm.Session) -> models.Deployable:
    return session.scalars(sa.select(models.Deployable).with_for_update()).one()


def is_settled_in_sql() -> bool:
    with db.reader() as session:
        return bool(session.scalar(sa.select(models.Deployable.is_settled)))


@pytest.mark.parametrize("before", states.STATES)
def test_a_change_is_stored(row: models.Deployable, before: str) -> None:
    for event in (event for state, event in states.TABLE if state == before):
        after = states.TABLE[before, event]
        mode = None if models.UNMANAGED in {before, after} else "dynamic"
        begin_with(row, **AES, program_state=before, program_mode=mode)

        with db.writer() as session:
            states.change(session, locked(session), event, function_shown="")

        found = deployable()
        ends_here = after in models.SETTLED and mode is None
        assert found.program_state == (models.UNMANAGED if ends_here else after)
        settled = after in models.SETTLED
        assert found.is_settled is is_settled_in_sql() is settled
        # Really, nothing is recorded of what was blank before.
        is_blank = availability.is_blank(found.record)
        assert is_blank == (before != models.BLANK and after == models.BLANK)


def test_a_report_leaves_recorded_who_wrote_what_shows_no_function(row: models.Deployable) -> None:
    begin_with(row, program_state=models.WRITING)
    with db.writer() as session:
        states.change(session, locked(session), ProgramEvent.WRITE_FAILED, programmed_by="user 1")
        db.update(session, models.Host, report_digest=None)
    hosts.apply(hosts.card("a", program_mode="dynamic", function=""))
    assert (deployable().programmed_by, deployable().function_shown) == ("user 1", "")


def test_a_change_is_made_again_if_another_one_was_faster(row: models.Deployable) -> None:
    with db.writer() as session:
        seen = locked(session)
        table = models.Deployable
        db.update(session, table, table.id == seen.id, program_state=models.LOST)
        with pytest.raises(db.RestartTransaction):
            states.change(session, seen, ProgramEvent.WITHDRAWN)


def test_the_trait_is_that_of_the_function_that_is_recorded(row: models.Deployable) -> None:
    for function in ("aes", "zip", None):
        event = ProgramEvent.FOUND_LOADED if function else ProgramEvent.FOUND_BLANK
        with db.writer() as session:
            record = states.record(function_id=function)
            states.change(session, locked(session), event, **record)
        traits = [each.value for each in deployable().attributes if each.key == program.TRAIT_KEY]
        expected = [program.function_trait("", function)] if function else []
        assert traits == expected


def test_the_clocks_of_binds_are_not_set_by_who_has_lost_the_work(ctx, row) -> None:
    operations.ask(row.uuid, program.Program(function_id="aes"), "user 1")
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    uuids = boots.arqs(ctx, 1, boots.GROUP | {"accel:function_id": "aes"})
    boots.bind(ctx, uuids, models.new_uuid())
    started = sa.select(models.Arq.bind_started_ms)
    with db.writer() as session:
        db.update(session, models.Arq, bind_started_ms=1)
        db.update(session, models.Work, models.Work.id == item.id, owner="conductor-2")

    with pytest.raises(work.LeaseLost):
        operation_steps.restart_clocks(item)

    with db.reader() as session:
        assert session.scalars(started).all() == [1]
