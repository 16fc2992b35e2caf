# SPDX-License-Identifier: Apache-2.0
"""Overwrites what guests may have left in a programmable deployable, before others get it.

The deployable is written by an operation like any other: with the image of the function pool that
it serves, so that its function stays ready, or else with its blank image. That is the end of all
that its handles had, so it begins when nobody has any of them.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from oslo_utils import uuidutils
from sqlalchemy import orm

from cyborg import db, work
from cyborg.db import models
from cyborg.function_pools import capacity
from cyborg.programming import operations, program, using_arqs

#: Milliseconds after which an operation that waits for others counts as a failure to clean.
_PATIENCE_MS = 60_000

_OPERATION = models.Operation


class Waits(NamedTuple):
    """Why a deployable is not overwritten yet, a sentence."""

    reason: str
    is_failure: bool = False


@db.retry
def why_not_done(item: work.Item, handle_uuid: str, deployable_uuid: str) -> Waits | None:
    """Why what the handle's guest left is not overwritten yet, or None if it is.

    Each call asks for an operation, unless there is one or somebody has a part of the deployable.
    """
    with db.writer() as session:
        deployable = operations.lock(session, deployable_uuid)
        work.hold(session, item)
        handle = models.AttachHandle
        left = sa.select(handle.left_ms).where(handle.uuid == handle_uuid, handle.is_to_overwrite)
        left_ms = session.scalar(left)
        if deployable is None or left_ms is None:
            return None
        waits = _present(session, deployable) or _others(session, deployable)
        return waits or _ask(session, deployable, left_ms)


def _present(session: orm.Session, deployable: models.Deployable) -> Waits | None:
    """What keeps any operation from being asked for."""
    present = operations.active_on(session, deployable.uuid)
    if present is not None:
        late = operations.now(session) - present.asked_ms > _PATIENCE_MS
        reason = f"Operation {present.uuid} on the deployable has not ended: "
        return Waits(reason + (present.error or operations.last_entry(present)), late)
    if deployable.missing:
        return Waits("It is gone from its host, and is overwritten when it is back.", True)
    if deployable.program_mode is None:
        driver = deployable.driver_name
        return Waits(f"It cannot be overwritten: driver {driver} does not program it.", True)
    if not deployable.is_settled:
        return Waits("The program of the deployable is about to change.")
    return None


def _others(session: orm.Session, deployable: models.Deployable) -> Waits | None:
    """Who has a part of the deployable, and so must not be disturbed."""
    reason = using_arqs.why_not_now(session, deployable, program.Program())
    return Waits(f"The deployable is overwritten when nobody has it: {reason}") if reason else None


def _ask(session: orm.Session, deployable: models.Deployable, left_ms: int) -> Waits:
    """Ask for an operation; after one that has failed, for one that writes the blank image."""
    last = _last(session, deployable, left_ms)
    # Not if others were faster to get a part of it.
    passing = {None, operations.CONFLICT, operations.CANCELLED}
    failed = last is not None and last.fault not in passing
    pool = None if failed else capacity.pool_of(session, deployable)
    operations.overwrite(session, deployable, _image(deployable, pool), pool)
    if last is not None and failed:
        return Waits(f"It could not be overwritten: {last.error}", True)
    return Waits("The deployable is being overwritten.")


def _last(
    session: orm.Session, deployable: models.Deployable, left_ms: int
) -> models.Operation | None:
    """The latest operation that was to overwrite what was left then, and did not."""
    query = (
        sa.select(_OPERATION)
        .where(
            _OPERATION.deployable_uuid == deployable.uuid,
            _OPERATION.asked_by == operations.CLEANING,
            _OPERATION.asked_ms >= left_ms,
        )
        .order_by(_OPERATION.id.desc())
        .limit(1)
    )
    return session.scalar(query)


def _image(deployable: models.Deployable, pool: models.FunctionPool | None) -> program.Program:
    """What is written: an image of the pool's function, of which it runs one; or the blank one."""
    if pool is not None:
        image = pool.image_uuid or deployable.bitstream_id
        return program.Program(image_uuid=image, function_id=pool.function_id)
    blank = deployable.blank_image
    if uuidutils.is_uuid_like(blank):
        return program.Program(image_uuid=blank)
    return program.Program(image_name=blank)
