# SPDX-License-Identifier: Apache-2.0
"""Shortages: why there is no room for an alternative, group by group."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, work
from cyborg.allocations import fitting, plans
from cyborg.common import errors
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models
from cyborg.drivers import base
from cyborg.function_pools import pools
from cyborg.placement import audit, compare
from cyborg.states import availability

_CLOSED = (
    "none of {} is given out: their devices or hosts are disabled, unhealthy, down, drained or "
    "withheld"
)
_WAITING = (
    "none of {} can be given out yet: they run nothing, or wait for a write, a cleaning or a report"
)
_ROOTLESS = "none of {} is in Placement: nova-compute of their nodes has yet to make the root there"
_NOT_TOGETHER = "each group has room by itself, and there is no room for all of them together"
_CLAIMED = (
    "Cyborg's record has room for it and Placement's has none: others have claimed it there and "
    "not bound it yet, no device gives just that amount, or other projects have shares of it"
)
_NOTHING = "it asks for no resources"
_DRIFT = (
    "Placement does not have what Cyborg's record says there is, and is being put right; ask again "
    "in a minute"
)
_PENDING = "its providers are just being changed"
_UNTOLD = "the free accelerators of a named place are told only to those who may look at hosts"
#: Of a refusal that the record contradicts: the parts and hosts that are looked for, the hosts that
#: are compared with Placement, the providers of each that are read, the differences that are told.
_MOST_PARTS, _MOST_HOSTS, _MOST_COMPARED, _MOST_READ, _MOST_TOLD = 5, 20, 3, 4, 3
_HOST, _DEPLOYABLE, _HANDLE = models.Host, models.Deployable, models.AttachHandle
#: Seconds for which a host without a difference is not compared again, and until when those are.
_TRUSTED_FOR, _MOST_TRUSTED = 5.0, 1000
_trusted: dict[str, float] = {}


def explain(
    conf: cfg.ConfigOpts, alternatives: Sequence[plans.Alternative], *, of_hosts: bool
) -> str:
    """The shortage of each alternative in words. One SELECT for each different group.

    Where nothing is short by the database, Placement is compared with it, and put right. Unless it
    may tell ``of_hosts``, it says the same of a host that is asked for whether there is such a host
    or not.
    """
    found = []
    for number, (sentences, hosts) in enumerate(_short_of(alternatives, of_hosts=of_hosts)):
        # What a caller must not be told is put right all the same.
        drift = _drift(conf, hosts, of_hosts=of_hosts) if hosts else None
        said = sentences or [drift or _why_not_together(alternatives[number])]
        named = f"alternative {number}: " if len(alternatives) > 1 else ""
        found.append(f"{named}{'; '.join(said)}")
    return "; ".join(found)


def _why_not_together(parts: plans.Alternative) -> str:
    groups = [RequestGroup.parse(group) for part in parts for group in part.groups]
    if not any(group.resources for group in groups):
        return _NOTHING
    return _CLAIMED if len(groups) == 1 else _NOT_TOGETHER


@db.retry
def _short_of(
    alternatives: Sequence[plans.Alternative], *, of_hosts: bool
) -> list[tuple[list[str], Sequence[str]]]:
    known: dict[Hashable, str | None] = {}
    with db.reader() as session:
        return [_short(session, parts, known, of_hosts=of_hosts) for parts in alternatives]


def _short(
    session: orm.Session,
    parts: plans.Alternative,
    known: dict[Hashable, str | None],
    *,
    of_hosts: bool,
) -> tuple[list[str], Sequence[str]]:
    """A sentence for each group that has no room; hosts with room for a part if each has some."""
    found: list[str] = []
    reasons: list[str | None] = []
    wanted = [(group, part) for part in parts for group in part.groups]
    for number, (group, part) in enumerate(wanted):
        asked, key = RequestGroup.parse(group), (plans.group_key(group), part.hosts, part.provider)
        if key not in known:
            known[key] = _why(session, asked, part) if asked.resources else None
        reasons.append(known[key])
        is_told = of_hosts or (part.hosts is None and part.provider is None)
        why = known[key] if is_told or not asked.resources else _UNTOLD
        if why:
            amounts = ", ".join(f"{amount} {name}" for name, amount in asked.resources.items())
            found.append(f"group {number} asks for {amounts}, and {why}")
    return found, [] if any(reasons) else _hosts_with_room(session, parts)


def _hosts_with_room(session: orm.Session, parts: plans.Alternative) -> Sequence[str]:
    """Hosts with room for all of a part, those first that were looked at the longest ago."""
    different = list({part.key: part for part in parts}.values())[:_MOST_PARTS]
    query = sa.select(_HOST.name).where(sa.or_(*(sa.and_(*has_room(part)) for part in different)))
    return session.scalars(query.order_by(_HOST.audited_ms).limit(_MOST_HOSTS)).all()


def _drift(conf: cfg.ConfigOpts, hosts: Sequence[str], *, of_hosts: bool) -> str | None:
    """The difference of Placement from the database in one of the hosts, being put right then."""
    now = time.monotonic()
    for name in hosts[:_MOST_COMPARED]:
        if _trusted.get(name, 0.0) > now:
            continue
        try:
            found = compare.compare_host(conf, name, _MOST_READ)
        except (errors.ServiceUnavailable, ka_exc.ClientException):
            return None
        if found.differences:
            audit.look_at(_HOST.name.in_(hosts))
        if found.differences or found.in_progress:
            why = " ".join(found.differences[:_MOST_TOLD])
            why = why or db.read_one(sa.select(work.last_error({work.PLACEMENT: name}))) or _PENDING
            return f"{_DRIFT}. Host {name}: {why.rstrip('.')}" if of_hosts else _DRIFT
        if len(_trusted) > _MOST_TRUSTED:
            _trusted.clear()
        _trusted[name] = now + _TRUSTED_FOR
    return None


def _why(session: orm.Session, group: RequestGroup, part: plans.Part) -> str | None:
    steps = dict(_steps(group, part))
    so_far: list[sa.ColumnElement[bool]] = []
    columns = []
    for condition in steps.values():
        so_far.append(condition)
        columns.append(sa.func.count(sa.case((sa.and_(*so_far), 1))))
    free = _free()
    open_free = sa.case((sa.and_(*so_far), free), else_=0)
    query = (
        sa.select(*columns, sa.func.max(open_free), sa.func.sum(open_free))
        .select_from(_DEPLOYABLE)
        .join(_DEPLOYABLE.device)
        .join(models.Device.host)
        # By the classes first, so that not all deployables are read.
        .where(next(iter(steps.values())))
    )
    *counts, most, total = session.execute(query).one()
    before = 0
    for words, count in zip(steps, counts, strict=True):
        if not count:
            return words.format(before)
        before = count
    wanted = max(group.resources.values())
    if (most or 0) < wanted:
        return f"of {before} that fit, the most that is free of one is {most or 0} ({total} in all)"
    return None


def _steps(group: RequestGroup, part: plans.Part) -> Iterator[tuple[str, sa.ColumnElement[bool]]]:
    """The demands on a deployable: a sentence for where none is left, with its condition."""
    is_class = models.Attribute.key == base.RESOURCE_CLASS_KEY
    named = models.Attribute.value.in_(list(group.resources))
    yield "no device offers that", _has(is_class, named)
    if part.hosts is not None:
        yield f"none of {{}} that offer it is on a host like {part.hosts}", is_on(part.hosts)
    if part.provider is not None:
        is_named = _DEPLOYABLE.rp_uuid == part.provider
        yield f"none of {{}} that offer it is {part.provider}", is_named
    for trait, wanted in fitting.wanted_traits(group).items():
        has = _has(
            models.Attribute.key.startswith(base.TRAIT_PREFIX),
            db.exactly(models.Attribute.value) == trait,
        )
        without = "has" if wanted else "is without"
        yield f"none of {{}} {without} trait {trait}", has if wanted else ~has
    yield _CLOSED, availability.usable()
    yield _WAITING, availability.on_offer()
    yield _ROOTLESS, ~audit.has_no_root()
    if not group.tolerates_taint:
        yield "all {} are tainted", ~availability.tainted()


def has_room(part: plans.Part) -> list[sa.ColumnElement[bool]]:
    """The conditions of a host with room for each of a part's groups, if not for all together."""
    asking = {plans.group_key(group): RequestGroup.parse(group) for group in part.groups}
    wanted = [group for group in asking.values() if group.resources]
    return [_HOST.id.in_(_with_room(group, part)) for group in wanted] or [sa.false()]


