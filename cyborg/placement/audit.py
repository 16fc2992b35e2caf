# SPDX-License-Identifier: Apache-2.0
"""Looks at Placement: nobody reports it to us when others change our providers.

Every minute or so a host is synced, which costs one request if its providers have the generations
that we left, below the root that they had. From time to time they are read in full: a Placement
that was restored may have other content at the same generations. The hosts take turns, so that the
load on Placement is small.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db, nova, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client, names

LOG = logging.getLogger(__name__)

#: Seconds between two looks at a host, and the most looks a second: of more hosts, each has its
#: look later.
_INTERVAL = 60
_MOST_A_SECOND = 10
#: Hosts that are looked at out of turn for one request, unless they were in the last second.
_MOST_AT_ONCE = 20
_AGAIN_AFTER = 1
#: An interval that has always begun since.
_ALWAYS = 0.001
#: Milliseconds between the intervals of two hosts in which each is read in full.
_APART = 618_034


def take_turns(conf: cfg.ConfigOpts) -> None:
    """Have the next hosts looked at; in full once in ``[conductor] placement_audit_interval``."""
    in_full, poll = conf.conductor.placement_audit_interval, conf.conductor.poll_interval
    interval = min(_INTERVAL, in_full or _INTERVAL)
    due = _is_due(interval)
    if ids := _next(due, poll / interval, int(poll * _MOST_A_SECOND)):
        _want(ids, due, in_full)


def sweep_names(conf: cfg.ConfigOpts) -> None:
    """Remove from Placement what Cyborg has made there and nothing names any more."""
    if not (paths := names.unnamed()):
        return
    api = client.Client(conf)
    removed: list[str] = []
    try:
        said = _words_of_flavors(conf)
        unsaid = (path for path in paths if path.rpartition("/")[2] not in said)
        removed.extend(path for path in unsaid if api.remove_name(path))
    except (errors.ServiceUnavailable, ka_exc.ClientException) as exc:
        LOG.warning("Traits and resource classes are removed from Placement later: %s", exc)
    if removed:
        names.forget(removed)
        LOG.info("Removed from Placement, as nothing names it: %s", ", ".join(removed))


def _words_of_flavors(conf: cfg.ConfigOpts) -> str:
    """The words that Nova's flavors ask for, beside their device profiles too."""
    if not clients.configured(conf, "nova"):
        return ""
    specs = (each for _, specs in nova.flavors(conf) for each in specs.items())
    return " ".join(str(word) for each in specs for word in each)


def look_at(*which: sa.ColumnElement[bool]) -> None:
    """Have hosts read in full now that show a difference, however often that is asked for."""
    due = sa.and_(_is_due(_AGAIN_AFTER), *which)
    if ids := _next(due, 1, _MOST_AT_ONCE):
        _want(ids, due, _ALWAYS)


def has_no_root() -> sa.ColumnElement[bool]:
    """The host's providers cannot be in Placement, since the root above them is not."""
    row = models.Work
    failed = (row.kind == work.PLACEMENT, row.error_code == work.NO_ROOT)
    found = sa.exists().where(row.key == models.Host.name, *failed)
    return found.correlate_except(row)


def _is_due(interval: int) -> sa.ColumnElement[bool]:
    """No look at the host was wanted for so many seconds, and none is being taken."""
    host, row = models.Host, models.Work
    old = host.audited_ms < db.now_ms() - interval * 1000
    # Wanted again, work that fails would seem to be new, and would not be found stuck.
    pending = sa.exists().where(row.kind == work.PLACEMENT, row.key == host.name)
    return sa.and_(old, host.managed_by == models.AGENT, ~pending.correlate(host))


@db.retry
def _next(due: sa.ColumnElement[bool], share: float, most: int) -> list[int]:
    """The hosts that have been due for longest, up to that share of all hosts."""
    host = models.Host
    query = sa.select(host.id).where(due).order_by(host.audited_ms, host.id)
    with db.reader() as session:
        if session.scalar(query.limit(1)) is None:
            return []
        hosts = session.scalar(sa.select(sa.func.count()).select_from(host)) or 0
        return list(session.scalars(query.limit(1 + min(int(hosts * share), most))))


@db.retry
def _want(ids: list[int], due: sa.ColumnElement[bool], in_full: float) -> None:
    """Have the hosts synced that are still due.

    Drop what we know of the generations of those for which an interval of ``in_full`` seconds has
    begun since they were looked at last: those of hosts begin one after the other.
    """
    host, record, now = models.Host, models.ResourceProvider, db.now_ms()
    query = sa.select(host.id, host.name, host.audited_ms, now).where(host.id.in_(ids), due)
    with db.writer() as session:
        found = session.execute(query.order_by(host.id).with_for_update(skip_locked=True)).all()
        if not found:
            return
        db.update(session, host, host.id.in_([id_ for id_, *_ in found]), audited_ms=now)
        full = [id_ for id_, _, then, at in found if in_full and _began(id_, then, at, in_full)]
        if full:
            db.update(session, record, record.host_id.in_(full), generation=None)
        work.want(session, work.PLACEMENT, [name for _, name, *_ in found])


def _began(host_id: int, then_ms: int, now_ms: int, seconds: float) -> bool:
    """An interval of the host has begun since then."""
    offset, length_ms = host_id * _APART, int(seconds * 1000)
    return (then_ms + offset) // length_ms < (now_ms + offset) // length_ms
