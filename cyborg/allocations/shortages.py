# SPDX-License-Identifier: Apache-2.0
"""Why there is no room for an alternative: what is short of what, group by group."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import availability, db
from cyborg.allocations import plans
from cyborg.db import models
from cyborg.drivers import base
from cyborg.function_pools import pools
from cyborg.programming import program
from cyborg.request_groups import RequestGroup

_CLOSED = (
    "none of {} is given out: their devices or hosts are disabled, unhealthy, down, drained or "
    "withheld"
)
_UNTOLD = "what is free where it must be is told only to those who may look at hosts"
_HOST, _DEPLOYABLE, _HANDLE = models.Host, models.Deployable, models.AttachHandle


@db.retry
def explain(alternatives: Sequence[plans.Alternative], *, of_hosts: bool) -> str:
    """What is short of what for each alternative. One SELECT for each different group.

    Unless it may tell ``of_hosts``, it says the same of a host that is asked for whether there is
    such a host or not.
    """
    known: dict[Hashable, str | None] = {}
    found = []
    with db.reader() as session:
        for number, parts in enumerate(alternatives):
            named = f"alternative {number}: " if len(alternatives) > 1 else ""
            found.append(f"{named}{'; '.join(_short(session, parts, known, of_hosts=of_hosts))}")
    return "; ".join(found)


def _short(
    session: orm.Session,
    parts: plans.Alternative,
    known: dict[Hashable, str | None],
    *,
    of_hosts: bool,
) -> list[str]:
    """A sentence for each group that has no room, or one about all of them."""
    found: list[str] = []
    wanted = [(group, part) for part in parts for group in part.groups]
    for number, (group, part) in enumerate(wanted):
        key = plans.group_key(group), part.hosts, part.provider
        if key not in known:
            known[key] = _sentence(
                session, RequestGroup.parse(group), part, of_hosts=of_hosts
            )
        if why := known[key]:
            found.append(f"group {number} {why}")
    return found or [
        "each group has room by itself, and there is no room for all of them together"
    ]


def _sentence(
    session: orm.Session, group: RequestGroup, part: plans.Part, *, of_hosts: bool
) -> str | None:
    if not group.resources:
        return None
    if of_hosts or (part.hosts is None and part.provider is None):
        why = _why(session, group, part)
    else:
        why = _UNTOLD
    return f"asks for {_amounts(group)}, and {why}" if why else None


def _amounts(group: RequestGroup) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in group.resources.items())


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


def _steps(
    group: RequestGroup, part: plans.Part
) -> Iterator[tuple[str, sa.ColumnElement[bool]]]:
    """What is asked of a deployable: a sentence for where none is left, with its condition."""
    is_class = models.Attribute.key == base.RESOURCE_CLASS_KEY
    named = models.Attribute.value.in_(list(group.resources))
    yield "no device offers that", _has(is_class, named)
    if part.hosts is not None:
        yield f"none of {{}} that offer it is on a host like {part.hosts}", is_on(part.hosts)
    if part.provider is not None:
        is_named = _DEPLOYABLE.rp_uuid == part.provider
        yield f"none of {{}} that offer it is {part.provider}", is_named
    for trait, wanted in _traits(group).items():
        has = _has(
            models.Attribute.key.startswith(base.TRAIT_PREFIX),
            db.exactly(models.Attribute.value) == trait,
        )
        without = "has" if wanted else "is without"
        yield f"none of {{}} {without} trait {trait}", has if wanted else ~has
    yield _CLOSED, availability.usable()
    if not group.tolerates_taint:
        yield "all {} are tainted", ~availability.tainted()


def has_room(part: plans.Part) -> list[sa.ColumnElement[bool]]:
    """What is true of a host with room for each of a part's groups, if not for all together."""
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
    """Whether a host has that name, or fits that pattern."""
    names = (_HOST.name, _HOST.node)
    if "*" not in hosts:
        return sa.or_(*(name == hosts for name in names))
    like = pools.like(hosts)
    return sa.or_(*(sa.func.lower(name).like(like, escape="!") for name in names))


def _traits(group: RequestGroup) -> Mapping[str, bool]:
    """Whether each trait is required; those that programming brings are left out."""
    programs = group.names_program
    required = {
        name: True
        for name in group.required
        if not (programs and program.is_function_trait(name))
    }
    return {**required, **dict.fromkeys(group.forbidden, False)}


def _has(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    attribute = models.Attribute
    found = sa.exists().where(attribute.deployable_id == _DEPLOYABLE.id, *conditions)
    return found.correlate_except(attribute)


def _free() -> sa.ColumnElement[int]:
    """How many accelerators of a deployable can be given out."""
    arq = orm.aliased(models.Arq)
    held = sa.exists().where(arq.attach_handle_id == _HANDLE.id).correlate(_HANDLE)
    return availability.free_accelerators(
        _handles(_HANDLE.missing.is_(False), ~held), _handles(held)
    )


def _handles(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    query = sa.select(sa.func.count()).where(_HANDLE.deployable_id == _DEPLOYABLE.id, *conditions)
    return query.correlate(_DEPLOYABLE).scalar_subquery()
