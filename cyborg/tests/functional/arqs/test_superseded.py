# SPDX-License-Identifier: Apache-2.0
"""ARQs that Nova has left with an instance after a compute host could not take it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, hosts
from cyborg.tests.mounted_api import Api
from cyborg.tests.placement_server import PlacementServer

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

OLD, NEW = (provider_uuid(f"host-1_{letter}") for letter in "ab")
#: Asks for an instance's next ARQ to be bound to a provider.
BindNext = Callable[[str], webob.Response]


@pytest.fixture
def instance(placement: PlacementServer, ctx: context.RequestContext, database: sa.Engine) -> str:
    """An instance that Nova has first placed on a card whose host did not take it."""
    placement.make_provider(hosts.ROOT)
    hosts.apply(hosts.card("a"), hosts.card("b"))
    placement.sync()
    instance = models.new_uuid()
    placement.allocate(instance, OLD, FPGA=1)
    boots.bind(ctx, boots.arqs(ctx), instance)
    return instance


@pytest.fixture
def bind_next(instance: str, ctx: context.RequestContext, conf: cfg.ConfigOpts) -> BindNext:
    conf.set_override("auth_strategy", "noauth", group="api")
    api = Api(conf)

    def bind_next(provider: str) -> webob.Response:
        body = boots.patch(boots.arqs(ctx), instance, device_rp_uuid=provider)
        return api.ask("PATCH", "/v2/accelerator_requests", body, version="2.0")

    return bind_next


def test_they_are_deleted_once_nova_has_claimed_another_provider(
    placement, instance, ctx, bind_next
) -> None:
    (old,) = boots.states(ctx)

    def stay() -> None:
        answer = bind_next(NEW)
        assert (answer.status_code, "already holds ARQs" in answer.text) == (400, True)
        assert boots.states(ctx)[old] == models.BOUND

    # Neither while it claims nothing, or the old one as well, nor while Placement does not answer.
    claims: list[tuple[str, ...]] = [(), (OLD,), (OLD, NEW)]
    for claimed in claims:
        placement.release(instance)
        if claimed:
            assert placement.claims(instance, *claimed, FPGA=1)
        stay()
    placement.before = lambda _method, _path: webob.Response(status=503)
    stay()
    placement.before = None

    before = boots.states(ctx)
    placement.release(instance)
    placement.allocate(instance, NEW, FPGA=1)
    assert bind_next(NEW).status_code == 202
    after = boots.states(ctx)
    assert old not in after
    assert [state for arq, state in after.items() if arq not in before] == [models.BOUND]