def _with_room(group: RequestGroup, part: plans.Part) -> sa.Select[int]:
    """The hosts that have a deployable with room for a group."""
    conditions = [condition for _, condition in _steps(group, part)]
    return (
        sa.select(_HOST.id)
        .join(models.Device, models.Device.host_id == _HOST.id)
        .join(models.Device.deployables)
        .where(*conditions, _free() >= max(group.resources.values()))
        .correlate(None)
    )


def is_on(hosts: str) -> sa.ColumnElement[bool]:
    """The host has that name, or fits that pattern."""
    names = (_HOST.name, _HOST.node)
    if "*" not in hosts:
        return sa.or_(*(name == hosts for name in names))
    like = pools.like(hosts)
    return sa.or_(*(sa.func.lower(name).like(like, escape="!") for name in names))


def _has(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    attribute = models.Attribute
    found = sa.exists().where(attribute.deployable_id == _DEPLOYABLE.id, *conditions)
    return found.correlate_except(attribute)


def _free() -> sa.ColumnElement[int]:
    """The accelerators of a deployable that can be given out."""
    kept: sa.ColumnElement[bool] = sa.and_(_HANDLE.is_kept)
    free = _handles(_HANDLE.missing.is_(False), ~kept)
    return availability.free_accelerators(free, _handles(kept))


def _handles(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    query = sa.select(sa.func.count()).where(_HANDLE.deployable_id == _DEPLOYABLE.id, *conditions)
    return query.correlate(_DEPLOYABLE).scalar_subquery()
