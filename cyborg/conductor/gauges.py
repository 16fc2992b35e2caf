# SPDX-License-Identifier: Apache-2.0
"""Gauges that are read from the database: work, ARQs, attach handles, devices, hosts.

Reading takes twelve SELECTs, at most once in ``[metrics] database_interval`` seconds. Every
conductor shows the same values.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import orm

from cyborg import db, metrics, notifications, work
from cyborg.allocations import fitting
from cyborg.audits import orphans
from cyborg.common import errors
from cyborg.conductor import service
from cyborg.db import models
from cyborg.handles import listing
from cyborg.inventory import report
from cyborg.states import arq_states, availability, handle_states

LOG = logging.getLogger(__name__)

_WORK, _DEVICE = models.Work, models.Device
_HOST, _PROVIDER, _NOTICE = models.Host, models.ResourceProvider, models.Notification

#: Each metric's help text and labels, by its name.
METRICS: Mapping[str, tuple[str, Sequence[str]]] = {
    "cyborg_database_up": ("1 if the database could be read, else 0.", ()),
    "cyborg_work_rows": ("Pieces of work that are not done yet.", ("kind", "state")),
    "cyborg_work_oldest_seconds": ("Seconds since the oldest piece was last requested.", ("kind",)),
    "cyborg_work_attempts": ("Attempts at the piece that was tried most often.", ("kind",)),
    "cyborg_accelerator_requests": ("Accelerator requests (ARQs).", ("state",)),
    "cyborg_instances_held_back": (
        "Instances that are gone from Nova, and keep their accelerators for now all the same.",
        (),
    ),
    "cyborg_attach_handles": ("Attach handles discovered.", ("resource_class", "state")),
    "cyborg_attach_handles_left_seconds": (
        "Seconds since that attach handle was left that is not clean for longest.",
        (),
    ),
    "cyborg_devices": ("Devices discovered.", ("type", "state")),
    "cyborg_hosts": ("Hosts with an agent.", ("state",)),
    "cyborg_resource_providers_withheld": (
        "Resource providers of which nothing is given out, since nobody knows what others have.",
        (),
    ),
    "cyborg_hosts_with_driver_errors": ("Hosts with a driver that fails.", ()),
    "cyborg_device_profiles": (
        "Device profiles that are enabled, by whether there are devices like those they ask for.",
        ("fits",),
    ),
    "cyborg_notifications_waiting": ("Notifications that are not sent yet.", ()),
    "cyborg_notifications_oldest_seconds": ("Seconds since the oldest of them occurred.", ()),
}

#: Resource classes that have a label of their own, and what all others are together.
_CLASSES_MAX = 100
_OTHER = "other"

#: A metric's name, the values of its labels, and its value.
_Sample = tuple[str, Sequence[str], float]


class Gauges(Collector):
    """Reads the database on a scrape, if its last values are older than the interval."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._interval = conf.metrics.database_interval
        self._kinds = sorted({*service.handlers(conf), notifications.KIND})
        self._lock = threading.Lock()
        self._known: list[GaugeMetricFamily] = []
        self._read_at: float | None = None
        metrics.begin_at_zero(metrics.BIND_SECONDS, *metrics.BIND_OUTCOMES)
        metrics.begin_at_zero(metrics.REPORT_SECONDS, report.REFUSED, "failed")

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing, so that registering the collector does not read the database."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Every gauge; only ``cyborg_database_up`` if the database cannot be read."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= self._interval:
                self._known = _families(self._samples())
                self._read_at = time.monotonic()
            return self._known

    def _samples(self) -> list[_Sample]:
        try:
            with db.reader() as session:
                return [
                    ("cyborg_database_up", (), 1),
                    *_work(session, self._kinds),
                    *_arqs(session),
                    *_held_back(session, self._conf),
                    *_handles(session),
                    *_left(session),
                    *_devices(session),
                    *_hosts(session),
                    *_withheld(session),
                    *_profiles(session),
                    *_notifications(session),
                ]
        except errors.DatabaseUnreachable:
            return [("cyborg_database_up", (), 0)]
        except Exception as exc:  # noqa: BLE001 - the process's other metrics are shown anyhow
            LOG.warning("Cannot read metrics from the database: %s", exc)
            return [("cyborg_database_up", (), 0)]


def _families(samples: Iterable[_Sample]) -> list[GaugeMetricFamily]:
    families: dict[str, GaugeMetricFamily] = {}
    for name, labels, value in samples:
        if name not in families:
            text, label_names = METRICS[name]
            families[name] = GaugeMetricFamily(name, text, labels=label_names)
        families[name].add_metric(labels, float(value))
    return list(families.values())


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _by_state(
    session: orm.Session,
    query: sa.Select[Any],
    group: orm.InstrumentedAttribute[str],
    conditions: Mapping[str, sa.ColumnElement[bool]],
) -> Iterator[tuple[Any, str, float]]:
    """For each value of ``group``: how many rows each condition is the first to match."""
    counts, earlier = [], list[tuple[sa.ColumnElement[bool], int]]()
    for condition in conditions.values():
        counts.append(sa.func.sum(sa.case(*earlier, (condition, 1), else_=0)))
        earlier.append((condition, 0))
    for row in session.execute(query.with_only_columns(group, *counts).group_by(group)):
        for state, count in zip(conditions, row[1:], strict=True):
            yield row[0], state, count


