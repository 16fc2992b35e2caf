# SPDX-License-Identifier: Apache-2.0
"""Function pools as administrators see them: create, get, list, replace and delete."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications, work
from cyborg.common import errors
from cyborg.common.request_groups import REQUIRED, RequestGroup
from cyborg.db import models, paging
from cyborg.function_pools import capacity
from cyborg.notifications import notices
from cyborg.programming import program

LOG = logging.getLogger(__name__)

#: What may read of the reason of a pool who may not see hosts.
FEWER = "Fewer slots are free than wanted."

_MODEL = models.FunctionPool
_OPTIONS = (orm.selectinload(_MODEL.traits),)
_KIND = "Function pool"

#: Columns by which a list may be sorted; the names are those of the REST API.
COLUMNS = paging.columns(
    _MODEL,
    *("id", "uuid", "name", "function_id", "free", "max_devices", "created_at", "updated_at"),
    function_id=_MODEL.function_plain,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """The values of a pool that an administrator sets."""

    name: str
    description: str | None
    function_id: str
    image_uuid: str | None
    hosts: str | None
    traits: Collection[str]
    free: int
    max_devices: int

    @property
    def group(self) -> RequestGroup:
        """A request for what the pool keeps."""
        return RequestGroup(
            resources={},
            traits=dict.fromkeys(self.traits, REQUIRED),
            image_uuid=self.image_uuid,
            function_id=self.function_id,
        )

    def columns(self) -> dict[str, Any]:
        """The columns of the row, without the traits."""
        said = {name: value for name, value in asdict(self).items() if name != "traits"}
        return said | {
            "function_plain": program.plain(self.function_id),
            "hosts_like": None if self.hosts is None else like(self.hosts),
        }


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool and its counts."""

    row: models.FunctionPool
    counts: capacity.Counts

    @property
    def uuid(self) -> str:
        """The uuid of the pool."""
        return self.row.uuid


def like(pattern: str) -> str:
    """The operand of LIKE, with escape ``!``, for a pattern in which ``*`` matches any text."""
    for special in "!%_":
        pattern = pattern.replace(special, f"!{special}")
    return pattern.lower().replace("*", "%")


def list_pools(page: paging.Page = paging.ALL, **narrowed: str) -> list[Pool]:
    """The pools that have the values ``narrowed``. Five SELECTs.

    :raises Invalid: pools cannot be sorted by that key, or the marker is none
    """
    if "function_id" in narrowed:
        narrowed["function_id"] = program.plain(narrowed["function_id"])
    with db.reader() as session:
        rows = paging.fetch(
            session, sa.select(_MODEL), COLUMNS, page, narrowed, options=_OPTIONS
        )
        return _counted(session, rows)


def get_pool(uuid: str) -> Pool:
    """The pool of that uuid.

    :raises NotFound: there is none
    """
    with db.reader() as session:
        return _counted(session, [_get(session, sa.select(_MODEL), uuid)])[0]


def _get(
    session: orm.Session, query: sa.Select[models.FunctionPool], uuid: str
) -> models.FunctionPool:
    return paging.get(session, query, COLUMNS, _KIND, options=_OPTIONS, uuid=uuid)


def _counted(session: orm.Session, rows: list[models.FunctionPool]) -> list[Pool]:
    counts = capacity.count(session, rows)
    return [Pool(row, counts[row.id]) for row in rows]


def create_pool(spec: PoolSpec) -> Pool:
    """Store a pool, which conductors keep filled from now on.

    :raises Conflict: a pool has that name
    """
    uuid = models.new_uuid()
    _create(spec, uuid)
    LOG.info("Created function pool %s (%s)", spec.name, uuid)
    return get_pool(uuid)


@db.retry
def _create(spec: PoolSpec, uuid: str) -> None:
    traits = [models.FunctionPoolTrait(trait=trait) for trait in spec.traits]
    # Another request may be faster; the next attempt refuses the name.
    with db.restarting(), db.writer() as session:
        _refuse_name(session, spec.name, uuid)
        row = _MODEL(uuid=uuid, **spec.columns(), traits=traits)
        session.add(row)
        session.flush()
        notifications.announce(session, [notices.of_pool(notices.POOL_CREATED, row)])
        work.want(session, work.FUNCTION_POOL, [uuid])


def replace_pool(uuid: str, spec: PoolSpec) -> Pool:
    """Replace all fields of a pool. Deployables that are programmed stay as they are.

    :raises NotFound: there is no pool of that uuid
    :raises Conflict: another pool has that name
    """
    _replace(uuid, spec)
    LOG.info("Replaced function pool %s (%s)", spec.name, uuid)
    return get_pool(uuid)


@db.retry
def _replace(uuid: str, spec: PoolSpec) -> None:
    with db.restarting(), db.writer() as session:
        row = _get(session, sa.select(_MODEL).with_for_update(), uuid)
        _refuse_name(session, spec.name, uuid)
        for name, value in spec.columns().items():
            setattr(row, name, value)
        row.reason, row.reason_code, row.updated_at = None, None, models.utcnow()
        kept = {known.trait: known for known in row.traits}
        row.traits = [
            kept.get(trait) or models.FunctionPoolTrait(trait=trait) for trait in spec.traits
        ]
        notifications.announce(session, [notices.of_pool(notices.POOL_UPDATED, row)])
        work.want(session, work.FUNCTION_POOL, [uuid])


@db.retry
def delete_pool(uuid: str) -> None:
    """Delete a pool. Programmed deployables stay as they are, and running operations go on.

    :raises NotFound: there is none
    """
    with db.writer() as session:
        row = _get(session, sa.select(_MODEL).with_for_update(of=_MODEL), uuid)
        notifications.announce(session, [notices.of_pool(notices.POOL_DELETED, row)])
        db.delete(session, _MODEL, _MODEL.id == row.id)
    LOG.info("Deleted function pool %s", uuid)


def _refuse_name(session: orm.Session, name: str, uuid: str) -> None:
    taken = sa.select(_MODEL.id).where(_MODEL.name == name, _MODEL.uuid != uuid)
    if session.scalar(taken) is not None:
        raise errors.Conflict(f"A function pool with name {name} already exists.")
