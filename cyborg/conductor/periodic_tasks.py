# SPDX-License-Identifier: Apache-2.0
"""The periodic tasks of every conductor.

A task costs one SELECT if nothing is due. Several conductors may run the same task at the same
time, because each change is locked or guarded. A task that would take long, or needs another
service, writes a row of work instead, which one conductor takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oslo_config import cfg

from cyborg import history, liveness
from cyborg.allocations import service as allocations
from cyborg.audits import lost_allocations, orphans
from cyborg.common import errors
from cyborg.function_pools import planner
from cyborg.inventory import missing
from cyborg.placement import audit
from cyborg.programming import operations

LOG = logging.getLogger(__name__)

#: Beside these, a conductor's watch marks hosts down.
TASKS: tuple[Callable[[cfg.ConfigOpts], None], ...] = (
    orphans.delete_expired,
    audit.take_turns,
    audit.sweep_names,
    orphans.want_check,
    lost_allocations.take_turns,
    allocations.release_expired,
    allocations.forget_failed,
    operations.forget,
    history.forget,
    missing.forget,
    planner.want_due,
)


def run_all(conf: cfg.ConfigOpts, watch: liveness.Watch) -> float:
    """Run each task once; return after how many seconds to run them again."""
    for task in (watch.mark_hosts_down, *TASKS):
        name = f"{task.__module__}.{task.__name__}"
        try:
            task(conf)
        except errors.CyborgError as exc:
            LOG.log(exc.level, "Periodic task %s cannot run now: %s", name, exc)
        except Exception:
            LOG.exception("Periodic task %s failed", name)
    return float(conf.conductor.poll_interval)
