# SPDX-License-Identifier: Apache-2.0
"""ARQs that Nova has left with an instance after a compute host could not take it."""

from __future__ import annotations

import pytest
import webob

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import boots, hosts
from cyborg.tests.mounted_api import Api

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

OLD, NEW = (provider_uuid(f"host-1_{letter}") for letter in "ab")


def test_they_are_deleted_once_nova_has_claimed_another_provider(conf, placement, ctx) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    api = Api(conf)
    placement.make_provider(hosts.ROOT)
    hosts.apply(hosts.card("a"), hosts.card("b"))
    placement.sync()
    # Nova has first placed it on a card whose host did not take it.
    instance = models.new_uuid()
    placement.allocate(instance, OLD, FPGA=1)
    boots.bind(ctx, boots.arqs(ctx), instance)
    (old,) = boots.states(ctx)

    def bind_next() -> webob.Response:
        body = boots.patch(boots.arqs(ctx), instance, device_rp_uuid=NEW)
        return api.ask("PATCH", "/v2/accelerator_requests", body, version="2.0")

    def stay() -> None:
        answer = bind_next()
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
    assert bind_next().status_code == 202
    after = boots.states(ctx)
    assert old not in after
    assert [state for arq, state in after.items() if arq not in before] == [models.BOUND]
