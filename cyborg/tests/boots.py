# SPDX-License-Identifier: Apache-2.0
"""What a consumer does to boot an instance with accelerators, as functions for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oslo_config import cfg

from cyborg import db
from cyborg.arqs import binding, service
from cyborg.arqs.bind_requests import BindTarget
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import engine

#: The deployable that requests are bound to unless a test says otherwise, and its provider.
NAME = "host-1_a"
RP = provider_uuid(NAME)
GROUP = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}


def arqs(ctx: context.RequestContext, count: int = 1, group: object = None) -> list[str]:
    """Create a profile of ``count`` groups and its ARQs; their uuids."""
    name = f"dp-{models.new_uuid()}"
    groups = [dict(group or GROUP)] * count  # type: ignore[call-overload]
    _store_profile(name, groups)
    return [arq.uuid for arq in service.create(ctx, name)]


@db.retry
def _store_profile(name: str, groups: list[dict[str, str]]) -> None:
    """Nobody is told of it: it is there only to have ARQs made of it."""
    with db.writer() as session:
        session.add(models.DeviceProfile(name=name, groups=groups))


def target(instance: str, **changes: str) -> BindTarget:
    """Where an ARQ is bound: the usual provider, but for ``changes``."""
    fields = {"hostname": "host-1.example", "device_rp_uuid": RP, "consumer_uuid": instance}
    return BindTarget(**(fields | changes))


def bind(ctx: context.RequestContext, uuids: Sequence[str], instance: str, **changes: str) -> None:
    """Ask for all ``uuids`` to be bound for one instance."""
    where = target(instance, **changes)
    binding.request_changes(ctx, dict.fromkeys(uuids, where), [])


def patch(uuids: Iterable[str], instance: str, **changes: str) -> dict[str, Any]:
    """The body of a PATCH that binds ARQs; a change may be a field more, such as the project."""
    where = {"hostname": "host-1.example", "device_rp_uuid": RP, "instance_uuid": instance}
    fields = (where | changes).items()
    ops = [{"op": "add", "path": f"/{name}", "value": value} for name, value in fields]
    return dict.fromkeys(uuids, ops)


def ask(
    ctx: context.RequestContext, count: int = 1, group: object = None, **changes: str
) -> str:
    """Ask for so many new ARQs to be bound for a new instance; its uuid."""
    instance = models.new_uuid()
    bind(ctx, arqs(ctx, count, group), instance, **changes)
    return instance


def boot(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    count: int = 1,
    group: object = None,
    **changes: str,
) -> str:
    """Ask for binds as :func:`ask` does, and do what a conductor has to do for them."""
    instance = ask(ctx, count, group, **changes)
    engine.drain(conf)
    return instance


def states(ctx: context.RequestContext) -> dict[str, str]:
    """The state of every ARQ by uuid."""
    return {arq.uuid: arq.state for arq in service.list_arqs(ctx)}


def handles(ctx: context.RequestContext) -> list[str]:
    """The uuids of all attach handles that ARQs hold."""
    return [arq.handle_uuid for arq in service.list_arqs(ctx) if arq.handle_uuid is not None]
