# SPDX-License-Identifier: Apache-2.0
"""Liveness of conductors and hosts: heartbeats, reports, and the list of services.

A conductor records a heartbeat every few seconds; a host is up as long as its agent reports. All
times are the database's clock, so a wrong clock on one machine does not matter.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, notifications, work
from cyborg.common.reasons import Reason, is_news
from cyborg.db import models, paging
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)

_CONDUCTOR, _HOST, _DEVICE = models.Conductor, models.Host, models.Device

AGENT = "cyborg-agent"
CONDUCTOR = "cyborg-conductor"
#: Among the errors of a host: the last message in its name that was refused. Not under the name of
#: the conductor, whose word on devices that are gone nobody else may replace.
REFUSALS = "refused-messages"
#: Seconds for which it is shown, whatever the host reports meanwhile: the host that was broken into
#: is not to wipe its own traces. And after which its time is written again if it came again.
_SHOWN_FOR = 3600
_AGAIN_AFTER = 60
#: The codes of those that a host can cause at will, or anybody in its name: they replace each
#: other, and not what was :data:`REFUSED` to a host or to one that named what is its own.
FORGED, DROPPED, REFUSED = "forged", "dropped", "refused"
_CHEAP = frozenset({FORGED, DROPPED})
UP, DOWN = "up", "down"

#: Seconds between two heartbeats of a conductor; without one until it counts as down; and until
#: its record is removed.
HEARTBEAT_INTERVAL = 5.0
DOWN_AFTER = 30
FORGET_AFTER = 3600

#: A silence of all hosts, in units of ``host_down_time``: after how long it is taken for one, while
#: no host is overdue by it yet, and after how long all hosts are believed to be down. Otherwise
#: they could never be removed or renamed.
_NOTICED = 0.5
_BELIEVED = 20

#: Hosts that are marked in one transaction.
_BATCH = 200


@db.retry
def record_heartbeat(uuid: str, name: str, host: str) -> None:
    """Record that a conductor is up, and remove those without a heartbeat for too long.

    ``name`` is the one under which it takes work.
    """
    row = {"uuid": uuid, "name": name, "host": host, "created_at": models.utcnow()}
    seen = {"last_seen_ms": db.now_ms()}
    with db.writer() as session:
        db.upsert(session, _CONDUCTOR, [row | seen], key=["name"], update=seen)
        db.delete(session, _CONDUCTOR, _CONDUCTOR.last_seen_ms < _before(FORGET_AFTER))


@db.retry
def remove_conductor(uuid: str) -> None:
    """Remove the record of a conductor that stops."""
    with db.writer() as session:
        db.delete(session, models.Conductor, models.Conductor.uuid == uuid)


class Watch:
    """Marks hosts down by their silence, as one conductor hears it.

    Where the fault is with those who hear, such as the broker, all hosts are silent. So the time in
    which several hosts are up and none is heard counts for none of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When it looked last, and since when it has looked without a break.
        self._looked = self._since = -math.inf
        #: Until when nobody was heard, and for how long then.
        self._heard_none = -math.inf
        self._silence = 0.0

    def mark_hosts_down(self, conf: cfg.ConfigOpts) -> None:
        """Mark the hosts down that are silent while others are heard, or for very long."""
        seconds = conf.conductor.host_down_time
        least, most, up = _silences()
        now = self._clock()
        if now - self._looked > seconds * _NOTICED + conf.conductor.poll_interval:
            # Nobody may have heard the hosts meanwhile, and each has its time to report.
            self._since = now
        self._looked = now
        witnessed = min(least, now - self._since)
        is_silent = up > 1 and least > seconds * _NOTICED
        if is_silent and witnessed < seconds * _BELIEVED:
            self._note_silence(now, least, seconds)
        if now - self._since >= seconds and most > seconds:
            of_all = self._silence if now - self._heard_none < seconds else 0.0
            mark_hosts_down(conf, not_counted=of_all)

    def _note_silence(self, now: float, silence: float, seconds: int) -> None:
        before = self._silence if now - self._heard_none < seconds else 0.0
        if silence > seconds >= before:
            LOG.error(
                "No host has reported for %d s, so none is taken for down: look whether the "
                "message broker, the database and the conductors are well",
                silence,
            )
        self._heard_none, self._silence = now, silence


