# SPDX-License-Identifier: Apache-2.0
"""Fit of device profiles: what they ask for is there at all, whatever of it is free now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models
from cyborg.drivers import base
from cyborg.programming import program

#: Names that one number says a deployable has or not.
_BITS = 60
#: A resource class or a trait: the pattern of its keys in attributes, and its name.
_Name = tuple[str, str]
_CLASS, _TRAIT = base.RESOURCE_CLASS_KEY, f"{base.TRAIT_PREFIX}%"
#: What several deployables have of the names that are asked for, and the most accelerators of one.
_Kind = tuple[frozenset[_Name], int]


def wanted_traits(group: RequestGroup) -> dict[str, bool]:
    """The traits, each required or forbidden; those that programming brings are left out."""
    programs = group.names_program
    brought = {name for name in group.required if programs and program.is_function_trait(name)}
    required = dict.fromkeys(group.required - brought, True)
    return {**required, **dict.fromkeys(group.forbidden, False)}


def why_none(
    session: orm.Session, profiles: Sequence[Sequence[Mapping[str, str]]]
) -> list[list[str]]:
    """For each profile, by its groups: a sentence for each that no device fits. One SELECT."""
    asked = [[RequestGroup.parse(group) for group in groups] for groups in profiles]
    every = [group for groups in asked for group in groups]
    names = {(_CLASS, name) for group in every for name in group.resources}
    names |= {(_TRAIT, name) for group in every for name in wanted_traits(group)}
    kinds = _kinds(session, sorted(names)) if names else []
    return [
        [
            f"groups[{number}] fits no device: none {why}."
            for number, group in enumerate(groups)
            if (why := _why_none(group, kinds))
        ]
        for groups in asked
    ]


def of_profiles(session: orm.Session) -> dict[str, list[str]]:
    """The same of all profiles that are enabled, by name. Two SELECTs."""
    row = models.DeviceProfile
    query = sa.select(row.name, row.groups).where(row.enabled.is_(True)).order_by(row.name)
    found = dict(list(session.execute(query)))
    return dict(zip(found, why_none(session, list(found.values())), strict=True))


def _why_none(group: RequestGroup, kinds: Collection[_Kind]) -> str | None:
    traits = wanted_traits(group)
    classes = {(_CLASS, name) for name in group.resources}
    for name, amount in group.resources.items():
        of_class = {has: most for has, most in kinds if (_CLASS, name) in has}
        # Another program may bring another number, and what others use of it may come back.
        needed = 0 if group.names_program else amount
        large = [has for has, most in of_class.items() if most >= needed or not most]
        if not large:
            return f"offers {amount} {name}"
        wrong = {has: _wrong(has, traits) for has in of_class}
        if all(wrong.values()):
            # Those that are wrong of all say most.
            said = sorted(set.intersection(*wrong.values()) or traits)
            words = (f"{'has' if traits[trait] else 'is without'} {trait}" for trait in said)
            return f"that offers {name} {' and '.join(words)}"
        if not any(classes <= has and not wrong[has] for has in large):
            return f"offers {amount} {name} with all else that the group asks for"
    return None


def _wrong(has: frozenset[_Name], traits: Mapping[str, bool]) -> set[str]:
    """The traits that a kind has and should not have, or lacks."""
    return {trait for trait, wanted in traits.items() if ((_TRAIT, trait) in has) != wanted}


def _kinds(session: orm.Session, names: Sequence[_Name]) -> list[_Kind]:
    row, part = models.Attribute, models.Deployable
    parts = [names[at : at + _BITS] for at in range(0, len(names), _BITS)]
    bits = [
        [
            (sa.and_(row.key.like(key), db.exactly(row.value) == name), 1 << number)
            for number, (key, name) in enumerate(of_part)
        ]
        for of_part in parts
    ]
    # Distinct, as a trait may be there twice: of the driver, and of an administrator.
    masks = (sa.func.sum(sa.distinct(sa.case(*cases, else_=0))) for cases in bits)
    each = (
        sa.select(row.deployable_id, *(mask.label(f"mask_{at}") for at, mask in enumerate(masks)))
        .where(row.value.in_([name for _, name in names]))
        .group_by(row.deployable_id)
        .subquery()
    )
    of, *has = each.c
    query = sa.select(sa.func.max(part.num_accelerators), *has).join(part, part.id == of)
    query = query.where(part.missing.is_(False)).group_by(*has)
    return [
        (
            frozenset(
                name
                for of_part, mask in zip(parts, found, strict=True)
                for number, name in enumerate(of_part)
                if int(mask) >> number & 1
            ),
            most,
        )
        for most, *found in session.execute(query)
    ]
