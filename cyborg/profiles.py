# SPDX-License-Identifier: Apache-2.0
"""Device profiles: their request groups, and how they are created, listed, changed and deleted.

Nothing outside the database depends on a profile, as accelerator requests keep a copy of their
group. Only administrators, and the projects it is shared with, can see a private profile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import os_traits
import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications
from cyborg.common import errors, request_groups
from cyborg.common.request_groups import FORBIDDEN, TAINT, TOLERATE_TAINT, TRAIT, RequestGroup
from cyborg.db import models, paging
from cyborg.drivers import base
from cyborg.notifications import notices
from cyborg.policy.context import RequestContext

LOG = logging.getLogger(__name__)

PUBLIC = "public"
PRIVATE = "private"

#: Maximum number of accelerator requests from one profile.
MAX_REQUESTS = 1000
#: Maximum number of projects with which a profile is shared.
MAX_PROJECTS = 1000

#: Columns by which a list may be sorted; the names are those of the REST API.
COLUMNS = paging.columns(
    models.DeviceProfile, "id", "uuid", "name", "visibility", "created_at", "updated_at"
)
_FILTERS = {**COLUMNS, "enabled": models.DeviceProfile.enabled}
_KIND = "Device Profile"
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
#: Not what is to be tainted: Placement would refuse to forbid a trait that it does not have yet.
_WITH_TAINTS = orm.with_expression(
    models.DeviceProfile.taints,
    # Not IS TRUE, for which MariaDB would read the whole table.
    sa.select(sa.exists().where(models.ResourceProvider.tainted == sa.true())).scalar_subquery(),
)
_WITH_PROJECTS = (orm.selectinload(models.DeviceProfile.projects),)


class ProfileName(NamedTuple):
    """The uuid or name by which a caller names a profile."""

    field: Literal["uuid", "name"]
    value: str


def read_groups(groups: Sequence[Mapping[str, str | float]]) -> list[dict[str, str]]:
    """The groups of a profile with blanks trimmed and values as strings.

    ``groups`` have passed the schema of the API.

    :raises Invalid: a group has a key twice, or they ask for more than :data:`MAX_REQUESTS`
    """
    read = [_read_group(index, group) for index, group in enumerate(groups)]
    total = sum(RequestGroup.parse(group).arqs for group in read)
    if total > MAX_REQUESTS:
        raise errors.Invalid(
            f"groups ask for {total} accelerators in all; the most is {MAX_REQUESTS}."
        )
    return read


def _read_group(index: int, group: Mapping[str, str | float]) -> dict[str, str]:
    read: dict[str, str] = {}
    for written, value in group.items():
        kind, _, name = written.partition(":")
        key = f"{kind}:{name.strip()}"
        if key in read:
            raise errors.Invalid(f"groups[{index}] has the key {key} more than once.")
        text = value.strip() if isinstance(value, str) else str(int(value))
        read[key] = str(int(text)) if kind == request_groups.RESOURCES else text
    _check_taint(index, read)
    for trait in RequestGroup.parse(read).traits:
        # Placement refuses whoever asks for a trait that it does not know.
        if not os_traits.is_custom(trait) and trait not in _STANDARD_TRAITS:
            raise errors.Invalid(f"groups[{index}]: there is no standard trait {trait}.")
    return read


def _check_taint(index: int, group: dict[str, str]) -> None:
    """Raise Invalid if the group says of taints what it may not; drop what it was shown of them."""
    if group.get(TOLERATE_TAINT, "true").lower() not in {"true", "false"}:
        raise errors.Invalid(f"groups[{index}].{TOLERATE_TAINT} must be true or false.")
    # Clients that replace a profile send back what they were shown.
    if group.pop(f"{TRAIT}:{TAINT}", FORBIDDEN) != FORBIDDEN:
        raise errors.Invalid(
            f"groups[{index}] cannot require {TAINT}; use {TOLERATE_TAINT} to accept what is "
            "tainted, and an attribute of your own to choose a device."
        )


def count_requests(groups: Sequence[dict[str, str]]) -> list[tuple[int, dict[str, str], str]]:
    """The index, the group and the class of each ARQ made from a profile, in order."""
    return [
        (index, group, name)
        for index, group in enumerate(groups)
        for name in RequestGroup.parse(group).classes
    ]


def warnings(groups: Iterable[Mapping[str, str]]) -> list[str]:
    """Sentences that warn users of a profile with those groups."""
    return [
        f"groups[{index}] asks for {base.SHARE_CLASS}: nothing isolates shares of a GPU from each "
        "other. Another one can take all of its time and memory, or stop it."
        for index, group in enumerate(groups)
        if base.SHARE_CLASS in RequestGroup.parse(group).resources
    ]


@db.retry
def create_profile(
    *,
    name: str,
    groups: list[dict[str, str]],
    description: str | None,
    uuid: str | None = None,
    visibility: str = PUBLIC,
    projects: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> models.DeviceProfile:
    """Store a profile whose fields are valid.

    :raises Conflict: a profile of that name or uuid exists
    """
    profile = models.DeviceProfile(
        uuid=uuid or models.new_uuid(),
        name=name,
        groups=groups,
        description=description,
        visibility=visibility,
        enabled=True,
        extra=dict(extra) if extra else None,
        projects=[models.DeviceProfileProject(project_id=project) for project in projects],
    )
    table = models.DeviceProfile
    same = sa.select(table.name).where(sa.or_(table.name == name, table.uuid == profile.uuid))
    # If another request is faster, the next attempt finds the field for the message.
    with db.restarting(), db.writer() as session:
        for other in session.scalars(same):
            field, value = ("name", name) if other == name else ("uuid", profile.uuid)
            raise errors.Conflict(f"A device_profile with {field} {value} already exists.")
        session.add(profile)
        session.flush()
        _announce(session, notices.PROFILE_CREATED, [profile])
    LOG.info("Created device profile %s (%s)", profile.name, profile.uuid)
    return profile


@db.retry
def replace_profile(
    ctx: RequestContext,
    key: ProfileName,
    *,
    name: str,
    groups: list[dict[str, str]],
    description: str | None,
    visibility: str,
    projects: Sequence[str],
    extra: Mapping[str, str] | None = None,
) -> str:
    """Replace the fields of a profile by valid ones; return its uuid. ARQs of it do not change.

    Whether it is enabled stays as it is.

    :raises NotFound: there is no such profile
    :raises Conflict: another profile has that name
    """
    table = models.DeviceProfile
    with db.restarting(), db.writer() as session:
        profile = _get(session, ctx, key, lock=True)
        taken = sa.select(table.id).where(table.name == name, table.id != profile.id)
        if session.scalar(taken) is not None:
            raise errors.Conflict(f"A device_profile with name {name} already exists.")
        profile.name, profile.groups, profile.description = name, groups, description
        profile.visibility, profile.updated_at = visibility, models.utcnow()
        profile.extra = dict(extra) if extra else None
        kept = {shared.project_id: shared for shared in profile.projects}
        profile.projects = [
            kept.get(project) or models.DeviceProfileProject(project_id=project)
            for project in projects
        ]
        _announce(session, notices.PROFILE_UPDATED, [profile])
    LOG.info("Replaced device profile %s (%s)", profile.name, profile.uuid)
    return profile.uuid


def list_profiles(
    ctx: RequestContext,
    page: paging.Page = paging.ALL,
    *,
    names: Collection[str] | None = None,
    with_projects: bool = False,
    with_in_use: bool = False,
    with_taints: bool = False,
    **wanted: str | bool,
) -> list[models.DeviceProfile]:
    """The profiles that the caller sees, have one of ``names`` if given, and the values ``wanted``.

    It takes one SELECT, or two with the projects they are shared with. ``with_in_use`` adds how
    many of the caller's ARQs were made of each, ``with_taints`` whether anything is tainted.

    :raises Invalid: the sort key or the marker is unknown
    """
    where = () if names is None else (models.DeviceProfile.name.in_(names),)
    options = (
        *(_WITH_PROJECTS if with_projects else ()),
        *((_with_in_use(ctx),) if with_in_use else ()),
        *((_WITH_TAINTS,) if with_taints else ()),
    )
    with db.reader() as session:
        return paging.fetch(
            session,
            _visible(ctx),
            COLUMNS,
            page,
            wanted,
            filters=_FILTERS,
            where=where,
            options=options,
        )


def get_profile(ctx: RequestContext, key: ProfileName) -> models.DeviceProfile:
    """The profile of that uuid or name, with the projects it is shared with.

    :raises NotFound: there is no such profile, or it is private to other projects
    """
    with db.reader() as session:
        return _get(session, ctx, key)


def _get(
    session: orm.Session, ctx: RequestContext, key: ProfileName, *, lock: bool = False
) -> models.DeviceProfile:
    named = {key.field: key.value}
    visible = _visible(ctx).with_for_update(of=models.DeviceProfile) if lock else _visible(ctx)
    options = (*_WITH_PROJECTS, _with_in_use(ctx), _WITH_TAINTS)
    return paging.get(session, visible, COLUMNS, _KIND, options=options, **named)


def _with_in_use(ctx: RequestContext) -> Any:
    arq = models.Arq
    mine = () if ctx.project_scope is None else (arq.project_id == ctx.project_scope,)
    made = sa.select(sa.func.count(arq.id)).where(
        arq.device_profile_uuid == models.DeviceProfile.uuid, *mine
    )
    return orm.with_expression(models.DeviceProfile.in_use, made.scalar_subquery())


@db.retry
def enable_profile(ctx: RequestContext, key: ProfileName, *, enabled: bool) -> None:
    """Have ARQs made of a profile, or none any more. It may be so already.

    :raises NotFound: there is no such profile
    """
    with db.writer() as session:
        profile = _get(session, ctx, key, lock=True)
        changed, profile.enabled = profile.enabled != enabled, enabled
        if changed:
            event = notices.PROFILE_ENABLED if enabled else notices.PROFILE_DISABLED
            _announce(session, event, [profile])
    LOG.info("Device profile %s is %s", key.value, "enabled" if enabled else "disabled")


class Usable(NamedTuple):
    """A profile that the caller may use, as far as ARQs are made of it."""

    uuid: str
    name: str
    groups: list[dict[str, str]]
    enabled: bool


_TABLE = models.DeviceProfile.__table__.c
_SHARING = models.DeviceProfileProject.__table__.c
_NAMED = sa.select(*(_TABLE[name] for name in Usable._fields)).where(
    _TABLE.name == sa.bindparam("name")
)
_IS_SHARED = sa.exists().where(
    # One lookup in a unique index per private profile, however many projects share it.
    _SHARING.profile_id == _TABLE.id,
    _SHARING.project_id == sa.bindparam("project"),
)
#: The profile is public, or shared with the project.
_IS_IN_SCOPE = sa.or_(
    _TABLE.visibility == PUBLIC, _IS_SHARED.correlate(models.DeviceProfile.__table__)
)
#: The profile of a name, by whether the caller sees only what is in the scope of its project. Made
#: once, since making them takes longer than running them.
_FIND = {False: _NAMED, True: _NAMED.where(_IS_IN_SCOPE)}


def read_named(ctx: RequestContext, name: str) -> list[dict[str, str]]:
    """The groups of the profile of that name.

    :raises NotFound: the caller may use no profile of that name
    """
    with db.reader() as session:
        return find_by_name(session, ctx, name).groups


def find_by_name(session: orm.Session, ctx: RequestContext, name: str) -> Usable:
    """The profile of that name.

    :raises NotFound: the caller may use no profile of that name
    """
    project = ctx.project_scope
    given = {"name": name} if project is None else {"name": name, "project": project}
    row = session.execute(_FIND[project is not None], given).one_or_none()
    if row is None:
        raise errors.NotFound.of(_KIND, name=name)
    return Usable._make(row)


@db.retry
def delete_profiles(ctx: RequestContext, keys: Sequence[ProfileName]) -> None:
    """Delete all these profiles, or none if one does not exist.

    :raises NotFound: one of them does not exist, or is private to other projects
    """
    with db.writer() as session:
        named = sa.or_(*(COLUMNS[key.field] == key.value for key in keys))
        query = _visible(ctx).where(named).options(*_WITH_PROJECTS)
        query = query.with_for_update(of=models.DeviceProfile)
        found = list(session.scalars(query))
        known = {ProfileName("uuid", row.uuid) for row in found} | {
            ProfileName("name", row.name) for row in found
        }
        for key in keys:
            if key not in known:
                raise errors.NotFound.of(_KIND, **{key.field: key.value})
        _announce(session, notices.PROFILE_DELETED, found)
        ids = [profile.id for profile in found]
        db.delete(session, models.DeviceProfile, models.DeviceProfile.id.in_(ids))
    LOG.info("Deleted device profiles %s", ", ".join(key.value for key in keys))


def refuse_disabled(profile: models.DeviceProfile | Usable) -> None:
    """Raise Conflict if the profile is disabled."""
    if not profile.enabled:
        raise errors.Conflict(
            f"device_profile_name: profile {profile.name} is disabled; choose another one, or "
            "ask an administrator to enable it."
        )


def _announce(
    session: orm.Session, event: notices.NoticeKind, found: Iterable[models.DeviceProfile]
) -> None:
    notifications.announce(session, (notices.of_profile(event, each) for each in found))


def _visible(ctx: RequestContext) -> sa.Select[models.DeviceProfile]:
    query, project = sa.select(models.DeviceProfile), ctx.project_scope
    return query if project is None else query.where(_IS_IN_SCOPE).params(project=project)