@db.retry
def _silences() -> tuple[float, float, int]:
    """The seconds for which hosts have not reported, and how many are not marked down.

    The seconds are those of the host that reported last, and of the one of those that are not
    marked that did so first.
    """
    last_of_up = sa.case((_HOST.down.is_(False), _HOST.last_seen_ms))
    query = sa.select(
        db.now_ms() - sa.func.max(_HOST.last_seen_ms),
        db.now_ms() - sa.func.min(last_of_up),
        sa.func.count(last_of_up),
    ).where(_HOST.removed.is_(False), _HOST.managed_by == models.AGENT)
    ((least, most, up),) = db.rows(query)
    return float(least or 0) / 1000, float(most or 0) / 1000, up


def mark_hosts_down(conf: cfg.ConfigOpts, *, not_counted: float = 0.0) -> None:
    """Mark the hosts down that have not reported for ``[conductor] host_down_time``.

    Placement offers nothing of them from then on. So many seconds more are ``not_counted``.
    """
    seconds = conf.conductor.host_down_time
    overdue = (
        _HOST.down.is_(False),
        _HOST.removed.is_(False),
        _HOST.managed_by == models.AGENT,
        _HOST.last_seen_ms < _before(seconds + not_counted),
    )
    for found in db.change_due(_HOST, *overdue, limit=_BATCH, change=_mark_down):
        LOG.warning("Host %s is down: it has not reported for %d s", found.name, seconds)


def _mark_down(session: orm.Session, hosts: list[models.Host]) -> None:
    for host in hosts:
        host.down = True
    work.want(session, work.PLACEMENT, [host.name for host in hosts])
    notifications.announce(session, (notices.of_host(notices.HOST_DOWN, each) for each in hosts))


def note_refusal(host_name: str, why: Reason, *, instead: bool = True) -> bool:
    """Show with a host, for an hour, that a message was refused.

    With ``instead`` it takes the place of another one that is shown. Whether it was written.
    """
    query = sa.select(_HOST, db.now_ms()).where(_HOST.name == host_name)
    # Whoever sends such messages again and again is to hold no lock.
    if not _is_shown_anew(query, why, instead=instead):
        return False
    return _show_refusal(query.with_for_update(), why, instead=instead)


@db.retry
def _is_shown_anew(query: sa.Select[models.Host, int], why: Reason, *, instead: bool) -> bool:
    with db.reader() as session:
        found = session.execute(query).one_or_none()
        return found is not None and _is_news(*found, why, instead=instead)


@db.retry
def _show_refusal(query: sa.Select[models.Host, int], why: Reason, *, instead: bool) -> bool:
    with db.writer() as session:
        found = session.execute(query).one_or_none()
        return found is not None and show_refusal(*found, why, instead=instead)


def show_refusal(host: models.Host, now_ms: int, why: Reason, *, instead: bool = True) -> bool:
    """The same with the locked row of the host, in the caller's transaction."""
    if not _is_news(host, now_ms, why, instead=instead):
        return False
    host.refused, host.refused_code, host.refused_ms = why.whole, why.code, now_ms
    return True


def _is_news(host: models.Host, now_ms: int, why: Reason, *, instead: bool) -> bool:
    """The refusal is to be written."""
    age = math.inf if host.refused_ms is None else (now_ms - host.refused_ms) / 1000
    if age >= _SHOWN_FOR:
        return True
    if why.code in _CHEAP and host.refused_code not in _CHEAP:
        return False
    return instead and (is_news(host.refused, why.whole) or age >= _AGAIN_AFTER)


def _before(seconds: float) -> sa.ColumnElement[int]:
    return db.now_ms() - round(seconds * 1000)


#: The columns of an agent behind those of the errors that conductors do not have.
_OF_AGENTS = ("refused", "refused_ms", "devices", "not_offered", "not_offered_reasons")


