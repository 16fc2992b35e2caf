# SPDX-License-Identifier: Apache-2.0
"""One conductor: worker, RPC server, heartbeat, periodic tasks and notification sender."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

from oslo_config import cfg

from cyborg import liveness, process, rpc, work
from cyborg.allocations import executor as allocations_executor
from cyborg.allocations import late_claims, reclaiming
from cyborg.arqs import binding, nova_events
from cyborg.audits import lost_allocations, orphans
from cyborg.common import errors
from cyborg.conductor import (
    endpoint,
    heartbeat,
    notification_sender,
    periodic_tasks,
    predecessors,
    worker,
)
from cyborg.function_pools import planner
from cyborg.handles import host_steps
from cyborg.placement import sync
from cyborg.programming import executor

LOG = logging.getLogger(__name__)

#: Seconds that handlers may take to finish when the conductor stops. Together with what the other
#: parts take to stop, it must stay below what cyborg.process allows; otherwise no time is left to
#: give unfinished work back.
STOP_GRACE = 10.0


class ConductorService:
    """Runs until :meth:`stop`. Any number of conductors may share one database."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._notifications = notification_sender.NotificationSender(conf)
        self._worker = worker.Worker(
            handlers(conf) | self._notifications.handlers,
            name=conf.host,
            threads=conf.thread_pool_size,
            lease_seconds=conf.conductor.work_lease,
            poll_interval=conf.conductor.poll_interval,
        )
        conf.register_mutate_hook(self._reload)
        self._server = rpc.conductor_server(conf, endpoint.ConductorEndpoint(conf, self._kick))
        self._heartbeat = heartbeat.Heartbeat(self._worker.name, conf.host)
        run_tasks = functools.partial(periodic_tasks.run_all, conf, liveness.Watch())
        self._periodic_tasks = process.Loop("periodic-tasks", run_tasks)

    def start(self) -> None:
        """Start every part. The worker starts before the RPC server, as it needs no broker."""
        self._heartbeat.start()
        work.wake_after_commit(self._worker.kick)
        self._worker.start()
        # In threads, since the database or Nova may be slow to answer, or be down.
        threading.Thread(target=self._take_over, name="take-over", daemon=True).start()
        threading.Thread(target=self._check_region, name="check-region", daemon=True).start()
        self._periodic_tasks.start()
        self._notifications.start(self._worker.kick)
        self._server.start()

    def _take_over(self) -> None:
        try:
            predecessors.take_over(self._conf, self._worker.name)
        except errors.DatabaseUnreachable:
            LOG.debug("Work of a conductor that died waits for the end of its lease")
        except Exception:
            LOG.exception("Work of a conductor that died waits for the end of its lease")
        else:
            self._worker.kick()

    def _check_region(self) -> None:
        try:
            orphans.check_region(self._conf)
        except Exception:
            LOG.exception("Nobody knows yet whether [nova] is the right one")

    def _kick(self) -> None:
        self._worker.kick()
        self._notifications.wake()

    def _reload(self, conf: cfg.ConfigOpts, _changed: Any) -> None:
        self._worker.poll_interval = conf.conductor.poll_interval
        self._worker.kick()

    def stop(self) -> None:
        """Claim no more work; finish what was claimed, or give it back."""
        self._server.stop()
        self._periodic_tasks.stop(grace=2.0)
        self._notifications.stop()
        self._worker.stop(STOP_GRACE)
        self._notifications.close()
        self._heartbeat.stop()


def handlers(conf: cfg.ConfigOpts) -> dict[str, worker.Handler]:
    """The handler of each kind of work."""
    return {
        work.BIND: binding.bind_instance,
        work.ALLOCATE: functools.partial(allocations_executor.run, conf),
        work.LATE_CLAIM: functools.partial(late_claims.look, conf),
        work.NOVA_EVENT: functools.partial(nova_events.send, conf),
        work.HOST_STEP: functools.partial(host_steps.run, conf),
        work.INSTANCES: functools.partial(orphans.check_instances, conf),
        work.ALLOCATIONS: functools.partial(_check_claims, conf),
        work.PROGRAM: functools.partial(executor.run, conf),
        work.FUNCTION_POOL: functools.partial(planner.fill, conf),
        work.PLACEMENT: functools.partial(_sync_placement, conf),
    }


def _check_claims(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    lost_allocations.check_host(conf, claim)
    reclaiming.check_host(conf, claim)


def _sync_placement(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    hold = functools.partial(work.hold, claimed=claim)
    sync.sync_host(conf, claim.key, claim.checkpoint, hold)
