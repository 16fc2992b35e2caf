# SPDX-License-Identifier: Apache-2.0
"""The end of accelerator requests that nobody has ever bound."""

from __future__ import annotations

import datetime
import logging

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
    expired = db.change_due(models.Arq, *old, limit=_BATCH, change=release.delete)
    if expired:
        LOG.info("Deleted %d ARQs that nobody had bound in %d s", len(expired), seconds)
