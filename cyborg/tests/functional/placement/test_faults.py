# SPDX-License-Identifier: Apache-2.0
"""Syncs of a host that are killed, lose their claim or get no answer from the real Placement."""

from __future__ import annotations

import socket

import pytest
import webob
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import client, desired, local, sync
from cyborg.tests import hosts
from cyborg.tests.placement_server import PlacementServer

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.slow]

NAME = "host-1_a"
A = provider_uuid(NAME)


def _disable(status: str = "maintaining") -> None:
    with db.writer() as session:
        db.update(session, models.Device, status=status)


def test_a_device_is_disabled_even_if_placement_was_down(
    placement: PlacementServer, card: str
) -> None:
    _disable()
    placement.before = lambda method, path: webob.Response(status=503)
    with pytest.raises(client.PlacementError, match="503"):
        placement.sync()
    placement.before = None
    placement.sync()
    assert placement.offered(A) == {"FPGA": (4, 4)}


def _sync_in_vain(placement: PlacementServer) -> None:
    """Placement is asked, and its answer is given up."""
    placement.delay_after = 0
    with pytest.raises(client.PlacementError, match="504"):
        placement.sync()


def test_what_was_given_up_is_not_carried_out_after_what_was_wanted_since(
    placement: PlacementServer, card: str
) -> None:
    _disable()
    placement.sync()
    _disable(models.ENABLED)
    _sync_in_vain(placement)
    _disable()
    placement.calls.clear()

    placement.sync()

    change = f"PUT /resource_providers/{A}/inventories"
    assert [call for call in placement.calls if call.startswith("PUT")] == [change]
    assert placement.carry_out() == [409]
    assert placement.offered(A) == {"FPGA": (4, 4)}
    # It is known now how it was left, and that costs nothing more.
    placement.calls.clear()
    placement.sync()
    assert len(placement.calls) == 1


@pytest.mark.parametrize("refused", ["traits", "inventories"])
def test_what_was_given_up_is_minded_until_the_provider_is_written(
    placement: PlacementServer, card: str, refused: str
) -> None:
    """An answer alone does not keep Placement from carrying out what it was asked before."""
    _disable()
    _sync_in_vain(placement)
    _disable(models.ENABLED)
    hosts.apply(hosts.card(traits=("CUSTOM_NEW",)))
    path = f"/resource_providers/{A}/{refused}"
    placement.before = lambda method, at: (
        webob.Response(status=400) if (method, at) == ("PUT", path) else None
    )
    with pytest.raises(work.TryLater):
        placement.sync()
    placement.before = None

    # The traits come last, and the provider has been written by then.
    assert bool(desired.unsure([A])) == (refused == "inventories")
    if refused == "inventories":
        placement.sync()
    assert placement.carry_out() == [409]
    placement.sync()
    assert not desired.unsure([A])


def test_what_was_given_up_is_not_minded_until_the_last_allocation_is_gone(
    placement: PlacementServer, card: str
) -> None:
    """A class that is not offered any more stays as long as somebody has some of it."""
    consumer = models.new_uuid()
    placement.allocate(consumer, A, FPGA=1)
    with db.writer() as session:
        its = (models.Attribute.key == base.RESOURCE_CLASS_KEY,)
        db.update(session, models.Attribute, *its, value="CUSTOM_NEW")
    with pytest.raises(work.TryLater, match="still allocated"):
        placement.sync()
    _disable()
    placement.delay_after = 1
    with pytest.raises(client.PlacementError, match="504"):
        placement.sync()
    _disable(models.ENABLED)
    assert desired.unsure([A])

    with pytest.raises(work.TryLater, match="still allocated"):
        placement.sync()

    assert not desired.unsure([A])
    assert placement.carry_out() == [409]
    assert placement.offered(A) == {"CUSTOM_NEW": (4, 0), "FPGA": (4, 4)}
    placement.release(consumer)
    placement.sync()


