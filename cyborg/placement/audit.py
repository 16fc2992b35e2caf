# SPDX-License-Identifier: Apache-2.0
"""The slow audit: now and then every provider of a host is read in full, whatever its generation.

It finds what others did to our providers and told nobody. The hosts take turns, so that Placement
is asked for little at a time.
"""

from __future__ import annotations

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models


def take_turns(conf: cfg.ConfigOpts) -> None:
    """Want the next hosts to be audited, each once in ``[conductor] placement_audit_interval``."""
    interval = conf.conductor.placement_audit_interval
    if interval:
        due = models.Host.audited_ms < db.now_ms() - interval * 1000
        ids = _next(due, conf.conductor.poll_interval / interval)
        if ids:
            _want(ids, due)


@db.retry
def _next(due: sa.ColumnElement[bool], share: float) -> list[int]:
    """Of the hosts that are due those that have waited longest, up to that share of all hosts."""
    host = models.Host
    query = sa.select(host.id).where(due).order_by(host.audited_ms, host.id)
    with db.reader() as session:
        if session.scalar(query.limit(1)) is None:
            return []
        hosts = session.scalar(sa.select(sa.func.count()).select_from(host)) or 0
        return list(session.scalars(query.limit(1 + int(hosts * share))))


@db.retry
def _want(ids: list[int], due: sa.ColumnElement[bool]) -> None:
    """Want those to be synced that are due still, and forget how their providers were left."""
    host, record = models.Host, models.ResourceProvider
    query = sa.select(host.id, host.name).where(host.id.in_(ids), due).order_by(host.id)
    with db.writer() as session:
        turn = dict(list(session.execute(query.with_for_update(skip_locked=True))))
        if turn:
            db.update(session, host, host.id.in_(turn), audited_ms=db.now_ms())
            db.update(session, record, record.host_id.in_(turn), generation=None)
            work.want(session, work.PLACEMENT, turn.values())
