# SPDX-License-Identifier: Apache-2.0
"""Nova's Bound ARQs compared with Placement's allocations, which it claims and gives back.

Nova deletes a server that is still being built without a request to Cyborg: only the allocation is
gone. An ARQ without one is noted, and Nova is asked for its instance at once; :mod:`.orphans`
releases it if Nova does not have the instance either. Until then its handle is reserved in
Placement, which would offer it otherwise.

Placement is asked once for each provider: its generation, which one request gives for a whole host,
stays the same when an allocation is deleted. So in a large cloud what was bound a while ago, and
whose server is built by now, is looked at less often: a part of it each time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, work
from cyborg.audits import orphans, safeguards
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client
from cyborg.states import arq_states

LOG = logging.getLogger(__name__)

_HOST, _ARQ = models.Host, models.Arq

#: Hosts whose turn it is in one transaction.
_BATCH = 500

#: Milliseconds after the bind in which an ARQ is looked at each time.
_RECENT_MS = 900_000

#: Of those bound before, so many are looked at each time if there are more, so that each has its
#: turn; but never less than one in so many parts.
_EACH_TIME = 600
_PARTS = 20

#: Milliseconds for which each look at an ARQ without allocation has Nova asked. After that Nova is
#: asked in its turn: it has the instance, and whoever bound the ARQ may claim nothing.
_URGENT_MS = 600_000


def take_turns(conf: cfg.ConfigOpts) -> None:
    """Want looks at the next hosts, at each once in ``[conductor] allocation_audit_interval``."""
    interval_ms = conf.conductor.allocation_audit_interval * 1000
    if interval_ms and clients.configured(conf, "placement"):
        due = models.Host.allocations_ms < db.now_ms() - interval_ms
        change = functools.partial(_want, interval_ms, of_instances=_are_instances_asked(conf))
        has_agent = models.Host.managed_by == models.AGENT
        db.change_due(models.Host, due, has_agent, limit=_BATCH, change=change)


def _are_instances_asked(conf: cfg.ConfigOpts) -> bool:
    """Claims of Nova's instances are looked at too."""
    return clients.configured(conf, "nova") and safeguards.instances_claim(conf)


def _want(
    interval_ms: int, session: orm.Session, hosts: list[models.Host], *, of_instances: bool
) -> None:
    now_ms = session.scalar(sa.select(db.now_ms())) or 0
    turn = _HOST.id.in_([each.id for each in hosts])
    db.update(session, _HOST, turn, allocations_ms=db.now_ms())
    query = on_hosts(sa.select(_HOST.name)).where(
        turn,
        models.Arq.state == models.BOUND,
        sa.true() if of_instances else models.Arq.allocation_uuid.is_not(None),
        has_turn(session, now_ms, interval_ms),
    )
    work.want(session, work.ALLOCATIONS, session.scalars(query.distinct()))


def has_turn(session: orm.Session, now_ms: int, interval_ms: int) -> sa.ColumnElement[bool]:
    """The ARQ is looked at now: it is new, it was noted, or its part has its turn.

    A part has its turn for two intervals, since a look may be late.
    """
    number, parts = now_ms // interval_ms, _count_parts(session)
    turns = {number % parts, (number - 1) % parts}
    return sa.or_(
        _ARQ.bind_started_ms > now_ms - _RECENT_MS,
        _ARQ.allocation_missed_ms.is_not(None),
        (_ARQ.id % parts).in_(turns),
    )


