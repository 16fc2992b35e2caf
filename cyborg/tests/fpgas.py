# SPDX-License-Identifier: Apache-2.0
"""Hosts with FPGAs under function pools, so slow that a test decides when each operation ends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from cyborg import db, work
from cyborg.db import models
from cyborg.function_pools import planner, pools
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.programming import operations, states
from cyborg.tests import boots, engine, hosts
from cyborg.tests.service import Site

AES, ZIP = "aaaa-1", "zzzz-2"
#: The same as AES for whoever reads ids.
AES_OTHERWISE = "AAAA1"
GROUP = {"resources:FPGA": "1", "accel:function_id": AES_OTHERWISE}

#: Cards that run nothing.
SIX = dict.fromkeys("abcdef", "")

_numbers = itertools.count(1)


def pool_spec(**changes: Any) -> pools.PoolSpec:
    """A small pool, but for ``changes``."""
    fields: dict[str, Any] = {
        "name": "p",
        "description": None,
        "function_id": "aes",
        "image_uuid": None,
        "hosts": None,
        "traits": (),
        "free": 1,
        "max_devices": 1,
    }
    return pools.PoolSpec(**(fields | changes))


class Fpgas:
    """The API, the reports of hosts, and a conductor that does what it is told."""

    def __init__(self, site: Site, ctx: context.RequestContext) -> None:
        self.site = site
        self.conf = site.conf
        self.ctx = ctx

    def report(self, cards: Mapping[str, Any], host: str = "host-1", **changes: Any) -> None:
        """Have a host with these cards: what each runs, or all of its deployable's fields.

        A card has two handles, and is ``unhealthy`` where that is among its fields.
        """
        devices = []
        for name, what in cards.items():
            fields: dict[str, Any] = {"function": what} if isinstance(what, str) else dict(what)
            unhealthy = fields.pop("unhealthy", None)
            count = fields.pop("handles", 2)
            first = 8 * (ord(name) % 32)
            one = hosts.deployable(
                f"{host}_{name}",
                range(first, first + count),
                **({"program_mode": "dynamic"} | fields | changes),
            )
            devices.append(hosts.device(name, one, unhealthy=unhealthy))
        hosts.apply(*devices, host=host)

    def pool(self, name: str = "pool", **spec: Any) -> str:
        """Create a pool of two free slots of AES, but for what is given; its uuid."""
        body = {"name": name, "function_id": AES, "free": 2, "max_devices": 10} | spec
        return str(self.site.call("POST", "/function_pools", body, "2.4")["uuid"])

    def shown(self, uuid: str) -> dict[str, Any]:
        """A pool as the API shows it."""
        found: dict[str, Any] = self.site.call("GET", f"/function_pools/{uuid}", version="2.4")
        return found

    def counts(self, uuid: str) -> dict[str, int]:
        """What there is of a pool, where it is not nothing."""
        names = ("misses", "ready", "used", "pending", "surplus", "devices")
        shown = self.shown(uuid)
        return {name: shown[name] for name in names if shown[name]}

    def look(self) -> list[str]:
        """Look at the pools that are to be looked at; the deployables now being programmed."""
        while item := engine.take(f"test#{next(_numbers)}", 60.0, [work.FUNCTION_POOL]):
            planner.fill(self.conf, item)
            work.finish(item)
        return sorted(self._active())

    def look_again(self) -> list[str]:
        """The same when the time has come for every pool."""
        with db.writer() as session:
            row = models.FunctionPool
            db.update(session, row, looked_ms=0, updated_at=row.updated_at)
        planner.want_due(self.conf)
        return self.look()

    def _active(self) -> dict[str, models.Operation]:
        operation = models.Operation
        query = sa.select(models.Deployable.name, operation).join(
            models.Deployable, models.Deployable.uuid == operation.active
        )
        with db.reader() as session:
            return {row[0]: row[1] for row in session.execute(query)}

    def end(self, error: str | None = None) -> list[str]:
        """Let all operations end, well or with that error; what they were for."""
        ended = self._active()
        for name, operation in ended.items():
            with db.writer() as session:
                deployable = operations.lock(session, operation.deployable_uuid)
                assert deployable is not None
                if error is None:
                    operations.move(session, operation, operations.SUCCEEDED, "Written.")
                    record = states.record(
                        bitstream_id=operation.image_uuid or models.new_uuid(),
                        function_id=operation.function_id,
                        programmed_by=operation.asked_by,
                    )
                    states.change(session, deployable, states.ProgramEvent.FOUND_LOADED, **record)
                else:
                    values: dict[str, Any] = {"error": error, "fault": operations.BROKEN}
                    operations.move(session, operation, operations.FAILED, error, **values)
            assert name
        return sorted(ended)

    def settle(self) -> dict[str, str]:
        """Do all that the pools want; the function of each deployable by its name."""
        while self.look_again():
            self.end()
        return self.runs()

    def runs(self) -> dict[str, str]:
        """The function of each deployable that runs one, by its name."""
        with db.reader() as session:
            rows = session.execute(sa.select(models.Deployable.name, models.Deployable.function_id))
            return {name: function for name, function in rows if function}

    def use(self, name: str, count: int = 1) -> list[str]:
        """Have ARQs hold that many handles of a deployable, without a program of their own."""
        handle, deployable = models.AttachHandle, models.Deployable
        taken = sa.exists().where(models.Arq.attach_handle_id == handle.id)
        query = (
            sa.select(handle.id)
            .join(deployable, deployable.id == handle.deployable_id)
            .where(deployable.name == name, ~taken)
            .order_by(handle.id)
            .limit(count)
        )
        instance = models.new_uuid()
        uuids = boots.arqs(self.ctx, count)
        with db.writer() as session:
            for uuid, handle_id in zip(uuids, session.scalars(query).all(), strict=True):
                db.update(
                    session,
                    models.Arq,
                    models.Arq.uuid == uuid,
                    state=models.BOUND,
                    hostname="host-1",
                    device_rp_uuid=provider_uuid(name),
                    consumer_uuid=instance,
                    attach_handle_id=handle_id,
                )
        return uuids

    def disable(self, name: str) -> None:
        """Disable the device of a deployable."""
        query = (
            sa.select(models.Device.uuid)
            .join(models.Deployable, models.Deployable.device_id == models.Device.id)
            .where(models.Deployable.name == name)
        )
        with db.reader() as session:
            uuid = session.scalars(query).one()
        flags.disable_device(uuid)

    def miss(self, **what: str) -> list[str]:
        """Post a miss; the names of the pools that may grow by it."""
        found = self.site.call("POST", "/function_misses", what, "2.4")["function_pools"]
        return [pool["name"] for pool in found]

    def boot(self, **group: str) -> None:
        """Make the ARQs of a profile whose one group is usual but for this."""
        boots.arqs(self.ctx, group=GROUP | group)
