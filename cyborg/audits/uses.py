# SPDX-License-Identifier: Apache-2.0
"""The history and quotas compared with the ARQs, for ``cyborg-status check``.

A backup may be restored in part. Nothing is changed but by :func:`mend`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history
from cyborg.db import models

#: Rows that are mended in one transaction.
_BATCH = 500

_ENTRY, _ARQ, _HANDLE = models.HistoryEntry, models.Arq, models.AttachHandle


class Kind(enum.Enum):
    """What is wrong.

    A use that is over, a handle that is no more kept from others, or a use that is not written.
    """

    OVER = enum.auto()
    UNCLEAN = enum.auto()
    UNWRITTEN = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """An ARQ that usage or quotas count wrongly."""

    kind: Kind
    arq_uuid: str
    handle_uuid: str | None = None
    #: Of an entry that is to be ended: its uuid, and when the use was over at the latest.
    entry_uuid: str | None = None
    ended_ms: int | None = None

    def __str__(self) -> str:
        """A sentence for operators."""
        match self.kind:
            case Kind.OVER:
                return (
                    f"History entry {self.entry_uuid} says that ARQ {self.arq_uuid} has attach "
                    f"handle {self.handle_uuid}, and it has not, or another entry says so too: "
                    "usage counts it."
                )
            case Kind.UNCLEAN:
                return (
                    f"History entry {self.entry_uuid} says that attach handle {self.handle_uuid} "
                    f"is not clean after ARQ {self.arq_uuid}, and nothing of that ARQ is to be "
                    "cleaned in it."
                )
            case Kind.UNWRITTEN:
                return (
                    f"ARQ {self.arq_uuid} is Bound with attach handle {self.handle_uuid}, and the "
                    "history does not say so: usage does not count it."
                )

    @property
    def repair(self) -> str:
        """What :func:`mend` does about it."""
        match self.kind:
            case Kind.OVER:
                return (
                    "The entry is ended as of when the handle was given to another, or as of now "
                    "if it was not: when it was given back is not known."
                )
            case Kind.UNCLEAN:
                return "The entry is ended as of now."
            case Kind.UNWRITTEN:
                return "An entry is written, as of when the bind was asked for."


def find() -> list[Mistake]:
    """Every mistake. Three SELECTs that see the same state."""
    with db.snapshot() as session:
        return [*_over(session), *_unclean(session), *_unwritten(session)]


def mend(found: Iterable[Mistake]) -> None:
    """Put right what :func:`find` has found, unless that has changed meanwhile."""
    by_kind: dict[Kind, list[Mistake]] = {}
    for mistake in found:
        by_kind.setdefault(mistake.kind, []).append(mistake)
    for kind, mistakes in by_kind.items():
        for start in range(0, len(mistakes), _BATCH):
            _MENDS[kind](mistakes[start : start + _BATCH])


def _is_running(entry: Any) -> sa.ColumnElement[bool]:
    return sa.and_(entry.kind == history.USED, entry.ended_ms.is_(None))


def _over(session: orm.Session) -> Iterator[Mistake]:
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
    for entry, arq, handle, ended_ms in session.execute(query):
        yield Mistake(
            kind=Kind.OVER,
            arq_uuid=arq,
            handle_uuid=handle,
            entry_uuid=entry,
            ended_ms=int(ended_ms),
        )


@db.retry
def _end(mistakes: Collection[Mistake]) -> None:
    ends = {each.entry_uuid: each.ended_ms for each in mistakes}
    with db.writer() as session:
        db.update(
            session,
            _ENTRY,
            _ENTRY.uuid.in_(ends),
            _is_running(_ENTRY),
            ended_ms=sa.case(ends, value=_ENTRY.uuid),
        )


def _unclean(session: orm.Session) -> Iterator[Mistake]:
    kept = sa.exists().where(
        _HANDLE.uuid == _ENTRY.handle_uuid,
        _HANDLE.is_left,
        _HANDLE.left_arq == _ENTRY.arq_uuid,
    )
    query = sa.select(_ENTRY.uuid, _ENTRY.arq_uuid, _ENTRY.handle_uuid).where(
        _ENTRY.kind == history.CLEAN_FAILED, _ENTRY.ended_ms.is_(None), ~kept
    )
    for entry, arq, handle in session.execute(query.order_by(_ENTRY.id)):
        yield Mistake(kind=Kind.UNCLEAN, arq_uuid=arq or "", handle_uuid=handle, entry_uuid=entry)


@db.retry
def _end_unclean(mistakes: Collection[Mistake]) -> None:
    with db.writer() as session:
        entries = _ENTRY.uuid.in_([each.entry_uuid for each in mistakes])
        over = {"ended_ms": db.now_ms(), "actor": history.user()}
        db.update(session, _ENTRY, entries, _ENTRY.ended_ms.is_(None), **over)


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


def _unwritten(session: orm.Session) -> Iterator[Mistake]:
    query = _bound_without_entry().with_only_columns(_ARQ.uuid, _HANDLE.uuid)
    for arq, handle in session.execute(query):
        yield Mistake(kind=Kind.UNWRITTEN, arq_uuid=arq, handle_uuid=handle)


@db.retry
def _write(mistakes: Collection[Mistake]) -> None:
    ours = _ARQ.uuid.in_([each.arq_uuid for each in mistakes])
    with db.writer() as session:
        # First, so that nobody releases them, nor writes the same, before this commits.
        session.execute(sa.select(_ARQ.id).where(ours).order_by(_ARQ.id).with_for_update())
        query = _bound_without_entry().where(ours)
        entries: list[Mapping[str, Any]] = [
            {
                "kind": history.USED,
                "project_id": arq.project_id,
                "instance_uuid": arq.instance_uuid,
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


_MENDS = {
    Kind.OVER: _end,
    Kind.UNCLEAN: _end_unclean,
    Kind.UNWRITTEN: _write,
}
