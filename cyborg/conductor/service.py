# SPDX-License-Identifier: Apache-2.0
"""One conductor: worker, RPC server, heartbeat, periodic tasks and sender of notifications."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

from oslo_config import cfg

from cyborg import liveness, notifications, process, rpc, work
from cyborg.allocations import allocation_steps, placement_claims, reclaiming
from cyborg.arqs import binding, nova_events
from cyborg.audits import lost_allocations, orphans
from cyborg.common import errors
from cyborg.conductor import endpoint, periodic_tasks, predecessors, worker
from cyborg.db import models
from cyborg.function_pools import planner
from cyborg.handles import host_steps
from cyborg.notifications import sender
from cyborg.placement import sync
from cyborg.programming import operation_steps

LOG = logging.getLogger(__name__)

#: Seconds that handlers may take to finish when the conductor stops. Together with what the other
#: parts take to stop, it must stay below what cyborg.process allows; otherwise no time is left to
#: give unfinished work back.
STOP_GRACE = 10.0
#: Seconds that what a loop does just now may delay the stop.
_LOOP_GRACE = 2.0


class ConductorService:
    """Runs until :meth:`stop`. Any number of conductors may share one database."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._sender = sender.Sender(conf)
        self._sends = notifications.wanted(conf)
        sending = {notifications.KIND: self._sender.send_all} if self._sends else {}
        self._worker = worker.Worker(
            handlers(conf) | sending,
            name=conf.host,
            threads=conf.thread_pool_size,
            lease_seconds=conf.conductor.work_lease,
            poll_interval=conf.conductor.poll_interval,
        )
        conf.register_mutate_hook(self._reload)
        self._server = rpc.conductor_server(conf, endpoint.ConductorEndpoint(conf, self._kick))
        self._uuid = models.new_uuid()
        self._heartbeat = process.Loop("heartbeat", self._beat)
        run_tasks = functools.partial(periodic_tasks.run_all, conf, liveness.Watch())
        self._periodic_tasks = process.Loop("periodic-tasks", run_tasks)
        self._notifications = process.Loop("notifications", self._look_for_notifications)

    def start(self) -> None:
        """Start every part. The worker starts before the RPC server, as it needs no broker."""
        self._heartbeat.start()
        work.wake_after_commit(self._worker.kick)
        self._worker.start()
        # In threads, since the database or Nova may be slow to answer, or be down.
        threading.Thread(target=self._take_over, name="take-over", daemon=True).start()
        threading.Thread(target=self._check_region, name="check-region", daemon=True).start()
        self._periodic_tasks.start()
        if self._sends:
            notifications.wake_after_commit(self._notifications.wake)
            self._notifications.start()
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

    def _beat(self) -> float:
        """Record a heartbeat, by which operators see that the conductor is up."""
        try:
            liveness.record_heartbeat(self._uuid, self._worker.name, self._conf.host)
        except errors.CyborgError as exc:
            LOG.log(exc.level, "Cannot record a heartbeat: %s", exc)
        return liveness.HEARTBEAT_INTERVAL

    def _end_heartbeat(self) -> None:
        """Remove the record. A conductor that is killed is shown as down, and removed later."""
        self._heartbeat.stop(_LOOP_GRACE)
        try:
            liveness.remove_conductor(self._uuid)
        except errors.CyborgError as exc:
            LOG.log(exc.level, "Cannot remove this conductor's record: %s", exc)

    def _look_for_notifications(self) -> float:
        """Have the worker send the notifications that are recorded."""
        if notifications.look():
            self._worker.kick()
        return float(self._conf.conductor.poll_interval)

    def _kick(self) -> None:
        self._worker.kick()
        self._notifications.wake()

    def _reload(self, conf: cfg.ConfigOpts, _changed: Any) -> None:
        self._worker.poll_interval = conf.conductor.poll_interval
        self._worker.kick()

    def stop(self) -> None:
        """Take no more work; finish what was taken, or give it back."""
        self._server.stop()
        self._periodic_tasks.stop(_LOOP_GRACE)
        if self._sends:
            self._notifications.stop(_LOOP_GRACE)
        self._worker.stop(STOP_GRACE)
        self._sender.close()
        self._end_heartbeat()


def handlers(conf: cfg.ConfigOpts) -> dict[str, worker.Handler]:
    """The handler of each kind of work."""
    return {
        work.BIND: binding.bind_instance,
        work.ALLOCATE: functools.partial(allocation_steps.run, conf),
        work.LATE_CLAIM: functools.partial(placement_claims.look_for_late, conf),
        work.NOVA_EVENT: functools.partial(nova_events.send, conf),
        work.HOST_STEP: functools.partial(host_steps.run, conf),
        work.INSTANCES: functools.partial(orphans.check_instances, conf),
        work.ALLOCATIONS: functools.partial(_check_claims, conf),
        work.PROGRAM: functools.partial(operation_steps.run, conf),
        work.FUNCTION_POOL: functools.partial(planner.fill, conf),
        work.PLACEMENT: functools.partial(_sync_placement, conf),
    }


def _check_claims(conf: cfg.ConfigOpts, item: work.Item) -> None:
    lost_allocations.check_host(conf, item)
    reclaiming.check_host(conf, item)


def _sync_placement(conf: cfg.ConfigOpts, item: work.Item) -> None:
    hold = functools.partial(work.hold, item=item)
    sync.sync_host(conf, item.key, item.checkpoint, hold)
