# SPDX-License-Identifier: Apache-2.0
"""One conductor: a worker on the work table, a server for messages, signs of life, duties."""

from __future__ import annotations

import functools
from typing import Any

from oslo_config import cfg

from cyborg import process, rpc, work
from cyborg.arqs import binding, host_steps, instances, nova_events
from cyborg.conductor import announcer, duties, endpoint, life, worker
from cyborg.function_pools import planner
from cyborg.placement import sync
from cyborg.programming import executor

#: Seconds for which handlers may finish when the conductor stops. With the time that everything
#: else here takes to stop it must stay below what cyborg.process grants all of it, or what is left
#: could not be given back.
STOP_GRACE = 10.0


class ConductorService:
    """Runs until :meth:`stop`; any number of them may run against one database."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._announcer = announcer.Announcer(conf)
        self._worker = worker.Worker(
            handlers(conf) | self._announcer.handlers,
            name=conf.host,
            threads=conf.thread_pool_size,
            lease_seconds=conf.conductor.work_lease,
            poll_interval=conf.conductor.poll_interval,
        )
        conf.register_mutate_hook(self._read_again)
        self._server = rpc.conductor_server(conf, endpoint.ConductorEndpoint(self._kick))
        self._life = life.Life(self._worker.name, conf.host)
        self._duties = process.Loop("duties", functools.partial(duties.perform, conf))

    def start(self) -> None:
        """Begin to work. The worker does not wait for a broker: it needs none."""
        self._life.start()
        self._worker.start()
        self._duties.start()
        self._announcer.start(self._worker.kick)
        self._server.start()

    def _kick(self) -> None:
        self._worker.kick()
        self._announcer.wake()

    def _read_again(self, conf: cfg.ConfigOpts, _changed: Any) -> None:
        self._worker.poll_interval = conf.conductor.poll_interval
        self._worker.kick()

    def stop(self) -> None:
        """Take no more work, finish or give back what was taken."""
        self._server.stop()
        self._duties.stop(grace=2.0)
        self._announcer.stop()
        self._worker.stop(STOP_GRACE)
        self._announcer.close()
        self._life.stop()


def handlers(conf: cfg.ConfigOpts) -> dict[str, worker.Handler]:
    """The function that does each kind of work."""
    return {
        work.BIND: binding.bind_instance,
        work.NOVA_EVENT: functools.partial(nova_events.tell_nova, conf),
        work.HOST_STEP: functools.partial(host_steps.run, conf),
        work.INSTANCES: functools.partial(instances.ask_nova, conf),
        work.PROGRAM: functools.partial(executor.run, conf),
        work.FUNCTION_POOL: functools.partial(planner.see_to, conf),
        work.PLACEMENT: lambda claim: sync.sync_host(conf, claim.key, claim.checkpoint),
    }
