# SPDX-License-Identifier: Apache-2.0
"""The history and quotas compared with the ARQs, for ``cyborg-status check``.

A backup may be restored in part. Nothing is changed but by a repair, and what has changed since it
was found is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history
from cyborg.audits.finding import Finding, Repair
from cyborg.db import models

_T = TypeVar("_T")

#: Rows that are mended in one transaction.
_BATCH = 500

_ENTRY, _ARQ, _HANDLE = models.HistoryEntry, models.Arq, models.AttachHandle


def find() -> list[Finding]:
    """Entries that usage or quotas count wrongly. Three SELECTs that see the same state."""
    with db.snapshot() as session:
        return [*_over(session), *_unclean(session), *_unwritten(session)]


def _plan(
    explanation: str, mend: Callable[[Sequence[_T]], None], wrong: Sequence[_T]
) -> Callable[[], Repair]:
    """The repair of all that is wrong in one way."""

    def carry_out() -> str:
        for start in range(0, len(wrong), _BATCH):
            mend(wrong[start : start + _BATCH])
        return "Done."

    return lambda: Repair(explanation, carry_out)


def _findings(
    rows: Iterable[Sequence[Any]], said: str, plan: Callable[[], Repair]
) -> list[Finding]:
    return [Finding("history", said.format(*row), plan) for row in rows]


def _is_running(entry: Any) -> sa.ColumnElement[bool]:
    return sa.and_(entry.kind == history.USED, entry.ended_ms.is_(None))


def _over(session: orm.Session) -> list[Finding]:
    """Uses that are over."""
    earlier, later = orm.aliased(_ENTRY), orm.aliased(_ENTRY)
    holds = sa.exists().where(
        _ARQ.uuid == _ENTRY.arq_uuid,
        _ARQ.state == models.BOUND,
        _ARQ.attach_handle_id == _HANDLE.id,
        _HANDLE.uuid == _ENTRY.handle_uuid,
    )
    twice = sa.exists().where(
        _is_running(earlier),
        earlier.arq_uuid == _ENTRY.arq_uuid,
        earlier.handle_uuid == _ENTRY.handle_uuid,
        earlier.id < _ENTRY.id,
    )
    # By the device, which has an index.
    given_again = sa.select(sa.func.min(later.started_ms)).where(
        later.device_uuid == _ENTRY.device_uuid,
        later.handle_uuid == _ENTRY.handle_uuid,
        later.kind == history.USED,
        later.arq_uuid != _ENTRY.arq_uuid,
        later.started_ms >= _ENTRY.started_ms,
        later.id != _ENTRY.id,
    )
    end = sa.case(
        # The other entry counts all of it.
        (twice, _ENTRY.started_ms),
        else_=sa.func.coalesce(given_again.scalar_subquery(), db.now_ms()),
    )
    query = sa.select(_ENTRY.uuid, _ENTRY.arq_uuid, _ENTRY.handle_uuid, end)
    query = query.where(_is_running(_ENTRY), sa.or_(~holds, twice)).order_by(_ENTRY.id)
    found = session.execute(query).all()
    plan = _plan(
        "The entry is ended as of when the handle was given to another, or as of now if it was "
        "not: when it was given back is not known.",
        _end,
        [(entry, int(ended_ms)) for entry, _, _, ended_ms in found],
    )
    said = "History entry {} says that ARQ {} has attach handle {}, and it has not, or another "
    return _findings(found, f"{said}entry says so too: usage counts it.", plan)


@db.retry
def _end(entries: Sequence[tuple[str, int]]) -> None:
    ended_ms = sa.case(dict(entries), value=_ENTRY.uuid)
    ours = _ENTRY.uuid.in_(dict(entries))
    with db.writer() as session:
        db.update(session, _ENTRY, ours, _is_running(_ENTRY), ended_ms=ended_ms)


def _unclean(session: orm.Session) -> list[Finding]:
    """Handles that are not kept from others any more."""
    kept = sa.exists().where(
        _HANDLE.uuid == _ENTRY.handle_uuid,
        _HANDLE.is_left,
        _HANDLE.left_arq == _ENTRY.arq_uuid,
    )
    arq = sa.func.coalesce(_ENTRY.arq_uuid, "")
    query = sa.select(_ENTRY.uuid, _ENTRY.handle_uuid, arq).where(
        _ENTRY.kind == history.CLEAN_FAILED, _ENTRY.ended_ms.is_(None), ~kept
    )
    found = session.execute(query.order_by(_ENTRY.id)).all()
    plan = _plan("The entry is ended as of now.", _end_unclean, [entry for entry, _, _ in found])
    said = "History entry {} says that attach handle {} is not clean after ARQ {}, and nothing of "
    return _findings(found, f"{said}that ARQ is to be cleaned in it.", plan)


@db.retry
def _end_unclean(entries: Sequence[str]) -> None:
    over = {"ended_ms": db.now_ms(), "actor": history.user()}
    with db.writer() as session:
        db.update(session, _ENTRY, _ENTRY.uuid.in_(entries), _ENTRY.ended_ms.is_(None), **over)


def _bound_without_entry() -> sa.Select[models.Arq, str, str]:
    """The Bound ARQs of whose handles no entry says that they have them."""
    written = sa.exists().where(
        _is_running(_ENTRY),
        _ENTRY.arq_uuid == _ARQ.uuid,
        _ENTRY.handle_uuid == _HANDLE.uuid,
    )
    return (
        sa.select(_ARQ, _HANDLE.uuid, models.Device.uuid)
        .join(_HANDLE, _HANDLE.id == _ARQ.attach_handle_id)
        .join(models.Deployable, models.Deployable.id == _HANDLE.deployable_id)
        .join(models.Device, models.Device.id == models.Deployable.device_id)
        .where(_ARQ.state == models.BOUND, ~written)
        .order_by(_ARQ.id)
    )


def _unwritten(session: orm.Session) -> list[Finding]:
    """Uses that are not written."""
    query = _bound_without_entry().with_only_columns(_ARQ.uuid, _HANDLE.uuid)
    found = session.execute(query).all()
    plan = _plan(
        "An entry is written, as of when the bind was asked for.", _write, [arq for arq, _ in found]
    )
    said = "ARQ {} is Bound with attach handle {}, and the history does not say so: "
    return _findings(found, f"{said}usage does not count it.", plan)


@db.retry
def _write(arqs: Sequence[str]) -> None:
    ours = _ARQ.uuid.in_(arqs)
    with db.writer() as session:
        # First, so that nobody releases them, nor writes the same, before this commits.
        session.execute(sa.select(_ARQ.id).where(ours).order_by(_ARQ.id).with_for_update())
        query = _bound_without_entry().where(ours)
        entries: list[Mapping[str, Any]] = [
            {
                "kind": history.USED,
                "project_id": arq.project_id,
                "consumer_uuid": arq.consumer_uuid,
                "arq_uuid": arq.uuid,
                "hostname": arq.hostname,
                "device_uuid": device,
                "handle_uuid": handle,
                "resource_class": history.class_of_handle(handle),
                "started_ms": arq.bind_started_ms or db.now_ms(),
            }
            for arq, handle, device in session.execute(query)
        ]
        history.write(session, entries)
