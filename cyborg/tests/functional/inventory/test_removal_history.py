# SPDX-License-Identifier: Apache-2.0
"""What is left of removed hosts and devices in the history: who removed them, and nothing open."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.hosts import draining, flags, removal
from cyborg.inventory import report as inventory_report
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.named_devices import only_device

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

WHY = "It has burnt down"


def entries(**wanted: str) -> list[models.HistoryEntry]:
    return history.list_entries(None, paging.ALL, **wanted)


def go_down() -> str:
    """Let host-1 be down; its uuid."""
    with db.writer() as session:
        db.update(session, models.Host, down=True)
        return session.scalars(sa.select(models.Host.uuid)).one() or ""


def test_nothing_stays_open_of_a_host_that_is_removed() -> None:
    hosts.apply(hosts.card("a"))
    draining.drain("host-1", "A new fan", 10)
    draining.taint("host-1", "It hums", 10)
    flags.disable_device(only_device(), "It rattles")
    flags.taint_device(only_device(), "It whistles")
    removal.remove_host(go_down(), force=False)

    with pytest.raises(errors.NotFound, match="Host not found"):
        draining.drain("host-1", None, 10)
    about = {history.DRAINED, history.TAINTED, history.DISABLED}
    kept = [each for each in entries() if each.kind in about]
    assert len(kept) == 4
    assert all(each.ended_ms is not None for each in kept)
    hosts.apply(hosts.card("a"))
    host = draining.get_host("host-1", 10).host
    assert (host.drained, host.tainted) == (False, False)
    assert (host.drain_reason, host.drained_ms, host.taint_reason) == (None, None, None)


def test_the_drain_of_a_host_ends_under_its_new_name() -> None:
    hosts.apply(hosts.card("a"))
    draining.drain("host-1", "A new fan", 10)
    draining.taint("host-1", None, 10)
    moved = hosts.report(hosts.card("a"))
    object.__setattr__(moved, "node", "host-1.example")
    inventory_report.apply_report(moved)

    found = [each for each in entries() if each.kind in {history.DRAINED, history.TAINTED}]
    assert [(each.hostname, each.ended_ms) for each in found] == [("host-1.example", None)] * 2
    draining.undrain("host-1", 10)
    draining.untaint("host-1", 10)
    assert all(each.ended_ms is not None for each in entries())


@pytest.mark.parametrize("what", ["host", "device"])
def test_who_removed_it_and_why_is_kept(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    hosts.apply(hosts.card("a"))
    instance = models.new_uuid()
    (arq,) = boots.arqs(ctx)
    boots.bind(ctx, [arq], instance)
    engine.drain(conf)
    card, host = only_device(), go_down()
    monkeypatch.setattr(history, "user", lambda: "user root-1")
    if what == "host":
        removal.remove_host(host, force=True, reason=WHY)
    else:
        removal.remove_device(card, force=True, reason=WHY)

    (released,) = entries(kind=history.RELEASED)
    assert (released.arq_uuid, released.consumer_uuid) == (arq, instance)
    assert (released.project_id, released.device_uuid) == (ctx.project_id, card)
    removed = entries(kind=history.REMOVED)
    assert {each.device_uuid for each in removed} == ({card, None} if what == "host" else {card})
    for each in [released, *removed]:
        assert (each.actor, each.private_reason) == ("user root-1", WHY)
        assert (each.hostname, each.ended_ms is None) == ("host-1.example", False)
