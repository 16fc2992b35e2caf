# SPDX-License-Identifier: Apache-2.0
"""Ends what nobody asks for any more: expired leases, and old failures."""

from __future__ import annotations

import datetime
import logging

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db
from cyborg.allocations import service
from cyborg.db import models
from cyborg.states import allocation_states as states

LOG = logging.getLogger(__name__)

#: Allocations that are released in one transaction.
_BATCH = 100


def release_expired(_conf: cfg.ConfigOpts) -> None:
    """Release the allocations whose lease has ended."""
    row = models.Allocation
    due = (row.lease_ms < db.now_ms(), row.state.in_(states.LIVE))
    for ended in db.change_due(row, *due, limit=_BATCH, change=_release):
        LOG.warning("The lease of allocation %s has ended; it is released", ended.uuid)


def _release(session: orm.Session, rows: list[models.Allocation]) -> None:
    for row in rows:
        service.release(session, row)


def forget_failed(conf: cfg.ConfigOpts) -> None:
    """Delete the allocations that failed ``[conductor] arq_expiry`` ago."""
    seconds = conf.conductor.arq_expiry
    if not seconds:
        return
    row = models.Allocation
    changed = sa.func.coalesce(row.updated_at, row.created_at)
    before = models.utcnow() - datetime.timedelta(seconds=seconds)
    db.change_due(
        row, row.state == states.FAILED, changed < before, limit=_BATCH, change=_release
    )
