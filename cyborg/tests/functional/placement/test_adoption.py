# SPDX-License-Identifier: Apache-2.0
"""Providers that hold allocations of guests that this database knows nothing of."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db, work
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.conductor import gauges
from cyborg.db import models
from cyborg.hosts import removal
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import adoption, audit, client
from cyborg.placement.tree import Inventory
from cyborg.policy import context
from cyborg.tests import boots, hosts
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.usefixtures("database")

NAME = "host-1_a"
A = provider_uuid(NAME)
GUEST = str(uuid.UUID(int=7))
ALL = Inventory(total=4, reserved=0, max_unit=4)


@pytest.fixture
def left(placement: PlacementServer, root: str) -> PlacementServer:
    """Placement as another Cyborg has left it: a guest has one of four of a provider."""
    make(placement, root)
    return placement


def make(placement: PlacementServer, parent: str) -> None:
    body = {"name": NAME, "uuid": A, "parent_provider_uuid": parent}
    placement.call("POST", "/resource_providers", body)
    placement.set_inventories(A, FPGA={"total": 4})
    placement.allocate(GUEST, A, FPGA=1)


def inventory(placement: PlacementServer) -> Inventory:
    return placement.below(hosts.ROOT)[A].inventories["FPGA"]


def arq_of(ctx: context.RequestContext, instance: str) -> None:
    """An ARQ as an import writes it."""
    (uuid_,) = boots.arqs(ctx)
    with db.writer() as session:
        db.update(
            session, models.Arq, models.Arq.uuid == uuid_, device_rp_uuid=A, consumer_uuid=instance
        )


def test_nothing_is_given_out_that_others_may_have_until_an_administrator_accepts_it(
    left: PlacementServer,
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts.apply(hosts.card("a"))
    left.sync()
    left.sync()

    assert inventory(left).reserved == 4
    told = [each.message for each in caplog.records if "adoption" in each.name]
    (sentence,) = told
    assert NAME in sentence
    assert GUEST in sentence
    assert [each.sentence for each in consistency.withheld()] == [sentence]
    with pytest.raises(errors.Conflict, match="no accelerator request explains"):
        boots.bind(ctx, boots.arqs(ctx), GUEST)
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges.Gauges(conf).collect()
        for sample in family.samples
    }
    assert shown["cyborg_resource_providers_withheld",] == 1
    assert shown["cyborg_attach_handles", "FPGA", "unavailable"] == 4

    # So it is when the device is back that was gone.
    hosts.apply()
    with pytest.raises(work.TryLater, match="withdrawn until it can be deleted"):
        left.sync()
    hosts.apply(hosts.card("a"))
    left.sync()
    assert inventory(left).reserved == 4
    assert GUEST in adoption.accept(A)
    left.sync()
    left.sync()
    assert inventory(left) == ALL
    with pytest.raises(errors.NotFound):
        adoption.accept(A)


@pytest.mark.makes_up_rows
def test_what_is_imported_before_the_first_report_is_not_withheld(
    left: PlacementServer, ctx: context.RequestContext
) -> None:
    arq_of(ctx, GUEST)
    hosts.apply(hosts.card("a"))
    left.sync()
    assert inventory(left) == ALL


@pytest.mark.usefixtures("root")
def test_what_this_database_has_given_out_is_not_withheld(placement: PlacementServer) -> None:
    """Nova claims first and has ARQs bound later."""
    hosts.apply(hosts.card("a"))
    placement.sync()
    placement.allocate(GUEST, A, FPGA=1)
    hosts.apply(hosts.card("a"), hosts.card("b"))
    placement.sync()
    assert inventory(placement) == ALL


def test_what_nobody_has_any_more_is_not_withheld_when_it_is_gone(left: PlacementServer) -> None:
    hosts.apply(hosts.card("a"))
    left.sync()
    hosts.apply()
    left.release(GUEST)
    left.sync()
    (row,) = db.read_all(sa.select(models.ResourceProvider))
    assert row.withheld is None


@pytest.mark.makes_up_rows
def test_an_arq_explains_no_more_than_one(
    placement: PlacementServer, root: str, ctx: context.RequestContext
) -> None:
    make(placement, root)
    placement.release(GUEST)
    placement.allocate(GUEST, A, FPGA=2)
    arq_of(ctx, GUEST)
    hosts.apply(hosts.card("a"))
    placement.sync()
    assert inventory(placement).reserved == 4
    arq_of(ctx, GUEST)
    placement.sync()
    assert inventory(placement) == ALL
    assert consistency.withheld() == []


def test_it_is_looked_at_again_soon(left: PlacementServer, conf: cfg.ConfigOpts) -> None:
    hosts.apply(hosts.card("a"))
    left.sync()
    audit.take_turns(conf)
    left.sync()
    for seconds, is_due in ((50, False), (11, True)):
        with db.writer() as session:
            earlier = models.Host.audited_ms - seconds * 1000
            db.update(session, models.Host, audited_ms=earlier)
        audit.take_turns(conf)
        assert work.is_wanted(work.PLACEMENT, "host-1") is is_due
    left.release(GUEST)
    left.sync()
    assert inventory(left) == ALL


@pytest.mark.usefixtures("root")
def test_it_is_withheld_though_the_first_attempt_broke_off(placement: PlacementServer) -> None:
    make(placement, placement.make_provider("old-root"))
    hosts.apply(hosts.card("a"))

    def is_away(method: str, _path: str) -> webob.Response | None:
        return webob.Response(status=503) if method != "GET" else None

    placement.before = is_away
    with pytest.raises(client.PlacementError):
        placement.sync()
    placement.obey()
    placement.sync()
    assert inventory(placement).reserved == 4


def remove_device() -> None:
    """An administrator removes the card of a host that is down."""
    with db.writer() as session:
        db.update(session, models.Host, down=True)
        (uuid_,) = session.scalars(sa.select(models.Device.uuid))
    removal.remove_device(uuid_, force=True)


def remove_host() -> None:
    """An administrator removes the host."""
    with db.writer() as session:
        db.update(session, models.Host, down=True)
        (uuid_,) = session.scalars(sa.select(models.Host.uuid))
    removal.remove_host(uuid_, force=True)


#: Each way in which a card goes while somebody has an allocation of its provider.
WAYS: dict[str, Callable[[], object]] = {
    "vanished": hosts.apply,
    "device removed": remove_device,
    "host removed": remove_host,
    "parts renamed": lambda: hosts.apply(hosts.device("a", hosts.deployable("host-1_other"))),
    "moved": lambda: hosts.apply(
        hosts.device("other", hosts.deployable("host-1_b")), order=(2**31, 1)
    ),
}


@pytest.mark.every_database
@pytest.mark.parametrize("is_synced", [True, False], ids=["synced", "at once"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("root")
def test_what_waits_for_its_deletion_and_comes_back_is_withheld(
    placement: PlacementServer, ctx: context.RequestContext, way: str, *, is_synced: bool
) -> None:
    hosts.apply(hosts.card("a"))
    placement.sync()
    placement.allocate(GUEST, A, FPGA=1)
    WAYS[way]()
    if is_synced:
        with pytest.raises(work.TryLater, match="withdrawn until it can be deleted"):
            placement.sync()
    hosts.apply(hosts.card("a"), order=(2**31, 2))
    with pytest.raises(errors.Conflict, match="nothing of provider"):
        boots.bind(ctx, boots.arqs(ctx), str(uuid.uuid4()))
    for _ in range(3):
        with contextlib.suppress(work.TryLater):
            placement.sync(full=True)
        assert inventory(placement).reserved == 4
        (sentence,) = (each.sentence for each in consistency.withheld())
        assert GUEST in sentence
    placement.release(GUEST)
    with contextlib.suppress(work.TryLater):
        placement.sync()
    assert inventory(placement) == ALL
    assert consistency.withheld() == []


@pytest.mark.usefixtures("root")
def test_what_comes_back_with_nothing_unexplained_is_given_out_at_the_first_sync(
    placement: PlacementServer, ctx: context.RequestContext
) -> None:
    hosts.apply(hosts.card("a"))
    placement.sync()
    for _ in range(2):
        hosts.apply()
        hosts.apply(hosts.card("a"))
        placement.sync()
        assert inventory(placement) == ALL
        placement.call("DELETE", f"/resource_providers/{A}")
    placement.sync(full=True)
    boots.bind(ctx, boots.arqs(ctx), GUEST)
