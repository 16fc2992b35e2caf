# SPDX-License-Identifier: Apache-2.0
"""The slow audit: from time to time all providers of a host are read in full.

Nobody reports it to us when others change our providers, so the audit looks for such changes. The
hosts take turns, so that the load on Placement is small. A host that has a withheld provider has
its turn more often: its allocations may be explained or gone by then.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.placement import client, names

LOG = logging.getLogger(__name__)

#: Seconds between two looks at a host that has a withheld provider.
_WITHHELD_INTERVAL = 60


def take_turns(conf: cfg.ConfigOpts) -> None:
    """Have the next hosts audited, each once in ``[conductor] placement_audit_interval``."""
    _turn(conf, _WITHHELD_INTERVAL, _withholds())
    if interval := conf.conductor.placement_audit_interval:
        _turn(conf, interval)


def sweep_names(conf: cfg.ConfigOpts) -> None:
    """Remove from Placement what Cyborg has made there and nothing names any more."""
    if not (paths := names.unnamed()):
        return
    api = client.Client(conf)
    removed: list[str] = []
    try:
        removed.extend(path for path in paths if api.remove_name(path))
    except (client.PlacementError, ka_exc.ClientException) as exc:
        LOG.warning("Traits and resource classes are removed from Placement later: %s", exc)
    if removed:
        names.forget(removed)
        LOG.info("Removed from Placement, as nothing names it: %s", ", ".join(removed))


def _turn(conf: cfg.ConfigOpts, interval: int, *which: sa.ColumnElement[bool]) -> None:
    """Have those of the hosts audited whose turn it is, so that each has one in the interval."""
    has_agent = models.Host.managed_by == models.AGENT
    due = sa.and_(models.Host.audited_ms < db.now_ms() - interval * 1000, has_agent, *which)
    ids = _next(due, conf.conductor.poll_interval / interval)
    if ids:
        _want(ids, due)


def _withholds() -> sa.ColumnElement[bool]:
    row = models.ResourceProvider
    return models.Host.id.in_(sa.select(row.host_id).where(row.withheld.is_not(None)))


@db.retry
def _next(due: sa.ColumnElement[bool], share: float) -> list[int]:
    """The hosts that have been due for longest, up to that share of all hosts."""
    host = models.Host
    query = sa.select(host.id).where(due).order_by(host.audited_ms, host.id)
    with db.reader() as session:
        if session.scalar(query.limit(1)) is None:
            return []
        hosts = session.scalar(sa.select(sa.func.count()).select_from(host)) or 0
        return list(session.scalars(query.limit(1 + int(hosts * share))))


@db.retry
def _want(ids: list[int], due: sa.ColumnElement[bool]) -> None:
    """Have the hosts synced that are still due, and drop what we know of their generations."""
    host, record = models.Host, models.ResourceProvider
    query = sa.select(host.id, host.name).where(host.id.in_(ids), due).order_by(host.id)
    with db.writer() as session:
        turn = dict(list(session.execute(query.with_for_update(skip_locked=True))))
        if turn:
            db.update(session, host, host.id.in_(turn), audited_ms=db.now_ms())
            db.update(session, record, record.host_id.in_(turn), generation=None)
            work.want(session, work.PLACEMENT, turn.values())
