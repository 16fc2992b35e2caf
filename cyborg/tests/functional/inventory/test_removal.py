# SPDX-License-Identifier: Apache-2.0
"""What an administrator gives up is gone for good, and nothing is left of it anywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable

import pytest
import sqlalchemy as sa
import webob

from cyborg import db, host_keys, liveness, work
from cyborg.arqs import binding
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import release
from cyborg.hosts import removal
from cyborg.inventory import acceptance, query
from cyborg.inventory import report as inventory_report
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import audit
from cyborg.tests import boots, engine, hosts, signed
from cyborg.tests.at_once import at_once
from cyborg.tests.cloud import Card, Cloud, Killed
from cyborg.tests.passing_time import let_nova_forget, let_seconds_pass

#: What belongs to a host, from the leaves to the root.
OF_HOST = (
    models.AttachHandle,
    models.Attribute,
    models.Deployable,
    models.ControlPath,
    models.Device,
    models.ResourceProvider,
    models.Host,
)


pytestmark = pytest.mark.usefixtures("host_with_cards")


def host_uuid(name: str = "host-1") -> str:
    (agent,) = liveness.list_services(host=name)
    return agent.uuid


def device_uuid(card: Card) -> str:
    with db.reader() as session:
        device = sa.select(models.Device.uuid).join(models.Deployable)
        return session.scalars(device.where(models.Deployable.name == card.name)).one()


def assert_nothing_is_left(cloud: Cloud) -> None:
    assert cloud.placement.below(hosts.ROOT) == {}
    assert cloud.rows(models.Work) == {}
    let_nova_forget()
    look(cloud)
    assert cloud.rows(*OF_HOST, models.Work) == {}


def look(cloud: Cloud) -> None:
    """The audit looks at the removed host."""
    let_seconds_pass(60)
    audit.take_turns(cloud.conf)
    cloud.work_off()


@pytest.mark.every_database
def test_a_host_is_removed_with_all_that_it_has(cloud: Cloud) -> None:
    instance, serving = cloud.boot("a")
    other, leaving = cloud.boot("b")
    cloud.agent = "is away"
    cloud.placement.release(other)
    release.delete_instance_arqs(cloud.ctx, other)
    cloud.work_off()
    uuid = host_uuid()
    with pytest.raises(errors.Conflict, match="host-1 is up"):
        removal.remove_host(uuid, force=True)
    cloud.go_down()
    with pytest.raises(errors.Conflict, match=f"{serving} \\(instance {instance}\\)"):
        removal.remove_host(uuid, force=False)
    assert len(query.list_devices()) == 3

    given_up = removal.remove_host(uuid, force=True)

    assert {arq.uuid: arq.host_step for arq in given_up.arqs} == {serving: None, leaving: "clean"}
    assert [said.partition(" attach")[0] for said in given_up.not_excluded] == [
        "Host host-1 may still clean"
    ]
    assert len(given_up.devices) == 3
    assert set(given_up.resource_providers) == {card.provider for card in cloud.cards.values()}
    assert liveness.list_services() == []
    assert query.list_devices() == []
    assert cloud.rows(models.Arq) == {}
    with pytest.raises(errors.NotFound):
        removal.remove_host(uuid, force=True)
    # What a guest still has of a provider is Nova's affair; nobody else is offered any of it.
    cloud.work_off()
    provider = cloud.cards["a"].provider
    assert cloud.placement.below(hosts.ROOT).keys() == {provider}
    assert cloud.placement.offered(provider) == {"FPGA": (3, 3)}
    assert cloud.rows(*OF_HOST) == {"resource_providers": 3, "hosts": 1}
    cloud.placement.release(instance)
    cloud.work_off()
    assert_nothing_is_left(cloud)


def test_what_is_removed_stays_removed_whatever_placement_says(cloud: Cloud) -> None:
    cloud.go_down()
    cloud.placement.before = lambda method, path: webob.Response(status=503)
    removal.remove_host(host_uuid(), force=False)
    cloud.work_off()
    assert cloud.rows(*OF_HOST) == {"resource_providers": 3, "hosts": 1}
    cloud.placement.before = None
    # Somebody has tidied up the one part, and the tree of another is gone with its root.
    cloud.placement.call("DELETE", f"/resource_providers/{cloud.cards['a'].provider}")
    cloud.work_off()
    assert_nothing_is_left(cloud)


def test_a_host_that_placement_never_knew_can_be_removed(cloud: Cloud) -> None:
    hosts.apply(host="host-2")
    cloud.go_down("host-2")
    removal.remove_host(host_uuid("host-2"), force=False)
    cloud.work_off()
    assert [found.host for found in liveness.list_services()] == ["host-1"]
    assert cloud.rows(models.Host) == {"hosts": 1}


def test_nothing_is_believed_that_a_removed_host_signs(
    cloud: Cloud, tmp_path: pathlib.Path
) -> None:
    keys = {name: signed.new_key(tmp_path / name) for name in ("host-1", "host-2")}
    for name, public in keys.items():
        host_keys.enrol(name, public)
    with pytest.raises(errors.Conflict, match="host-1 is up"):
        removal.remove_host(host_uuid(), force=False)
    (own,) = host_keys.list_keys("host-1")
    assert own.revoked_ms is None
    cloud.go_down()
    removal.remove_host(host_uuid(), force=False)
    (own,) = host_keys.list_keys("host-1")
    (other,) = host_keys.list_keys("host-2")
    assert own.revoked_ms is not None
    assert other.revoked_ms is None


def test_a_conductor_is_no_host(cloud: Cloud) -> None:
    uuid = models.new_uuid()
    liveness.record_heartbeat(uuid, "a/1", "a")
    with pytest.raises(errors.Conflict, match="is a conductor"):
        removal.remove_host(uuid, force=True)
    with pytest.raises(errors.NotFound):
        removal.remove_host(models.new_uuid(), force=True)


@pytest.mark.parametrize("works", [False, True])
def test_a_host_that_comes_back_is_as_new(cloud: Cloud, *, works: bool) -> None:
    cloud.go_down()
    before = host_uuid()
    removal.remove_host(before, force=False)
    if works:
        cloud.work_off()
        let_nova_forget()
        look(cloud)
    cloud.report()
    assert (host_uuid() == before) is not works
    assert [found.state for found in liveness.list_services()] == [liveness.UP]
    assert len(query.list_devices()) == 3
    cloud.placement.assert_right("host-1")
    assert cloud.rows(models.Work) == {}


@pytest.mark.parametrize("before", [True, False])
def test_whoever_is_killed_in_the_middle(cloud: Cloud, *, before: bool) -> None:
    instance, _ = cloud.boot("a")
    other, _ = cloud.boot("b")
    cloud.placement.release(other)
    release.delete_instance_arqs(cloud.ctx, other)
    killed = 0
    for commits in range(100):
        cloud.commits_left, cloud.kill_before = commits, before
        try:
            with contextlib.suppress(errors.NotFound, LookupError, ValueError):
                cloud.go_down()
                removal.remove_host(host_uuid(), force=True)
            cloud.placement.release(instance)
            cloud.let_time_pass()
            while cloud.do_one():
                pass
        except Killed:
            killed += 1
            cloud.live()
            assert consistency.violations() == []
        else:
            break
    cloud.live()
    cloud.work_off()
    assert killed >= 5
    assert_nothing_is_left(cloud)
    assert cloud.rows(models.Arq) == {}


def rename(*devices: base.Device) -> None:
    """The agent of the one machine calls it host-2 from now on; its root is as before."""
    found = hosts.report(*devices, host="host-2")
    inventory_report.apply_report(dataclasses.replace(found, node=hosts.ROOT))


@pytest.mark.every_database
def test_a_host_that_was_renamed_is_offered_once(cloud: Cloud) -> None:
    # Its drivers name what they find after the host.
    renamed = hosts.device("a", hosts.deployable("host-2_a"))
    new = provider_uuid("host-2_a")
    with pytest.raises(acceptance.ReportRefused, match="belongs to host host-1"):
        rename(renamed)
    cloud.go_down()
    removal.remove_host(host_uuid("host-1"), force=False)

    rename(renamed)

    cloud.work_off()
    assert cloud.placement.below(hosts.ROOT).keys() == {new}
    assert [found.host for found in liveness.list_services()] == ["host-2"]
    cloud.placement.assert_right("host-2")


@pytest.mark.every_database
@pytest.mark.parametrize("letter", ["a", "c"])
def test_a_removal_and_binds_at_once_leave_nothing_behind(cloud: Cloud, letter: str) -> None:
    """Binds by PATCH, and by a conductor."""
    requests = boots.arqs(cloud.ctx, 3, {"resources:FPGA": "1"})
    cloud.go_down()
    uuid = host_uuid()

    def meanwhile(act: Callable[[], object]) -> None:
        with contextlib.suppress(errors.CyborgError):
            act()

    def bind(arq: str) -> None:
        instance, provider = models.new_uuid(), cloud.cards[letter].provider
        boots.bind(cloud.ctx, [arq], instance, device_rp_uuid=provider)
        claimed = engine.take(f"bind#{arq}", 600.0, [work.BIND])
        if claimed is not None:
            with contextlib.suppress(work.LeaseLost):
                binding.bind_instance(claimed)
                work.finish(claimed)

    acts: list[Callable[[], object]] = [functools.partial(bind, arq) for arq in requests]
    acts.append(functools.partial(removal.remove_host, uuid, force=True))
    at_once(*[functools.partial(meanwhile, act) for act in acts])

    cloud.work_off()
    assert_nothing_is_left(cloud)
    assert boots.handles(cloud.ctx) == []
    assert models.BOUND not in boots.states(cloud.ctx).values()


# Devices.


@pytest.mark.every_database
def test_a_device_that_is_gone_but_held_can_be_removed(cloud: Cloud) -> None:
    card = cloud.cards["b"]
    instance, arq = cloud.boot("b")
    uuid = device_uuid(card)
    with pytest.raises(errors.Conflict, match="would come back"):
        removal.remove_device(uuid, force=True)
    card.plugged = False
    cloud.report()
    with pytest.raises(errors.Conflict, match=arq):
        removal.remove_device(uuid, force=False)

    given_up = removal.remove_device(uuid, force=True)

    assert (given_up.devices, given_up.resource_providers) == ((uuid,), (card.provider,))
    # What is gone needs no cleaning.
    assert [(found.uuid, found.host_step) for found in given_up.arqs] == [(arq, None)]
    with pytest.raises(errors.NotFound):
        removal.remove_device(uuid, force=True)
    cloud.placement.release(instance)
    cloud.work_off()
    assert cloud.rows(models.Arq, models.Work) == {}
    cloud.placement.assert_right("host-1")
    assert len(cloud.placement.below(hosts.ROOT)) == 2
    card.plugged = True
    cloud.report()
    assert len(query.list_devices()) == 3


@pytest.mark.every_database
def test_a_device_of_a_dead_host_can_be_removed_and_comes_back_with_it(cloud: Cloud) -> None:
    card = cloud.cards["a"]
    uuid = device_uuid(card)
    cloud.go_down()
    assert removal.remove_device(uuid, force=False).devices == (uuid,)
    cloud.work_off()
    assert cloud.placement.below(hosts.ROOT).keys() == {
        cloud.cards[letter].provider for letter in "bc"
    }
    # The same report as before, word for word.
    cloud.report()
    assert len(query.list_devices()) == 3
    cloud.placement.assert_right("host-1")
