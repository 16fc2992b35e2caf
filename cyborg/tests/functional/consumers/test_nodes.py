# SPDX-License-Identifier: Apache-2.0
"""Device nodes of a host are for containers on it: no guest gets them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc
from cyborg.allocations import service, wishes
from cyborg.common import reasons
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.states import allocation_states as states
from cyborg.tests import boots, callers, engine, hosts

pytestmark = pytest.mark.every_database

CONSUMER = "c0000000-0000-4000-8000-000000000001"
NODES = base.AttachHandle(attach_type=base.NODES, attach_info={"path": "platform/npu"})


@pytest.fixture(params=[False, True], ids=["at_once", "prepared"])
def ctx(request, database, placement, enforcer, monkeypatch) -> context.RequestContext:
    """An administrator, where a host has an accelerator for containers and another one."""
    placement.make_provider(hosts.ROOT)
    steps = dict.fromkeys(("prepares", "cleans"), request.param)
    nodes = {"attach_handles": (NODES,), "resource_class": "CUSTOM_NPU", **steps}
    hosts.apply(hosts.card("a", [0], **nodes), hosts.card("b", [1], **steps))
    placement.sync()
    monkeypatch.setattr(rpc, "run_host_step", lambda *_given: None)
    return callers.admin(enforcer, project_id="project-1")


def holders() -> dict[str, str | None]:
    """The ARQs that have handles, with the allocation of each."""
    query = sa.select(models.Arq.uuid, models.Arq.allocation_uuid)
    with db.reader() as session:
        found = session.execute(query.where(models.Arq.attach_handle_id.is_not(None)))
        return {row[0]: row[1] for row in found}


def boot(ctx: context.RequestContext, conf: cfg.ConfigOpts, letter: str) -> models.Arq:
    """The ARQ of a guest that asked for a card, when all is done."""
    kind = "CUSTOM_NPU" if letter == "a" else "FPGA"
    place = provider_uuid(f"host-1_{letter}")
    instance = boots.boot(conf, ctx, 1, {f"resources:{kind}": "1"}, device_rp_uuid=place)
    with db.reader() as session:
        return session.scalars(sa.select(models.Arq).filter_by(consumer_uuid=instance)).one()


def test_a_guest_is_refused_and_a_container_is_given_it(ctx, conf) -> None:
    refused = boot(ctx, conf, "a")
    assert (refused.state, holders()) == (models.BIND_FAILED, {})
    assert "is for containers on its host, and no guest gets it." in str(refused.state_reason)
    assert boot(ctx, conf, "b").state == models.BOUND
    guests = holders()

    part = {"groups": [{"resources:CUSTOM_NPU": "1"}]}
    body = {"consumer": {"uuid": CONSUMER, "type": "CONTAINER"}, "parts": [part]}
    service.create(conf, ctx, wishes.read(ctx, CONSUMER, body), {})
    engine.drain(conf)

    assert service.get(ctx, CONSUMER).row.state == states.ACTIVE
    assert [each for each in holders().values() if each] == [CONSUMER]
    assert holders().keys() > guests.keys()
    # It is not free now, and no guest is told to try again.
    assert "no guest gets it" in str(boot(ctx, conf, "a").state_reason)
    assert reasons.CONTAINERS_ONLY in reasons.OF_BINDS