def _union() -> sa.Subquery:
    """Agents and conductors as one table; agents have even ids, conductors odd ones."""
    agents = sa.select(
        (_HOST.id * 2).label("id"),
        _HOST.uuid,
        sa.literal(AGENT).label("binary"),
        _HOST.name.label("host"),
        _HOST.node.label("hostname"),
        sa.case((_HOST.down, DOWN), else_=UP).label("state"),
        _HOST.last_seen_ms,
        _HOST.driver_errors,
        sa.case((_HOST.refused_ms > _before(_SHOWN_FOR), _HOST.refused)).label("refused"),
        _HOST.refused_ms,
        _devices_of(_HOST.id).label("devices"),
        _HOST.not_offered,
        _HOST.not_offered_reasons,
        _HOST.created_at,
    ).where(_HOST.removed.is_(False), _HOST.managed_by == models.AGENT)
    conductors = sa.select(
        (_CONDUCTOR.id * 2 + 1).label("id"),
        _CONDUCTOR.uuid,
        sa.literal(CONDUCTOR).label("binary"),
        _CONDUCTOR.host,
        sa.null().label("hostname"),
        sa.case((_CONDUCTOR.last_seen_ms < _before(DOWN_AFTER), DOWN), else_=UP).label("state"),
        _CONDUCTOR.last_seen_ms,
        sa.literal("{}", sa.Text).label("driver_errors"),
        *(sa.null().label(name) for name in _OF_AGENTS),
        _CONDUCTOR.created_at,
    )
    return agents.union_all(conductors).subquery("services")


def _devices_of(host_id: orm.InstrumentedAttribute[int]) -> sa.ScalarSelect[int]:
    query = sa.select(sa.func.count(_DEVICE.id)).where(_DEVICE.host_id == host_id)
    return query.where(_DEVICE.missing.is_(False)).scalar_subquery()


class ServiceState:
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
    #: Why a message was refused, if that is shown, and when one last was.
    refused: orm.Mapped[str | None]
    refused_ms: orm.Mapped[int | None]
    #: How many devices an agent's host has, and accelerators that no driver offers.
    devices: orm.Mapped[int | None]
    not_offered: orm.Mapped[int | None]
    not_offered_reasons: orm.Mapped[list[str] | None]
    created_at: orm.Mapped[datetime.datetime]

    @property
    def last_seen(self) -> datetime.datetime:
        """The same as a naive UTC time."""
        return _utc(self.last_seen_ms).replace(tzinfo=None)

    @property
    def errors(self) -> dict[str, str]:
        """Those of drivers, and the last message that was refused with its time."""
        if self.refused is None or self.refused_ms is None:
            return self.driver_errors
        when = f"{_utc(self.refused_ms):%Y-%m-%dT%H:%M:%SZ}"
        return {**self.driver_errors, REFUSALS: f"{when}: {self.refused}"}


def _utc(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, tz=datetime.UTC)


_TABLE = _union()
orm.registry().map_imperatively(ServiceState, _TABLE, primary_key=[_TABLE.c.id])

#: Columns by which a list may be sorted and filtered, by their names in the REST API.
COLUMNS = paging.columns(
    ServiceState,
    *("id", "uuid", "binary", "host", "state", "last_seen", "created_at"),
    last_seen=ServiceState.last_seen_ms,
)


def list_services(page: paging.Page = paging.ALL, **wanted: str) -> list[ServiceState]:
    """Agents and conductors whose columns have the values ``wanted``, from one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    if page.sort_key == "id":
        # The ids of agents and those of conductors are counted apart.
        page = replace(page, sort_key="created_at")
    with db.reader() as session:
        return paging.fetch(session, sa.select(ServiceState), COLUMNS, page, wanted)


def get_service(uuid: str) -> ServiceState:
    """The agent or conductor of that uuid.

    :raises NotFound: there is no such service
    """
    with db.reader() as session:
        return paging.get(session, sa.select(ServiceState), COLUMNS, "Service", uuid=uuid)
