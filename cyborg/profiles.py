# SPDX-License-Identifier: Apache-2.0
"""Device profiles: what a group of requests may say, and the stored profiles themselves.

A profile touches nothing outside the database, and accelerator requests keep a copy of what they
need of it; so this is plain create, read, update and delete. A private profile exists for the
projects it is shared with and for administrators only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import db, errors
from cyborg.context import RequestContext
from cyborg.db import models, paging

LOG = logging.getLogger(__name__)

PUBLIC = "public"
PRIVATE = "private"

#: How many accelerator requests one profile may yield.
MAX_REQUESTS = 1000
#: With how many projects one profile may be shared.
MAX_PROJECTS = 1000

#: A Xilinx card has two functions, and a guest needs both.
_TWO_HANDLES = "trait:CUSTOM_FPGA_XILINX"

#: Columns by which a list may be sorted; the names are those of the REST API.
COLUMNS: dict[str, Any] = {
    "id": models.DeviceProfile.id,
    "uuid": models.DeviceProfile.uuid,
    "name": models.DeviceProfile.name,
    "visibility": models.DeviceProfile.visibility,
    "created_at": models.DeviceProfile.created_at,
    "updated_at": models.DeviceProfile.updated_at,
}
_KIND = "Device Profile"
_WITH_PROJECTS = (orm.selectinload(models.DeviceProfile.projects),)


class Key(NamedTuple):
    """How a caller names a stored profile."""

    field: Literal["uuid", "name"]
    value: str


def read_groups(groups: Sequence[Mapping[str, str | float]]) -> list[dict[str, str]]:
    """The groups of a profile, blanks trimmed and values as texts.

    Each is as the schema of the API says.

    :raises Invalid: one has a key twice, or they ask for too much in all
    """
    read = [_read_group(index, group) for index, group in enumerate(groups)]
    if _total(read) > MAX_REQUESTS:
        raise errors.Invalid(
            f"groups ask for {_total(read)} accelerators in all; the most is {MAX_REQUESTS}."
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
        read[key] = str(int(text)) if kind == "resources" else text
    return read


def _total(groups: Sequence[Mapping[str, str]]) -> int:
    return sum(_units(group) for group in groups)


def _units(group: Mapping[str, str]) -> int:
    twice = int(group.get("resources:FPGA", 0)) if group.get(_TWO_HANDLES) == "required" else 0
    return count_accelerators(group) + twice


def count_accelerators(group: Mapping[str, str]) -> int:
    """How many accelerators a group asks for, whatever number of requests that is."""
    return sum(int(value) for key, value in group.items() if key.startswith("resources:"))


def count_requests(groups: Sequence[dict[str, str]]) -> list[tuple[int, dict[str, str]]]:
    """The group of each accelerator request that a profile yields, with its index, in order."""
    return [(index, group) for index, group in enumerate(groups) for _ in range(_units(group))]


@db.retry
def create_profile(
    *,
    name: str,
    groups: list[dict[str, str]],
    description: str | None,
    uuid: str | None = None,
    visibility: str = PUBLIC,
    projects: Sequence[str] = (),
) -> models.DeviceProfile:
    """Store a profile whose fields were checked.

    :raises Conflict: there is one of that name or uuid
    """
    profile = models.DeviceProfile(
        uuid=uuid or models.new_uuid(),
        name=name,
        groups=groups,
        description=description,
        visibility=visibility,
        projects=[models.DeviceProfileProject(project_id=project) for project in projects],
    )
    table = models.DeviceProfile
    try:
        with db.writer() as session:
            taken = session.execute(
                sa.select(table.name).where(sa.or_(table.name == name, table.uuid == profile.uuid))
            )
            for (other,) in taken:
                field, value = ("name", name) if other == name else ("uuid", profile.uuid)
                raise errors.Conflict(f"A device_profile with {field} {value} already exists.")
            session.add(profile)
    except db_exc.DBDuplicateEntry as exc:
        # Somebody was faster; the next attempt says by which field.
        raise db.RestartTransaction from exc
    LOG.info("Created device profile %s (%s)", profile.name, profile.uuid)
    return profile


@db.retry
def replace_profile(
    ctx: RequestContext,
    key: Key,
    *,
    name: str,
    groups: list[dict[str, str]],
    description: str | None,
    visibility: str,
    projects: Sequence[str],
) -> models.DeviceProfile:
    """Give a profile other fields, which were checked. ARQs made of it stay as they are.

    :raises NotFound: there is none of that key
    :raises Conflict: there is another of that name
    """
    table = models.DeviceProfile
    try:
        with db.writer() as session:
            profile = _get(session, _visible(ctx).with_for_update(), key)
            taken = sa.select(table.id).where(table.name == name, table.id != profile.id)
            if session.scalar(taken) is not None:
                raise errors.Conflict(f"A device_profile with name {name} already exists.")
            profile.name, profile.groups, profile.description = name, groups, description
            profile.visibility, profile.updated_at = visibility, models.utcnow()
            kept = {shared.project_id: shared for shared in profile.projects}
            profile.projects = [
                kept.get(project) or models.DeviceProfileProject(project_id=project)
                for project in projects
            ]
    except db_exc.DBDuplicateEntry as exc:
        raise db.RestartTransaction from exc
    LOG.info("Replaced device profile %s (%s)", profile.name, profile.uuid)
    return profile


def list_profiles(
    ctx: RequestContext,
    page: paging.Page = paging.ALL,
    *,
    names: Collection[str] | None = None,
    with_projects: bool = False,
    **wanted: str,
) -> list[models.DeviceProfile]:
    """The caller's profiles; those only of ``names``, where given, that have the values ``wanted``.

    From one SELECT; from two with the projects they are shared with.

    :raises Invalid: profiles cannot be sorted by that key, or the marker is no profile
    """
    where = () if names is None else (models.DeviceProfile.name.in_(names),)
    options = _WITH_PROJECTS if with_projects else ()
    with db.reader() as session:
        return paging.fetch(
            session, _visible(ctx), COLUMNS, page, wanted, where=where, options=options
        )


def get_profile(ctx: RequestContext, key: Key) -> models.DeviceProfile:
    """The profile of that uuid or name, with the projects it is shared with.

    :raises NotFound: there is none, or it is private to other projects
    """
    with db.reader() as session:
        return _get(session, _visible(ctx), key)


def _get(
    session: orm.Session, visible: sa.Select[models.DeviceProfile], key: Key
) -> models.DeviceProfile:
    named = {key.field: key.value}
    return paging.get(session, visible, COLUMNS, _KIND, options=_WITH_PROJECTS, **named)


def find_by_name(
    session: orm.Session, ctx: RequestContext, name: str
) -> models.DeviceProfile | None:
    """The profile of that name, or None where there is none that the caller may use."""
    return session.scalar(_visible(ctx).where(models.DeviceProfile.name == name))


@db.retry
def delete_profiles(ctx: RequestContext, keys: Sequence[Key]) -> None:
    """Delete profiles: all of them, or none where one does not exist.

    :raises NotFound: one of them does not exist, or is private to other projects
    """
    with db.writer() as session:
        for key in dict.fromkeys(keys):
            is_named = COLUMNS[key.field] == key.value
            if not db.delete(session, models.DeviceProfile, is_named, *_in_scope(ctx)):
                raise errors.NotFound.of(_KIND, **{key.field: key.value})
    LOG.info("Deleted device profiles %s", ", ".join(key.value for key in keys))


def _visible(ctx: RequestContext) -> sa.Select[models.DeviceProfile]:
    return sa.select(models.DeviceProfile).where(*_in_scope(ctx))


def _in_scope(ctx: RequestContext) -> list[sa.ColumnElement[bool]]:
    """The WHERE clauses that keep a caller to public profiles and those shared with its project."""
    if ctx.project_scope is None:
        return []
    table, sharing = models.DeviceProfile, models.DeviceProfileProject
    # Looked up by its unique index for each private profile, however many share profiles.
    shared = sa.exists().where(
        sharing.profile_id == table.id, sharing.project_id == ctx.project_scope
    )
    return [sa.or_(table.visibility == PUBLIC, shared.correlate(table))]