def _count_parts(session: orm.Session) -> int:
    bound = sa.select(models.Arq.id).where(models.Arq.state == models.BOUND)
    # Of more, the number of parts is the same.
    some = bound.limit(_EACH_TIME * _PARTS).subquery()
    count = session.scalar(sa.select(sa.func.count()).select_from(some)) or 0
    return max(1, -(-count // _EACH_TIME))


def on_hosts(query: sa.Select[Any]) -> sa.Select[Any]:
    """Join the hosts with the ARQs that hold a handle of theirs."""
    return (
        query.join(models.Device, models.Device.host_id == models.Host.id)
        .join(models.Device.deployables)
        .join(models.Deployable.attach_handles)
        .join(_ARQ, _ARQ.attach_handle_id == models.AttachHandle.id)
    )


class _Bound(NamedTuple):
    """A Bound ARQ, and whether its instance had no allocation for it the last time."""

    id: int
    uuid: str
    provider: str
    instance: str
    #: How many older ones the instance has of the provider.
    older: int
    missed: bool


def check_host(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Note which Bound ARQs of a host have no allocation: the handler of ``allocations/<host>``.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    if not _are_instances_asked(conf):
        return
    found = _read(item, conf.conductor.allocation_audit_interval * 1000)
    held = _held(client.Client(conf), item, {arq.provider for arq in found})
    found = [arq for arq in found if arq.provider in held]
    lacking = {
        arq.id: arq
        for arq in found
        if arq.older >= sum(held[arq.provider].get(arq.instance, {}).values())
    }
    claimed_again = [arq.id for arq in found if arq.missed and arq.id not in lacking]
    if lacking or claimed_again:
        _record(item, lacking, claimed_again)
    for arq in lacking.values():
        if not arq.missed:
            LOG.warning(
                "ARQ %s is Bound, and instance %s has no allocation of provider %s for it: it is "
                "reserved there, and Nova is asked",
                arq.uuid,
                arq.instance,
                arq.provider,
            )


def _held(
    api: client.Client, item: work.Item, providers: Iterable[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """The amounts that each consumer has of the providers that there are.

    Of any other it cannot be told: it is about to be made again, or this is the Placement of
    another region.
    """
    held: dict[str, dict[str, dict[str, int]]] = {}
    for provider in sorted(providers):
        item.checkpoint()
        with contextlib.suppress(client.NoSuchProvider):
            held[provider] = api.allocations(provider)
    return held


def _same(item: work.Item) -> tuple[sa.ColumnElement[bool], ...]:
    """The ARQ is bound since before the claim, so that it is the same when read and when noted."""
    asked_ms = sa.func.coalesce(_ARQ.bind_started_ms, 0)
    return _ARQ.state == models.BOUND, asked_ms < item.taken_ms


@db.retry
def _read(item: work.Item, interval_ms: int) -> Sequence[_Bound]:
    other = orm.aliased(models.Arq)
    missed = _ARQ.allocation_missed_ms.is_not(None)
    same = (other.consumer_uuid == _ARQ.consumer_uuid, other.device_rp_uuid == _ARQ.device_rp_uuid)
    of_same = sa.select(sa.func.count(other.id)).where(
        *same, other.state == models.BOUND, other.id < _ARQ.id
    )
    older = of_same.correlate(_ARQ).scalar_subquery()
    columns = (_ARQ.id, _ARQ.uuid, _ARQ.device_rp_uuid, _ARQ.consumer_uuid, older, missed)
    query = on_hosts(sa.select(*columns).select_from(models.Host)).where(
        models.Host.name == item.key, _ARQ.allocation_uuid.is_(None), *_same(item)
    )
    with db.reader() as session:
        query = query.where(has_turn(session, item.taken_ms, interval_ms))
        return [_Bound(*row) for row in session.execute(query)]


@db.retry
def _record(item: work.Item, lacking: Collection[int], claimed_again: Collection[int]) -> None:
    since = sa.func.coalesce(_ARQ.allocation_missed_ms, db.now_ms())
    asked = sa.case((since > db.now_ms() - _URGENT_MS, 0), else_=_ARQ.instance_asked_ms)
    with work.holding(item) as session:
        again = _ARQ.id.in_(claimed_again)
        arq_states.note(session, again, allocation_missed_ms=None)
        noted = {"allocation_missed_ms": since, "instance_asked_ms": asked}
        if arq_states.note(session, _ARQ.id.in_(lacking), *_same(item), **noted):
            work.want(session, work.INSTANCES, [orphans.KEY])
        # What is noted is reserved.
        work.want(session, work.PLACEMENT, [item.key])
