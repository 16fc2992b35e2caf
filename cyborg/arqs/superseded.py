# SPDX-License-Identifier: Apache-2.0
"""ARQs that Nova has left with an instance, and then claimed other providers for it.

If a compute host cannot take an instance, Nova frees what it has claimed, claims the next host's
providers and binds new ARQs there. It does not delete those of the first host.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db
from cyborg.arqs import service
from cyborg.arqs.bind_requests import BindTarget
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client
from cyborg.policy.context import RequestContext

LOG = logging.getLogger(__name__)


def find(
    conf: cfg.ConfigOpts, ctx: RequestContext, instance: str, binds: Mapping[str, BindTarget]
) -> Collection[str]:
    """The other ARQs of an instance, if its allocation is of the providers of ``binds`` alone.

    None, if it has something of the others' providers, or Placement does not say.
    """
    others = _others(ctx, instance, binds)
    wanted = {each.device_rp_uuid for each in binds.values() if each.consumer_uuid == instance}
    claimed = _claimed(conf, instance)
    if not wanted <= claimed or not claimed.isdisjoint(others.values()):
        return ()
    LOG.warning(
        "Nova claims other providers for instance %s now: its ARQs %s are deleted",
        instance,
        ", ".join(sorted(others)),
    )
    return others.keys()


@db.retry
def _others(ctx: RequestContext, instance: str, binds: Collection[str]) -> dict[str, str]:
    """The providers of the instance's other ARQs, by the uuids of these."""
    arq = models.Arq
    query = sa.select(arq.uuid, arq.device_rp_uuid)
    mine = (arq.consumer_uuid == instance, *service.in_scope(ctx))
    return dict(db.rows(query.where(arq.uuid.not_in(binds), *mine)))


def _claimed(conf: cfg.ConfigOpts, instance: str) -> frozenset[str]:
    """The providers of which the instance has an allocation; none if Placement does not say."""
    if not clients.configured(conf, "placement"):
        return frozenset()
    try:
        found = client.Client(conf).find_allocations(instance)
    except (client.PlacementError, ka_exc.ClientException) as exc:
        LOG.warning("It is not known which providers instance %s has: %s", instance, exc)
        return frozenset()
    return frozenset(found.amounts) if found else frozenset()
