# SPDX-License-Identifier: Apache-2.0
"""What every conductor does again and again unasked.

A duty costs one SELECT where nothing is to be done. Any number of conductors may do the same one at
a time: what it changes is locked or guarded. What takes long or needs another service is wanted as
work instead, which one conductor does, or its successor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oslo_config import cfg

from cyborg import errors, services
from cyborg.arqs import instances, orphans
from cyborg.function_pools import planner
from cyborg.placement import audit
from cyborg.programming import operations

LOG = logging.getLogger(__name__)

DUTIES: tuple[Callable[[cfg.ConfigOpts], None], ...] = (
    services.mark_overdue,
    orphans.expire,
    audit.take_turns,
    instances.look,
    operations.forget,
    planner.look,
)


def perform(conf: cfg.ConfigOpts) -> float:
    """Do each duty once; return after how many seconds to do them again."""
    for duty in DUTIES:
        try:
            duty(conf)
        except errors.CyborgError as exc:
            LOG.warning("Cannot do %s.%s now: %s", duty.__module__, duty.__name__, exc)
        except Exception:
            LOG.exception("A fault in %s.%s", duty.__module__, duty.__name__)
    return float(conf.conductor.poll_interval)