def test_what_was_answered_before_a_fault_is_not_minded(
    placement: PlacementServer, root: str
) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b"))
    placement.sync()
    _disable()
    placement.delay_after = 1
    with pytest.raises(client.PlacementError, match="504"):
        placement.sync()

    uuids = [provider_uuid(f"host-1_{name}") for name in "ab"]
    assert len(desired.unsure(uuids)) == 1
    placement.sync()


def test_placement_that_cannot_be_reached(placement: PlacementServer, conf: cfg.ConfigOpts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        local.point_at(conf, f"http://127.0.0.1:{listener.getsockname()[1]}")
    hosts.apply(hosts.card())
    with pytest.raises(ka_exc.ConnectFailure):
        placement.sync()


def test_a_lost_claim_stops_before_the_next_write(
    placement: PlacementServer, conf: cfg.ConfigOpts, root: str
) -> None:
    def lost() -> None:
        raise work.LeaseLost("placement/host-1")

    hosts.apply(hosts.card())
    with pytest.raises(work.LeaseLost):
        sync.sync_host(conf, "host-1", lost)
    assert {call.split()[0] for call in placement.calls} == {"GET"}


class _Killed(BaseException):
    """What cannot be caught: the process is gone."""


@pytest.mark.parametrize("then", ["stays", "vanishes", "changes"])
def test_killed_at_any_step_the_next_run_puts_it_right(
    placement: PlacementServer, conf: cfg.ConfigOpts, root: str, then: str
) -> None:
    """Killed at each checkpoint of a sync that makes, changes and deletes providers."""
    later = {
        "stays": [hosts.card("a", range(3), traits=("CUSTOM_X",)), hosts.card("b")],
        "vanishes": [],
        "changes": [
            hosts.card("a", range(2), resource_class="CUSTOM_Z", traits=()),
            hosts.card("b"),
        ],
    }
    placement.answer_at_once(conf)
    for moment in range(20):
        hosts.apply(hosts.card("a", range(4), traits=("CUSTOM_Y",)), hosts.card("c"))
        placement.sync()
        hosts.apply(hosts.card("a", range(3), traits=("CUSTOM_X",)), hosts.card("b"))
        survived = _sync_until(conf, moment)
        hosts.apply(*later[then])
        placement.sync()
        placement.assert_right("host-1")
        if survived:
            break
    assert survived
    assert moment > 5


def _sync_until(conf: cfg.ConfigOpts, moment: int, host: str = "host-1") -> bool:
    """Sync, killed at the checkpoint of that number; True where there are not as many."""
    moments = iter(range(moment))

    def kill() -> None:
        if next(moments, None) is None:
            raise _Killed

    try:
        sync.sync_host(conf, host, kill)
    except _Killed:
        return False
    return True


def test_a_provider_has_a_new_host_before_it_is_touched(
    placement: PlacementServer, conf: cfg.ConfigOpts, card: str
) -> None:
    placement.make_provider("host-1_2.example")
    hosts.apply(hosts.card("2_a"))
    placement.sync()
    hosts.apply(host="host-1")
    hosts.apply(hosts.card("2_a"), host="host-1_2")
    assert not _sync_until(conf, 1, "host-1_2")
    placement.sync()
    assert placement.offered(provider_uuid("host-1_2_a")) == {"FPGA": (4, 0)}


@pytest.mark.parametrize("vanishes", [False, True])
def test_every_answer_may_be_lost(
    placement: PlacementServer, conf: cfg.ConfigOpts, root: str, *, vanishes: bool
) -> None:
    """Placement does what it was asked, but the conductor never hears so."""
    placement.answer_at_once(conf)
    for moment in range(20):
        hosts.apply()
        placement.sync()
        hosts.apply(hosts.card("a"), hosts.card("b"))
        placement.lose_answer_after = moment
        try:
            placement.sync()
        except client.PlacementError:
            lost = True
        else:
            lost = False
        placement.lose_answer_after = None
        if vanishes:
            hosts.apply()
        placement.sync()
        placement.assert_right("host-1")
        if not lost:
            break
    assert not lost
    assert moment > 5
