# SPDX-License-Identifier: Apache-2.0
"""A handle that is held is given to nobody else, though it is reported in another deployable."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.arqs import binding
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import release
from cyborg.inventory import diff
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.placement_server import PlacementServer

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

OLD, NEW = "host-1_a", "host-1_b"


def _report(name: str) -> None:
    hosts.apply(hosts.device("card", hosts.deployable(name, range(3))))


def _bound(ctx: context.RequestContext, conf: cfg.ConfigOpts, name: str, count: int) -> str:
    """Bind so many, those that can be, for an instance."""
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx, count), instance, device_rp_uuid=provider_uuid(name))
    engine.drain(conf)
    return instance


def _held() -> list[str]:
    """What guests have, by what it is on the host."""
    handle = models.AttachHandle
    query = sa.select(handle.attach_info).join(models.Arq).order_by(handle.attach_info)
    with db.reader() as session:
        return list(session.scalars(query))


def test_a_deployable_with_another_name(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, placement: PlacementServer, root: str
) -> None:
    _report(OLD)
    first = _bound(ctx, conf, OLD, 2)
    _report(NEW)
    placement.sync()
    assert placement.offered(provider_uuid(NEW)) == {"FPGA": (1, 0)}

    _bound(ctx, conf, NEW, 3)

    assert len(_held()) == len(set(_held())) == 3
    release.delete_instance_arqs(ctx, first)
    _report(NEW)
    placement.sync()
    assert placement.offered(provider_uuid(NEW)) == {"FPGA": (3, 0)}
    assert provider_uuid(OLD) not in placement.below(hosts.ROOT)


def _report_port(network: str) -> None:
    """Report a virtual function of a network card whose port is on that physical network."""
    place = {"domain": "0000", "bus": "3b", "device": "02", "function": "0"}
    info = {**place, "physical_network": network}
    handle = base.AttachHandle(attach_type="PCI", attach_info=info)
    hosts.apply(
        hosts.device("card", hosts.deployable(OLD, num_accelerators=1, attach_handles=(handle,)))
    )


def test_a_function_of_which_something_else_is_told(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, placement: PlacementServer, root: str
) -> None:
    """It is the same function; its guest knows it as it was told."""
    _report_port("blue")
    _report_port("green")
    first = _bound(ctx, conf, OLD, 1)
    _report_port("red")
    placement.sync()
    assert placement.offered(provider_uuid(OLD)) == {"FPGA": (1, 0)}

    _bound(ctx, conf, OLD, 1)

    (held,) = _held()
    assert json.loads(held)["physical_network"] == "green"
    release.delete_instance_arqs(ctx, first)
    _report_port("red")
    _bound(ctx, conf, OLD, 1)
    (held,) = _held()
    assert json.loads(held)["physical_network"] == "red"


def test_one_that_is_taken_while_the_report_is_applied(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    monkeypatch: pytest.MonkeyPatch,
    database_kind: str,
) -> None:
    if database_kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    _report(OLD)
    # Accepted before the report, and decided beside it, by a conductor.
    with monkeypatch.context() as patch:
        patch.setattr(binding.Asker, "leaves", lambda asker, deployable: True)
        arqs = boots.arqs(ctx)
        boots.bind(ctx, arqs, models.new_uuid(), device_rp_uuid=provider_uuid(OLD))
    assert set(boots.states(ctx).values()) == {models.BIND_STARTED}
    look = diff.drop_held_elsewhere
    binds: list[threading.Thread] = []

    def look_too_early(*arguments: Any) -> Any:
        found = look(*arguments)
        if not binds:
            binds.append(threading.Thread(target=engine.drain, args=(conf,)))
            binds[0].start()
            binds[0].join()
        return found

    monkeypatch.setattr(diff, "drop_held_elsewhere", look_too_early)
    _report(NEW)
    _bound(ctx, conf, NEW, 3)

    assert len(binds) == 1
    assert len(_held()) == len(set(_held())) == 3