def _work(session: orm.Session, kinds: Iterable[str]) -> Iterator[_Sample]:
    now = db.now_ms()
    owned = sa.and_(_WORK.owner.is_not(None), _WORK.lease_ms >= now)
    # Work that waits for guests to leave gets as old as they want.
    is_patient = _WORK.error_code == work.NOT_YET
    query = sa.select(
        _WORK.kind,
        _count_if(owned),
        _count_if(sa.and_(~owned, _WORK.due_ms > now)),
        sa.func.count(),
        now - sa.func.min(sa.case((is_patient, sa.null()), else_=_WORK.wanted_ms)),
        sa.func.max(sa.case((is_patient, 0), else_=_WORK.attempts)),
    ).group_by(_WORK.kind)
    found = {kind: counts for kind, *counts in session.execute(query)}
    for kind in sorted({*kinds, *found}):
        held, later, total, age_ms, attempts = found.get(kind, (0, 0, 0, 0, 0))
        yield "cyborg_work_rows", (kind, "waiting"), total - held - later
        yield "cyborg_work_rows", (kind, "claimed"), held
        yield "cyborg_work_rows", (kind, "backing_off"), later
        yield "cyborg_work_oldest_seconds", (kind,), max(0.0, (age_ms or 0) / 1000)
        yield "cyborg_work_attempts", (kind,), attempts


def _arqs(session: orm.Session) -> Iterator[_Sample]:
    state = models.Arq.state
    query = sa.select(state, sa.func.count()).group_by(state)
    found: dict[str, int] = dict(list(session.execute(query)))
    left = sa.select(sa.func.count(models.AttachHandle.id)).where(handle_states.is_shown())
    found[models.DELETING] = session.scalar(left) or 0
    for name in sorted(arq_states.SHOWN):
        yield "cyborg_accelerator_requests", (name,), found.get(name, 0)


def _held_back(session: orm.Session, conf: cfg.ConfigOpts) -> Iterator[_Sample]:
    yield "cyborg_instances_held_back", (), orphans.count_held_back(session, conf)


def _handles(session: orm.Session) -> Iterator[_Sample]:
    query = listing.joined(models.AttachHandle.id)
    found = list(_by_state(session, query, listing.RESOURCE_CLASS, listing.conditions()))
    totals, shown = collections.Counter[str](), collections.Counter[tuple[str, str]]()
    for name, _, count in found:
        totals[name] += int(count)
    most = {name for name, _ in totals.most_common(_CLASSES_MAX)}
    for name, state, count in found:
        shown[name if name in most else _OTHER, state] += int(count)
    for labels, count in shown.items():
        yield "cyborg_attach_handles", labels, count


def _left(session: orm.Session) -> Iterator[_Sample]:
    handle = models.AttachHandle
    query = sa.select(db.now_ms() - sa.func.min(handle.left_ms)).where(handle.is_left)
    yield "cyborg_attach_handles_left_seconds", (), max(0.0, (session.scalar(query) or 0) / 1000)


def _devices(session: orm.Session) -> Iterator[_Sample]:
    conditions = {
        models.IRONIC: models.Host.managed_by == models.IRONIC,
        "missing": _DEVICE.missing.is_(True),
        "unhealthy": ~availability.healthy(),
        models.MAINTAINING: ~availability.enabled(),
        models.ENABLED: sa.true(),
    }
    query = sa.select(_DEVICE.id).join(models.Host, models.Host.id == _DEVICE.host_id)
    for name, state, count in _by_state(session, query, _DEVICE.type, conditions):
        yield "cyborg_devices", (name, state), count


def _hosts(session: orm.Session) -> Iterator[_Sample]:
    query = sa.select(
        sa.func.count(), _count_if(_HOST.down.is_(True)), _count_if(_HOST.driver_errors != {})
    ).where(_HOST.removed.is_(False), _HOST.managed_by == models.AGENT)
    total, down, failing = session.execute(query).one()
    yield "cyborg_hosts", ("up",), total - (down or 0)
    yield "cyborg_hosts", ("down",), down or 0
    yield "cyborg_hosts_with_driver_errors", (), failing or 0


def _withheld(session: orm.Session) -> Iterator[_Sample]:
    query = sa.select(sa.func.count()).select_from(_PROVIDER).where(_PROVIDER.withheld.is_not(None))
    yield "cyborg_resource_providers_withheld", (), session.scalar(query) or 0


def _profiles(session: orm.Session) -> Iterator[_Sample]:
    misfits = fitting.of_profiles(session).values()
    yield "cyborg_device_profiles", ("yes",), sum(not each for each in misfits)
    yield "cyborg_device_profiles", ("no",), sum(bool(each) for each in misfits)


def _notifications(session: orm.Session) -> Iterator[_Sample]:
    query = sa.select(sa.func.count(), db.now_ms() - sa.func.min(_NOTICE.occurred_ms))
    waiting, age_ms = session.execute(query.select_from(_NOTICE)).one()
    yield "cyborg_notifications_waiting", (), waiting
    yield "cyborg_notifications_oldest_seconds", (), max(0.0, (age_ms or 0) / 1000)
