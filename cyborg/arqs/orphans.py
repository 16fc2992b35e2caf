# SPDX-License-Identifier: Apache-2.0
"""The end of accelerator requests that nobody has ever bound."""

from __future__ import annotations

import datetime
import logging

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.arqs import release, states
from cyborg.db import models

LOG = logging.getLogger(__name__)

#: Requests that are deleted in one transaction.
_BATCH = 500


def expire(conf: cfg.ConfigOpts) -> None:
    """Delete the Initial ARQs that are older than ``[conductor] arq_expiry``."""
    seconds = conf.conductor.arq_expiry
    if not seconds:
        return
    old = (
        models.Arq.state == states.INITIAL,
        models.Arq.created_at < models.utcnow() - datetime.timedelta(seconds=seconds),
    )
    ids = _some_ids(old)
    if ids and (expired := _delete((models.Arq.id.in_(ids), *old))):
        LOG.info("Deleted %d ARQs that nobody had bound in %d s", expired, seconds)


@db.retry
def _some_ids(old: tuple[sa.ColumnElement[bool], ...]) -> list[int]:
    arq = models.Arq
    with db.reader() as session:
        return list(session.scalars(sa.select(arq.id).where(*old).order_by(arq.id).limit(_BATCH)))


@db.retry
def _delete(old: tuple[sa.ColumnElement[bool], ...]) -> int:
    """Delete those that still meet the conditions; one that is being bound right now is left."""
    query = sa.select(models.Arq).where(*old).order_by(models.Arq.id)
    with db.writer() as session:
        arqs = list(session.scalars(query.with_for_update(skip_locked=True)))
        release.delete(session, arqs)
    return len(arqs)
