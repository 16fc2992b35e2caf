# SPDX-License-Identifier: Apache-2.0
"""What must be true of programs at any moment: each check is one SELECT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import work
from cyborg.db import models
from cyborg.programming import operations, wanted


def violations(session: orm.Session) -> Iterator[str]:
    """A sentence for each deployable, operation or guest that contradicts the rules."""
    yield from _without_work(session)
    yield from _wrong_end(session)
    yield from _wrong_function(session)


def _without_work(session: orm.Session) -> Iterator[str]:
    """Whatever is being programmed has a row of work that will end it.

    What is away while it is in doubt is seen to by the report that shows it again.
    """
    deployable, operation = models.Deployable, models.Operation
    running = operation.active.is_not(None)
    for (uuid,) in session.execute(
        sa.select(operation.uuid).where(running, ~_is_wanted(operation.active.expression))
    ):
        yield f"Operation {uuid} has not ended, and there is no work that would end it."
    for (name,) in session.execute(
        sa.select(deployable.name).where(
            deployable.in_doubt.is_(True),
            deployable.missing.is_(False),
            ~_is_wanted(deployable.uuid.expression),
        )
    ):
        yield f"Deployable {name} is in doubt, and there is no work that would end that."


def _is_wanted(deployable_uuid: sa.ColumnElement[Any]) -> sa.Exists:
    row = models.Work
    return sa.exists().where(row.kind == work.PROGRAM, row.key == deployable_uuid)


def _wrong_end(session: orm.Session) -> Iterator[str]:
    operation = models.Operation
    ended = operation.state.in_({operations.SUCCEEDED, operations.FAILED})
    query = sa.select(operation.uuid, operation.state).where(
        ended != operation.active.is_(None)
    )
    for uuid, state in session.execute(query):
        yield f"Operation {uuid} is {state}, which does not fit whether it has ended."


def _wrong_function(session: orm.Session) -> Iterator[str]:
    """A guest has the function that it asked for, as long as it has the handle.

    What a deployable runs that is not programmed any more is not known here.
    """
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    asks = sa.type_coerce(arq.group, sa.Text).contains('"accel:')
    query = (
        sa.select(arq, deployable)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(deployable, deployable.id == handle.deployable_id)
        .where(
            arq.state == models.BOUND,
            deployable.in_doubt.is_(False),
            deployable.program_mode.is_not(None),
            asks,
        )
    )
    for found, on in session.execute(query):
        what = wanted.of_group(found.group)
        if what and not what.is_run_by(on):
            yield f"ARQ {found.uuid} is Bound to {on.name}, which does not run {what}."
