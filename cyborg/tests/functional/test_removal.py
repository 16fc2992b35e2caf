# SPDX-License-Identifier: Apache-2.0
"""What an administrator gives up is gone for good, and nothing is left of it anywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
import webob

from cyborg import db, errors, services, work
from cyborg.arqs import binding, invariants, release, removal, service
from cyborg.arqs.removal import GivenUp
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import query
from cyborg.inventory import report as inventory_report
from cyborg.inventory.changes import provider_uuid
from cyborg.placement import sync
from cyborg.tests import boots, hosts
from cyborg.tests.cloud import Card, Cloud, Killed

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


@pytest.fixture(autouse=True)
def host(cloud: Cloud) -> None:
    """One host with three cards, in Placement, with nothing left to be done."""
    cloud.renew()
    for card in cloud.cards.values():
        card.plugged = True
    report(cloud)


def report(cloud: Cloud) -> None:
    hosts.apply(*(card.device() for card in cloud.cards.values() if card.plugged))
    work_off(cloud)


def work_off(cloud: Cloud) -> None:
    """Do all that can be done."""
    for _ in range(3):
        cloud.let_time_pass()
        while cloud.do_one():
            pass


def boot(cloud: Cloud, letter: str) -> tuple[str, str]:
    """An instance with an accelerator of that card, and its ARQ."""
    instance, card = models.new_uuid(), cloud.cards[letter]
    cloud.placement.allocate(instance, card.provider, FPGA=1)
    (arq,) = service.create(cloud.ctx, "FPGA")
    target = boots.target(instance, device_rp_uuid=card.provider)
    binding.request_changes(cloud.ctx, {arq.uuid: target}, [])
    work_off(cloud)
    return instance, arq.uuid


def go_down() -> None:
    """The host is dead, and a conductor has noticed."""
    with db.writer() as session:
        db.update(session, models.Host, down=True)


def host_uuid(name: str = "host-1") -> str:
    (agent,) = services.list_services(host=name)
    return agent.uuid


def device_uuid(card: Card) -> str:
    with db.reader() as session:
        device = sa.select(models.Device.uuid).join(models.Deployable)
        return session.scalars(device.where(models.Deployable.name == card.name)).one()


def rows(*tables: type[models.Base]) -> dict[str, int]:
    """How many rows there are, where there are any."""
    with db.reader() as session:
        counts = {
            table.__tablename__: session.scalar(sa.select(sa.func.count()).select_from(table))
            for table in tables
        }
    return {name: count for name, count in counts.items() if count}


def assert_nothing_is_left(cloud: Cloud) -> None:
    assert rows(*OF_HOST, models.Work) == {}
    assert cloud.placement.below(hosts.ROOT) == {}


def offered(cloud: Cloud, letter: str) -> int:
    ((total, reserved),) = cloud.placement.offered(cloud.cards[letter].provider).values()
    return total - reserved


# Requests that wait for a dead host.


@pytest.mark.every_database
def test_a_request_whose_host_never_cleans_can_be_found_and_released(cloud: Cloud) -> None:
    instance, arq = boot(cloud, "b")
    cloud.agent = "is away"
    cloud.placement.release(instance)
    release.delete_instance_arqs(cloud.ctx, instance)
    work_off(cloud)
    assert service.list_arqs(cloud.ctx) == []
    (found,) = service.list_arqs(cloud.ctx, state=models.DELETING)
    assert (found.uuid, found.hostname) == (arq, hosts.ROOT)
    assert offered(cloud, "b") == 2
    with pytest.raises(errors.Conflict, match="not known to be down"):
        removal.release_arq(cloud.ctx, arq, force=False)
    go_down()

    (given_up,) = removal.release_arq(cloud.ctx, arq, force=False).arqs

    assert (given_up.uuid, given_up.state, given_up.host_step) == (arq, models.DELETING, "clean")
    assert "the agent does not answer" in str(given_up.last_error)
    work_off(cloud)
    assert rows(models.Arq, models.Work) == {}
    assert offered(cloud, "b") == 3
    with pytest.raises(errors.NotFound):
        removal.release_arq(cloud.ctx, arq, force=True)


@pytest.mark.every_database
def test_what_is_prepared_bound_unbound_or_failed_can_be_released(cloud: Cloud) -> None:
    _, bound = boot(cloud, "a")
    instance, unbound = boot(cloud, "b")
    _, failed = boot(cloud, "b")
    cloud.agent = "is away"
    binding.request_changes(cloud.ctx, {}, [unbound])
    cloud.placement.release(instance)
    with db.writer() as session:
        started = models.Arq.uuid == failed
        db.update(session, models.Arq, started, state=models.BIND_STARTED)
        binding.fail(session, failed, "made up")
        work.want(session, work.HOST_STEP, session.scalars(sa.select(models.AttachHandle.uuid)))
    _, preparing = boot(cloud, "c")
    go_down()

    steps = {
        uuid: removal.release_arq(cloud.ctx, uuid, force=False).arqs[0].host_step
        for uuid in (bound, preparing, unbound, failed)
    }

    assert steps == {bound: None, preparing: "prepare", unbound: "clean", failed: "clean"}
    work_off(cloud)
    left = {unbound: models.UNBOUND, failed: models.BIND_FAILED}
    assert boots.states(cloud.ctx) == left
    assert boots.handles(cloud.ctx) == []
    assert rows(models.Work) == {}
    assert [offered(cloud, letter) for letter in "abc"] == [3, 3, 3]
    for uuid in left:
        with pytest.raises(errors.Conflict, match="without an attach handle"):
            removal.release_arq(cloud.ctx, uuid, force=True)


def test_a_host_that_is_up_can_be_given_up_on_by_force(cloud: Cloud) -> None:
    _, arq = boot(cloud, "b")
    cloud.agent = "fails"
    (stuck,) = boots.arqs(cloud.ctx)
    with pytest.raises(errors.Conflict):
        removal.release_arq(cloud.ctx, arq, force=False)
    removal.release_arq(cloud.ctx, arq, force=True)
    work_off(cloud)
    assert boots.states(cloud.ctx) == {stuck: models.INITIAL}
    # What is only asked for holds nothing yet.
    boots.bind(cloud.ctx, [stuck], models.new_uuid(), device_rp_uuid=cloud.cards["a"].provider)
    with pytest.raises(errors.Conflict):
        removal.release_arq(cloud.ctx, stuck, force=False)
    assert removal.release_arq(cloud.ctx, stuck, force=True).arqs[0].state == models.BIND_STARTED
    work_off(cloud)
    assert rows(models.Arq, models.Work) == {}


def test_a_step_that_ends_after_all_changes_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, arq = boot(cloud, "b")
    release.delete_arqs(cloud.ctx, [arq])
    cleaned: list[GivenUp] = []

    def clean(*_arguments: object) -> None:
        cleaned.append(removal.release_arq(cloud.ctx, arq, force=True))

    monkeypatch.setattr("cyborg.rpc.run_host_step", clean)
    work_off(cloud)
    assert len(cleaned) == 1
    assert rows(models.Arq, models.Work) == {}


# Hosts.


@pytest.mark.every_database
def test_a_host_is_removed_with_all_that_it_has(cloud: Cloud) -> None:
    instance, serving = boot(cloud, "a")
    other, leaving = boot(cloud, "b")
    cloud.agent = "is away"
    cloud.placement.release(other)
    release.delete_instance_arqs(cloud.ctx, other)
    work_off(cloud)
    uuid = host_uuid()
    with pytest.raises(errors.Conflict, match="host-1 is up"):
        removal.remove_host(uuid, force=True)
    go_down()
    with pytest.raises(errors.Conflict, match=f"{serving} \\(instance {instance}\\)"):
        removal.remove_host(uuid, force=False)
    assert len(query.list_devices()) == 3

    given_up = removal.remove_host(uuid, force=True)

    assert {arq.uuid: arq.host_step for arq in given_up.arqs} == {serving: None, leaving: "clean"}
    assert len(given_up.devices) == 3
    assert set(given_up.resource_providers) == {card.provider for card in cloud.cards.values()}
    assert services.list_services() == []
    assert query.list_devices() == []
    assert rows(models.Arq) == {}
    with pytest.raises(errors.NotFound):
        removal.remove_host(uuid, force=True)
    # What a guest still has of a provider is Nova's affair; nobody else is offered any of it.
    work_off(cloud)
    provider = cloud.cards["a"].provider
    assert cloud.placement.below(hosts.ROOT).keys() == {provider}
    assert cloud.placement.offered(provider) == {"FPGA": (3, 3)}
    assert rows(*OF_HOST) == {"resource_providers": 1, "hosts": 1}
    cloud.placement.release(instance)
    work_off(cloud)
    assert_nothing_is_left(cloud)


def test_what_is_removed_stays_removed_whatever_placement_says(cloud: Cloud) -> None:
    go_down()
    cloud.placement.before = lambda method, path: webob.Response(status=503)
    removal.remove_host(host_uuid(), force=False)
    work_off(cloud)
    assert rows(*OF_HOST) == {"resource_providers": 3, "hosts": 1}
    cloud.placement.before = None
    # Somebody has tidied up the one part, and the tree of another is gone with its root.
    cloud.placement.call("DELETE", f"/resource_providers/{cloud.cards['a'].provider}")
    work_off(cloud)
    assert_nothing_is_left(cloud)


def test_a_host_that_placement_never_knew_can_be_removed(cloud: Cloud) -> None:
    hosts.apply(host="host-2")
    go_down()
    removal.remove_host(host_uuid("host-2"), force=False)
    work_off(cloud)
    assert [found.host for found in services.list_services()] == ["host-1"]
    assert rows(models.Host) == {"hosts": 1}


def test_a_conductor_is_no_host(cloud: Cloud) -> None:
    uuid = models.new_uuid()
    services.sign(uuid, "a/1", "a")
    with pytest.raises(errors.Conflict, match="is a conductor"):
        removal.remove_host(uuid, force=True)
    with pytest.raises(errors.NotFound):
        removal.remove_host(models.new_uuid(), force=True)


@pytest.mark.parametrize("works", [False, True])
def test_a_host_that_comes_back_is_as_new(cloud: Cloud, *, works: bool) -> None:
    go_down()
    before = host_uuid()
    removal.remove_host(before, force=False)
    if works:
        work_off(cloud)
    report(cloud)
    assert (host_uuid() == before) is not works
    assert [found.state for found in services.list_services()] == [services.UP]
    assert len(query.list_devices()) == 3
    cloud.placement.assert_right("host-1")
    assert rows(models.Work) == {}


@pytest.mark.parametrize("before", [True, False])
def test_whoever_is_killed_in_the_middle(cloud: Cloud, *, before: bool) -> None:
    instance, _ = boot(cloud, "a")
    other, _ = boot(cloud, "b")
    cloud.placement.release(other)
    release.delete_instance_arqs(cloud.ctx, other)
    killed = 0
    for commits in range(100):
        cloud.commits_left, cloud.kill_before = commits, before
        try:
            with contextlib.suppress(errors.NotFound, LookupError, ValueError):
                go_down()
                removal.remove_host(host_uuid(), force=True)
            cloud.placement.release(instance)
            cloud.let_time_pass()
            while cloud.do_one():
                pass
        except Killed:
            killed += 1
            cloud.live()
            assert invariants.violations() == []
        else:
            break
    cloud.live()
    work_off(cloud)
    assert killed >= 5
    assert_nothing_is_left(cloud)
    assert rows(models.Arq) == {}


def rename(*devices: base.Device) -> None:
    """The agent of the one machine calls it host-2 from now on; its root is as before."""
    found = hosts.report(*devices, host="host-2")
    inventory_report.apply_report(dataclasses.replace(found, node=hosts.ROOT))


@pytest.mark.every_database
def test_a_host_that_was_renamed_is_offered_once(cloud: Cloud) -> None:
    # Its drivers name what they find after the host.
    renamed = hosts.device("a", hosts.deployable("host-2_a"))
    rename(renamed)
    work_off(cloud)
    old, new = cloud.cards["a"].provider, provider_uuid("host-2_a")
    assert cloud.placement.candidates("FPGA") >= {old, new}
    with db.writer() as session:
        db.update(session, models.Host, models.Host.name == "host-1", down=True)

    removal.remove_host(host_uuid("host-1"), force=False)

    work_off(cloud)
    assert cloud.placement.below(hosts.ROOT).keys() == {new}
    assert [found.host for found in services.list_services()] == ["host-2"]
    cloud.placement.assert_right("host-2")


@pytest.mark.parametrize("new_first", [True, False])
def test_a_renamed_host_takes_over_what_bears_the_same_name(
    cloud: Cloud, *, new_first: bool
) -> None:
    guest = models.new_uuid()
    card = cloud.cards["a"]
    cloud.placement.allocate(guest, card.provider, FPGA=1)
    # While the old name has it, the new one cannot.
    rename(card.device())
    (agent,) = services.list_services(host="host-2")
    assert "host host-1 has one of that name" in agent.driver_errors[hosts.DRIVER]
    with db.writer() as session:
        db.update(session, models.Host, models.Host.name == "host-1", down=True)
    removal.remove_host(host_uuid("host-1"), force=True)
    rename(card.device())
    names = ["host-2", "host-1"] if new_first else ["host-1", "host-2"]
    for name in names:
        with contextlib.suppress(work.TryLater):
            sync.sync_host(cloud.conf, name, lambda: None)
    work_off(cloud)

    # The guest's allocation has come through it, and it never was withdrawn.
    assert cloud.placement.below(hosts.ROOT).keys() == {card.provider}
    assert offered(cloud, "a") == 3
    cloud.placement.assert_right("host-2")
    assert rows(models.Host, models.Work) == {"hosts": 1}
    cloud.placement.release(guest)


@pytest.mark.every_database
def test_a_removal_and_binds_at_once_leave_nothing_behind(cloud: Cloud) -> None:
    requests = boots.arqs(cloud.ctx, 3, {"resources:FPGA": "1"})
    go_down()
    uuid = host_uuid()
    ready = threading.Barrier(4)

    def meanwhile(act: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            ready.wait()
            with contextlib.suppress(errors.CyborgError):
                act()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def bind(arq: str) -> None:
        instance, provider = models.new_uuid(), cloud.cards["a"].provider
        boots.bind(cloud.ctx, [arq], instance, device_rp_uuid=provider)
        claimed = work.claim(f"bind#{arq}", 600.0, [work.BIND])
        if claimed is not None:
            binding.bind_instance(claimed)
            work.finish(claimed)

    threads = [meanwhile(lambda arq=arq: bind(arq)) for arq in requests]  # type: ignore[misc]
    threads.append(meanwhile(lambda: removal.remove_host(uuid, force=True)))
    for thread in threads:
        thread.join()

    work_off(cloud)
    assert_nothing_is_left(cloud)
    assert boots.handles(cloud.ctx) == []
    assert models.BOUND not in boots.states(cloud.ctx).values()


# Devices.


@pytest.mark.every_database
def test_a_device_that_is_gone_but_held_can_be_removed(cloud: Cloud) -> None:
    card = cloud.cards["b"]
    instance, arq = boot(cloud, "b")
    uuid = device_uuid(card)
    with pytest.raises(errors.Conflict, match="would come back"):
        removal.remove_device(uuid, force=True)
    card.plugged = False
    report(cloud)
    with pytest.raises(errors.Conflict, match=arq):
        removal.remove_device(uuid, force=False)

    given_up = removal.remove_device(uuid, force=True)

    assert (given_up.devices, given_up.resource_providers) == ((uuid,), (card.provider,))
    # What is gone needs no cleaning.
    assert [(found.uuid, found.host_step) for found in given_up.arqs] == [(arq, None)]
    with pytest.raises(errors.NotFound):
        removal.remove_device(uuid, force=True)
    cloud.placement.release(instance)
    work_off(cloud)
    assert rows(models.Arq, models.Work) == {}
    cloud.placement.assert_right("host-1")
    assert len(cloud.placement.below(hosts.ROOT)) == 2
    card.plugged = True
    report(cloud)
    assert len(query.list_devices()) == 3


@pytest.mark.every_database
def test_a_device_of_a_dead_host_can_be_removed_and_comes_back_with_it(cloud: Cloud) -> None:
    card = cloud.cards["a"]
    uuid = device_uuid(card)
    go_down()
    assert removal.remove_device(uuid, force=False).devices == (uuid,)
    work_off(cloud)
    assert cloud.placement.below(hosts.ROOT).keys() == {
        cloud.cards[letter].provider for letter in "bc"
    }
    # The same report as before, word for word.
    report(cloud)
    assert len(query.list_devices()) == 3
    cloud.placement.assert_right("host-1")
