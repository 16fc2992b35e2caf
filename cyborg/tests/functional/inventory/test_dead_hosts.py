# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for a host that is known to be dead, and it is asked again when it lives."""

from __future__ import annotations

import pytest

from cyborg import db, history
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.cloud import Cloud

RP = provider_uuid("host-1_b")


@pytest.mark.every_database
@pytest.mark.usefixtures("host_with_cards")
def test_a_handle_is_cleaned_when_its_dead_host_reports_again(cloud: Cloud) -> None:
    instance, _ = cloud.boot("b")
    cloud.go_down()
    cloud.placement.release(instance)
    release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()

    assert cloud.cleaned == set()
    (error,) = engine.pending().values()
    assert error == "Host host-1 is down; its agent is asked when it reports."
    cloud.report()
    assert len(cloud.cleaned) == 1
    assert engine.pending() == {}


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
def test_nothing_new_is_bound_to_a_dead_host(ctx: context.RequestContext) -> None:
    card = hosts.card("b")
    hosts.apply(card)
    before, refused = models.new_uuid(), models.new_uuid()
    first, second = boots.arqs(ctx), boots.arqs(ctx)
    boots.bind(ctx, first, before, device_rp_uuid=RP)
    with db.writer() as session:
        db.update(session, models.Host, down=True)

    with pytest.raises(errors.Conflict, match="the host is down"):
        boots.bind(ctx, second, refused, device_rp_uuid=RP)

    assert boots.states(ctx) == {first[0]: models.BOUND, second[0]: models.INITIAL}
    (entry,) = history.list_entries(None, paging.ALL, instance_uuid=refused)
    assert entry.kind == history.BIND_FAILED
    assert "the host is down" in (entry.private_reason or "")
    # A consumer that asks again for what it has is not told otherwise.
    boots.bind(ctx, first, before, device_rp_uuid=RP)
    hosts.apply(card)
    boots.bind(ctx, second, refused, device_rp_uuid=RP)
    assert set(boots.states(ctx).values()) == {models.BOUND}
