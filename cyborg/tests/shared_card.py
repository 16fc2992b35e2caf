# SPDX-License-Identifier: Apache-2.0
"""A host with a card that is whole, in shares or in slices, and projects that ask for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc
from cyborg.allocations import service, wishes
from cyborg.db import models
from cyborg.drivers import base
from cyborg.policy.enforcer import Enforcer
from cyborg.states import allocation_states as states
from cyborg.tests import callers, engine, hosts
from cyborg.tests.placement_server import PlacementServer

GROUP = {"resources:CUSTOM_GPU_SHARE": "1"}
WHOLE = {"bus": "0c", "device": "00", "domain": "0000", "function": "0"}


def share(number: int) -> base.AttachHandle:
    info = {**WHOLE, base.SHARE_KEY: str(number)}
    return base.AttachHandle(attach_type=base.NODES, attach_info=info)


class SharedCard:
    """A host with a card that has three shares, and projects that ask for some."""

    def __init__(
        self, conf: cfg.ConfigOpts, enforcer: Enforcer, placement: PlacementServer
    ) -> None:
        self.conf, self.enforcer, self.placement = conf, enforcer, placement
        #: The steps of the host, and whether it ends any.
        self.steps: list[rpc.HostStep] = []
        self.is_stuck = False

    def report(self, shared: str | None = base.OF_ONE_PROJECT, *, count: int = 3) -> None:
        handles = tuple(share(number) for number in range(count))
        whole = base.AttachHandle(attach_type="PCI", attach_info=WHOLE)
        fields: dict[str, Any] = {
            "resource_class": base.SHARE_CLASS if shared else "PGPU",
            "num_accelerators": count if shared else 1,
            "attach_handles": handles if shared else (whole,),
            "shared": shared,
        }
        hosts.apply(hosts.card("a", **fields, prepares=True, cleans=True))
        self.placement.sync()

    def run(self, _conf: object, _host: str, step: rpc.HostStep, _most: float) -> None:
        self.steps.append(step)
        if self.is_stuck:
            raise rpc.HostStepRunning("It goes on", seconds=1)

    def ask(
        self,
        project: str,
        count: int = 1,
        group: dict[str, str] = GROUP,
        limits: dict[str, int] | None = None,
    ) -> str:
        """The consumer that a project has asked for so many shares for; nothing is done yet."""
        consumer, ctx = models.new_uuid(), callers.admin(self.enforcer, project_id=project)
        who = {"uuid": consumer, "type": "JOB"}
        wish = wishes.read(ctx, consumer, {"consumer": who, "groups": [group] * count})
        service.create(self.conf, ctx, wish, limits or {})
        return consumer

    def have(self, project: str, count: int = 1) -> str:
        consumer = self.ask(project, count)
        self.work()
        assert self.state(consumer) == states.ACTIVE
        return consumer

    def state(self, consumer: str) -> str | None:
        row = models.Allocation
        state: str | None = db.read_one(sa.select(row.state).where(row.uuid == consumer))
        return state

    def leave(self, project: str, consumer: str) -> None:
        service.delete(callers.admin(self.enforcer, project_id=project), consumer)
        self.work()

    def work(self) -> None:
        engine.make_due()
        engine.drain(self.conf)
        self.placement.sync()

    def projects(self) -> set[str | None]:
        """The projects that have shares."""
        row = models.Arq
        return set(db.read_all(sa.select(row.project_id).where(row.attach_handle_id.is_not(None))))


SLICE = base.AttachHandle(attach_type=base.NODES, attach_info={"slice": "1"})
SLICES = {"resource_class": "CUSTOM_SLICE", "num_accelerators": 1, "attach_handles": (SLICE,)}
IN_FULL = {
    "resource_class": "PGPU",
    "num_accelerators": 1,
    "attach_handles": (base.AttachHandle(attach_type="PCI", attach_info=WHOLE),),
}


def show(cloud: SharedCard, *, is_divided: bool, below: bool) -> None:
    """A card whose slices are handles of its own, or of a part below it; or the card as a whole."""
    own: dict[str, Any] = SLICES if is_divided else IN_FULL
    if is_divided and below:
        own = {**IN_FULL, "num_accelerators": 0, "attach_handles": ()}
    found = hosts.card("a", **own, prepares=True, cleans=True)
    if is_divided and below:
        (top,) = found.deployables
        changes: dict[str, Any] = {**SLICES, "name": f"{top.name}_1g", "parent": top.name}
        found = dataclasses.replace(found, deployables=(top, dataclasses.replace(top, **changes)))
    hosts.apply(found)
    engine.drain(cloud.conf)
    cloud.placement.sync()
