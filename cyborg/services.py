# SPDX-License-Identifier: Apache-2.0
"""Which conductors and hosts live: their signs of life, and what operators are shown of them.

A conductor signs every few seconds; a host is heard of by its agent's reports. All times are the
database's clock, so that it does not matter whose own clock is wrong.
"""

from __future__ import annotations

import datetime
import logging
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, notifications
from cyborg.db import models, paging
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)

AGENT = "cyborg-agent"
CONDUCTOR = "cyborg-conductor"
UP, DOWN = "up", "down"

#: Seconds between two signs of a conductor, and without one until it counts as down, and until it
#: is forgotten.
SIGN_INTERVAL = 5.0
DOWN_AFTER = 30
FORGOTTEN_AFTER = 3600

#: Hosts that are marked at once.
_BATCH = 200


@db.retry
def sign(uuid: str, name: str, host: str) -> None:
    """Note that a conductor lives, and forget those that have given no sign for long.

    ``name`` is the one it claims work under.
    """
    conductor = models.Conductor
    row = {"uuid": uuid, "name": name, "host": host, "created_at": models.utcnow()}
    seen = {"last_seen_ms": db.now_ms()}
    with db.writer() as session:
        db.upsert(session, conductor, [row | seen], key=["name"], update=seen)
        db.delete(session, conductor, conductor.last_seen_ms < _before(FORGOTTEN_AFTER))


@db.retry
def leave(uuid: str) -> None:
    """Forget a conductor that stops."""
    with db.writer() as session:
        db.delete(session, models.Conductor, models.Conductor.uuid == uuid)


def mark_overdue(conf: cfg.ConfigOpts) -> None:
    """Mark down the hosts without a report for ``[conductor] host_down_time``; all else is kept."""
    seconds = conf.conductor.host_down_time
    host = models.Host
    overdue = (
        host.down.is_(False),
        host.removed.is_(False),
        host.last_seen_ms < _before(seconds),
    )
    ids = _some_hosts(overdue)
    if ids:
        for name in _mark_down((host.id.in_(ids), *overdue)):
            LOG.warning("Host %s is down: it has not reported for %d s", name, seconds)


@db.retry
def _some_hosts(where: tuple[sa.ColumnElement[bool], ...]) -> list[int]:
    host = models.Host
    with db.reader() as session:
        return list(session.scalars(sa.select(host.id).where(*where).limit(_BATCH)))


@db.retry
def _mark_down(where: tuple[sa.ColumnElement[bool], ...]) -> list[str]:
    """Mark those that still meet the conditions when they are locked; their names."""
    host = models.Host
    query = sa.select(host).where(*where).order_by(host.id).with_for_update(skip_locked=True)
    with db.writer() as session:
        hosts = list(session.scalars(query))
        for found in hosts:
            found.down = True
        notifications.announce(
            session, (notices.of_host(notices.HOST_DOWN, found) for found in hosts)
        )
    return [found.name for found in hosts]


def _before(seconds: float) -> sa.ColumnElement[int]:
    return db.now_ms() - round(seconds * 1000)


def _union() -> sa.Subquery:
    """Agents and conductors as rows of one kind. Twice the number of a row, or one more, is its."""
    host, conductor = models.Host, models.Conductor
    agents = sa.select(
        (host.id * 2).label("id"),
        host.uuid,
        sa.literal(AGENT).label("binary"),
        host.name.label("host"),
        host.node.label("hostname"),
        sa.case((host.down, DOWN), else_=UP).label("state"),
        host.last_seen_ms,
        host.driver_errors,
        host.created_at,
    ).where(host.removed.is_(False))
    conductors = sa.select(
        (conductor.id * 2 + 1).label("id"),
        conductor.uuid,
        sa.literal(CONDUCTOR).label("binary"),
        conductor.host,
        sa.null().label("hostname"),
        sa.case((conductor.last_seen_ms < _before(DOWN_AFTER), DOWN), else_=UP).label("state"),
        conductor.last_seen_ms,
        sa.literal("{}", sa.Text).label("driver_errors"),
        conductor.created_at,
    )
    return agents.union_all(conductors).subquery("services")


class Service:
    """An agent or a conductor, as the REST API shows it."""

    uuid: orm.Mapped[str]
    binary: orm.Mapped[str]
    host: orm.Mapped[str]
    #: The name of the host's root provider, as devices show it; None for a conductor.
    hostname: orm.Mapped[str | None]
    state: orm.Mapped[str]
    last_seen_ms: orm.Mapped[int]
    #: Driver name to error sentence.
    driver_errors: orm.Mapped[dict[str, str]]
    created_at: orm.Mapped[datetime.datetime]

    @property
    def last_seen(self) -> datetime.datetime:
        """The same in the form in which times are stored."""
        seen = datetime.datetime.fromtimestamp(self.last_seen_ms / 1000, tz=datetime.UTC)
        return seen.replace(tzinfo=None)


_TABLE = _union()
orm.registry().map_imperatively(Service, _TABLE, primary_key=[_TABLE.c.id])

#: Columns by which a list may be sorted and narrowed; the names are those of the REST API.
COLUMNS: dict[str, Any] = {
    "id": Service.id,  # type: ignore[attr-defined]
    "uuid": Service.uuid,
    "binary": Service.binary,
    "host": Service.host,
    "state": Service.state,
    "last_seen": Service.last_seen_ms,
    "created_at": Service.created_at,
}


def list_services(page: paging.Page = paging.ALL, **wanted: str) -> list[Service]:
    """Agents and conductors; those only that have the values ``wanted``. From one SELECT.

    :raises Invalid: they cannot be sorted by that key, or the marker is none of them
    """
    with db.reader() as session:
        return paging.fetch(session, sa.select(Service), COLUMNS, page, wanted)


def get_service(uuid: str) -> Service:
    """The agent or conductor of that uuid.

    :raises NotFound: there is none
    """
    with db.reader() as session:
        return paging.get(session, sa.select(Service), COLUMNS, "Service", uuid=uuid)
