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
        values = boots.target(instance, device_rp_uuid=provider)
        fields = {
            "hostname": values.hostname,
            "device_rp_uuid": provider,
            "instance_uuid": instance,
        }
        ops = [{"op": "add", "path": f"/{key}", "value": fields[key]} for key in fields]
        body = dict.fromkeys(boots.arqs(ctx), ops)
        return api.ask("PATCH", "/v2/accelerator_requests", body, version="2.0")

    return bind_next


def test_they_are_deleted_once_nova_has_claimed_another_provider(
    placement: PlacementServer, instance: str, ctx: context.RequestContext, bind_next: BindNext
) -> None:
    (old,) = boots.states(ctx)
    placement.release(instance)
    placement.allocate(instance, NEW, FPGA=1)

    assert bind_next(NEW).status_code == 202

    (arq,) = boots.states(ctx).items()
    assert arq[0] != old
    assert arq[1] == models.BOUND


@pytest.mark.parametrize("claimed", [(), (OLD,), (OLD, NEW)], ids=["nothing", "old", "both"])
def test_they_stay_where_it_has_not(
    placement: PlacementServer,
    instance: str,
    ctx: context.RequestContext,
    bind_next: BindNext,
    claimed: tuple[str, ...],
) -> None:
    before = boots.states(ctx)
    placement.release(instance)
    if claimed:
        assert placement.claims(instance, *claimed, FPGA=1)

    answer = bind_next(NEW)

    assert answer.status_code == 400
    assert "already holds ARQs" in answer.text
    assert before.items() <= boots.states(ctx).items()


def test_they_stay_while_placement_does_not_answer(
    placement: PlacementServer, instance: str, ctx: context.RequestContext, bind_next: BindNext
) -> None:
    before = boots.states(ctx)
    placement.before = lambda _method, _path: webob.Response(status=503)

    assert bind_next(NEW).status_code == 400

    assert before.items() <= boots.states(ctx).items()
