# SPDX-License-Identifier: Apache-2.0
"""The traits and resource classes that Cyborg has made in Placement: recorded, and swept.

What somebody else has made is not recorded, and stays. What a provider has, whoever made it,
Placement does not delete.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from cyborg import db
from cyborg.common.request_groups import TAINT
from cyborg.db import models
from cyborg.drivers import base

#: Seconds from when a name is made until it may be swept, and between two looks at it.
INTERVAL = 3600
#: Names that are looked at in one turn.
BATCH = 50

_ROW = models.MadeName


@db.retry
def note(path: str, host_name: str | None, *, is_made: bool = False) -> None:
    """Record that a name that is not there is about to be made, or was; its ``path`` in Placement.

    So it is swept even if this process is killed before it knows what became of it. ``host_name``
    is the host that has it, if any.
    """
    due: dict[str, Any] = {"due_ms": db.now_ms() + INTERVAL * 1000, "host_name": host_name}
    if is_made:
        due["made"] = True
    new = {"path": path, "created_at": models.utcnow(), "made": False, **due}
    with db.writer() as session:
        db.upsert(session, _ROW, [new], key=["path"], update=due)


@db.retry
def drop(path: str) -> None:
    """Forget a name that somebody else has made at the same time.

    That may be another process of ours, which has recorded that it is made.
    """
    with db.writer() as session:
        db.delete(session, _ROW, _ROW.path == path, _ROW.made.is_(False))


def made_for(host_name: str) -> frozenset[str]:
    """The names that were made for a host and are not swept yet."""
    paths = db.read_all(sa.select(_ROW.path).where(_ROW.host_name == host_name))
    return frozenset(path.rpartition("/")[2] for path in paths)


def unnamed() -> list[str]:
    """Some of the paths that no device and no device profile names; each once in the interval."""
    rows = db.change_due(_ROW, _ROW.due_ms < db.now_ms(), limit=BATCH, change=_postpone)
    return _without_use({row.path for row in rows}) if rows else []


def _postpone(session: sa.orm.Session, rows: list[models.MadeName]) -> None:
    due = db.now_ms() + INTERVAL * 1000
    db.update(session, _ROW, _ROW.id.in_([row.id for row in rows]), due_ms=due)


@db.retry
def _without_use(paths: Collection[str]) -> list[str]:
    attribute, profile = models.Attribute, models.DeviceProfile
    names = {path: path.rpartition("/")[2] for path in paths}
    is_name = sa.or_(
        attribute.key == base.RESOURCE_CLASS_KEY, attribute.key.startswith(base.TRAIT_PREFIX)
    )
    of_devices = sa.select(attribute.value).where(attribute.value.in_(names.values()), is_name)
    groups = sa.type_coerce(profile.groups, sa.Text)
    mentions = (groups.contains(name, autoescape=True) for name in names.values())
    with db.reader() as session:
        # Nova may be about to ask for what has not the trait of tainted devices.
        found = {TAINT, *session.scalars(of_devices.distinct())}
        said = " ".join(session.scalars(sa.select(groups).where(sa.or_(*mentions))))
    return [path for path, name in names.items() if name not in found and name not in said]


@db.retry
def forget(paths: Collection[str]) -> None:
    """The names are gone from Placement."""
    with db.writer() as session:
        db.delete(session, _ROW, _ROW.path.in_(paths))
