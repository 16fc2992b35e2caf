# SPDX-License-Identifier: Apache-2.0
"""Hosts are drained, and devices disabled, with reasons that are kept and shown."""

from __future__ import annotations

import pytest
import requests
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history, work
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.handles import release
from cyborg.hosts import draining, flags
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import desired
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, service
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import Site

pytestmark = pytest.mark.usefixtures("database")

A, B = provider_uuid("host-1_a"), provider_uuid("host-1_b")
LIMIT = 10


@pytest.fixture
def cards(database: sa.Engine) -> None:
    """Two cards of four handles; those of the second are cleaned."""
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), cleans=True))


@pytest.mark.every_database
@pytest.mark.usefixtures("cards")
def test_a_drained_host_is_followed_down_to_nothing(
    conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    bound, cleaned, late = (models.new_uuid() for _ in range(3))
    boots.bind(ctx, boots.arqs(ctx, 2), bound)
    boots.bind(ctx, boots.arqs(ctx), cleaned, device_rp_uuid=B)
    engine.drain(conf)
    boots.bind(ctx, boots.arqs(ctx), late)

    begun = draining.drain("host-1", "A new fan", LIMIT)
    assert (begun.host.drained, begun.host.drain_reason) == (True, "A new fan")
    assert work.is_wanted(work.PLACEMENT, "host-1")
    assert begun.in_use == 4
    assert [user.instance_uuid for user in begun.users] == [bound, bound, cleaned, late]
    assert {user.project_id for user in begun.users} == {"project-1"}
    # What was accepted before is finished.
    engine.drain(conf)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    # The node's name is good too, and a host's users are named up to the limit.
    found = draining.get_host("host-1.example", 1)
    assert (found.in_use, len(found.users)) == (4, 1)

    for instance in (bound, cleaned, late):
        release.delete_instance_arqs(ctx, instance)
    left = draining.get_host("host-1", LIMIT)
    assert [user.state for user in left.users] == [models.DELETING]
    assert left.in_use == 1


@pytest.mark.usefixtures("cards")
def test_new_binds_are_refused_until_the_end(
    conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    draining.drain("host-1", None, LIMIT)
    with pytest.raises(errors.Conflict, match="is drained"):
        boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    assert not draining.undrain("host-1", LIMIT).host.drained
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    assert models.BOUND in boots.states(ctx).values()


def test_placement_offers_nothing_of_it_not_even_what_is_found_later(
    placement: PlacementServer, card: str
) -> None:
    draining.drain("host-1", None, LIMIT)
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8)))
    placement.sync()
    assert placement.offered(A) == placement.offered(B) == {"FPGA": (4, 4)}
    draining.undrain("host-1", LIMIT)
    assert work.is_wanted(work.PLACEMENT, "host-1")
    placement.sync()
    assert placement.candidates("FPGA") == {A, B}


@pytest.mark.usefixtures("cards")
def test_the_history_has_each_drain_with_its_reason() -> None:
    for reason in ("A new fan", "A new fan", None, "A new disk"):
        draining.drain("host-1", reason, LIMIT)
    draining.undrain("host-1", LIMIT)
    found = history.list_entries(None, paging.ALL, kind=history.DRAINED)
    assert [each.private_reason for each in found] == ["A new fan", "A new disk"]
    assert all(each.ended_ms is not None for each in found)


@pytest.mark.usefixtures("cards")
def test_a_device_keeps_why_it_is_disabled() -> None:
    def reason() -> str | None:
        with db.reader() as session:
            query = sa.select(models.Device.disabled_reason).where(models.Device.uuid == uuid)
            return session.scalars(query).one()

    with db.reader() as session:
        uuid = session.scalars(sa.select(models.Device.uuid).order_by(models.Device.id)).first()
    assert uuid is not None
    for given, kept in [("It rattles", "It rattles"), (None, "It rattles"), ("It hums", "It hums")]:
        flags.disable_device(uuid, given)
        assert reason() == kept
        assert history.list_entries(None, paging.ALL, kind=history.DISABLED)[-1].ended_ms is None
    flags.enable_device(uuid)
    assert reason() is None
    found = history.list_entries(None, paging.ALL, kind=history.DISABLED)
    assert [each.private_reason for each in found] == ["It rattles", "It hums"]
    assert all(each.ended_ms is not None for each in found)


TOLD = {
    "health_reason": "/sys/x: too hot",
    "disabled_reason": "It rattles",
    "taint_reason": "rack 4",
    "withheld_reason": "consumer 7",
}
TOLD_A_MANAGER = {
    "health_reason": "The device is unhealthy.",
    "disabled_reason": "An administrator has disabled the device.",
    "taint_reason": "An administrator has tainted the device.",
    "withheld_reason": "Placement has allocations that no accelerator request explains.",
}


def test_who_may_not_look_at_hosts_reads_plain_words(site: Site) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices")["devices"]
    body = {"reason": "It rattles"}
    site.call("POST", f"/devices/{device['uuid']}/disable", body, "2.4")
    with db.writer() as session:
        db.update(session, models.Device, unhealthy="/sys/x: too hot", taint_reason="rack 4")
        host_id = session.scalars(sa.select(models.Host.id)).one()
        row: dict[str, object] = {
            "uuid": service.RP,
            "name": service.NAME,
            "host_id": host_id,
            "written": desired.NOTHING_WRITTEN,
            "withheld": "consumer 7",
            "created_at": models.utcnow(),
        }
        db.upsert(session, models.ResourceProvider, [row], key=["uuid"], update=row)
    for token, seen in (("an administrator's", TOLD), (service.MANAGER_TOKEN, TOLD_A_MANAGER)):
        headers = {"OpenStack-API-Version": "accelerator 2.4", "X-Auth-Token": token}
        found: dict[str, str] = {}
        for each in ("devices", "deployables"):
            url = f"{site.endpoint}/{each}"
            answer = requests.get(url, headers=headers, timeout=service.PATIENCE)
            (shown,) = answer.json()[each]
            found |= {key: text for key, text in shown.items() if key in TOLD}
        assert found == seen


def test_reasons_over_http(site: Site) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices")["devices"]
    path = f"/devices/{device['uuid']}"
    body = {"reason": "It rattles"}
    # Up to 2.3 what a client sends is ignored, whatever it is.
    site.call("POST", f"{path}/disable", {"nonsense": 1}, "2.3")
    assert site.call("GET", path, version="2.4")["disabled_reason"] is None
    site.call("POST", f"{path}/disable", body, "2.4")
    assert site.call("GET", path, version="2.4")["disabled_reason"] == "It rattles"
    site.call("POST", f"{path}/disable", version="2.4")
    assert "disabled_reason" not in site.call("GET", path, version="2.3")
    wrongs: list[object] = [{"nonsense": 1}, {"reason": ""}, {"reason": 1}, []]
    for wrong in wrongs:
        assert site.ask("POST", f"{path}/disable", wrong, "2.4").status_code == 400
        assert site.ask("POST", "/hosts/host-1/drain", wrong, "2.4").status_code == 400
    assert site.ask("POST", "/hosts/host-1/drain", version="2.3").status_code == 404
    assert site.ask("POST", "/hosts/unknown/drain", version="2.4").status_code == 404
    drained = site.call("POST", "/hosts/host-1/drain", body, "2.4")
    assert (drained["drained"], drained["drain_reason"]) == (True, "It rattles")
    assert drained == site.call("GET", "/hosts/host-1.example", version="2.4")
