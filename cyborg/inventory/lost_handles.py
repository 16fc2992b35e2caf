# SPDX-License-Identifier: Apache-2.0
"""What becomes of the ARQs whose attach handles a report does not show any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, metrics, notifications, work
from cyborg.db import models
from cyborg.notifications import notices

_VANISHED = "The device vanished from its host while it was being prepared."


def fail_binds(
    session: orm.Session, lost: Iterable[models.AttachHandle], device_uuids: Mapping[int, str]
) -> None:
    """Fail the binds for which a lost handle is being prepared.

    ``device_uuids`` names the device of each deployable by the deployable's id.

    :raises RestartTransaction: one of them has ended meanwhile
    """
    undecided = {
        handle.arq: handle
        for handle in lost
        if handle.arq is not None and handle.arq.state == models.BIND_STARTED
    }
    if not undecided:
        return
    ids = [arq.id for arq in undecided]
    failed = db.update(
        session,
        models.Arq,
        sa.and_(models.Arq.id.in_(ids), models.Arq.state == models.BIND_STARTED),
        state=models.BIND_FAILED,
        state_reason=_VANISHED,
        attach_handle_id=None,
    )
    if failed != len(ids):
        raise db.RestartTransaction
    held = {
        arq: notices.Handle(handle.uuid, handle.attach_type, device_uuids[handle.deployable_id])
        for arq, handle in undecided.items()
    }
    _tell(session, held)
    work.want(session, work.NOVA_EVENT, [arq.instance_uuid for arq in held if arq.instance_uuid])


def _tell(session: orm.Session, held: Mapping[models.Arq, notices.Handle]) -> None:
    event, state = notices.ARQ_BIND_FAILED, models.BIND_FAILED
    notifications.announce(
        session,
        (
            notices.of_arq(event, arq, state, reason=_VANISHED, handle=handle)
            for arq, handle in held.items()
        ),
    )
    now_ms = session.execute(sa.select(db.now_ms())).scalar_one()
    started = [arq.bind_started_ms for arq in held]

    def measure() -> None:
        for started_ms in started:
            metrics.bind_ended(bound=False, started_ms=started_ms, now_ms=now_ms)

    db.after_commit(session, measure)


def pending_steps(lost: Iterable[models.AttachHandle]) -> Iterator[str]:
    """Lost handles, or found ones, with a step pending; its handler sees whether it is due."""
    for handle in lost:
        if handle.arq is not None and handle.arq.state not in models.SERVING:
            yield handle.uuid
