# SPDX-License-Identifier: Apache-2.0
"""What one guest wrote is erased before another may read it, though the disk was away meanwhile."""

from __future__ import annotations

import pytest

from cyborg.arqs import service
from cyborg.audits import consistency
from cyborg.db import models
from cyborg.handles import release
from cyborg.hosts import removal
from cyborg.inventory import query
from cyborg.policy import context
from cyborg.tests import hosts
from cyborg.tests.cloud import HANDLES, Cloud

pytestmark = pytest.mark.usefixtures("host_with_cards")


def _pull_while_dirty(cloud: Cloud, letter: str, *, first: str) -> None:
    """An instance of the card is deleted, and the card is pulled: before that, or after."""
    instance, _ = cloud.boot(letter)
    cloud.agent = "fails"
    card = cloud.cards[letter]
    card.plugged = first != "pull"
    cloud.report()
    cloud.placement.release(instance)
    release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()
    card.plugged = False
    cloud.report()
    cloud.agent = "works"
    cloud.work_off()


@pytest.mark.every_database
@pytest.mark.parametrize("first", ["pull", "delete"])
def test_a_disk_that_comes_back_is_erased_first(cloud: Cloud, first: str) -> None:
    _pull_while_dirty(cloud, "c", first=first)
    assert len(service.list_arqs(cloud.ctx, state=models.DELETING)) == 1
    assert cloud.offered("c") == 0
    assert consistency.violations() == []

    card = cloud.cards["c"]
    cloud.agent = "fails"
    card.plugged = True
    cloud.report()
    assert cloud.offered("c") == HANDLES - 1
    assert cloud.cleaned == set()

    cloud.agent = "works"
    cloud.work_off()
    assert len(cloud.cleaned) == 1
    assert cloud.offered("c") == HANDLES
    assert cloud.rows(models.Arq, models.Work) == {}


def test_it_is_erased_as_soon_as_it_is_reported(cloud: Cloud) -> None:
    _pull_while_dirty(cloud, "c", first="delete")
    card = cloud.cards["c"]
    card.plugged = True
    hosts.apply(*(card.device() for card in cloud.cards.values()))
    while cloud.do_one():
        pass

    assert len(cloud.cleaned) == 1


def test_a_single_handle_that_leaves_the_report_waits_too(cloud: Cloud) -> None:
    instance, _ = cloud.boot("c")
    card = cloud.cards["c"]
    card.handles = set()
    cloud.report()
    cloud.placement.release(instance)
    release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()
    assert len(service.list_arqs(cloud.ctx, state=models.DELETING)) == 1
    card.handles = set(range(HANDLES))
    cloud.report()
    assert cloud.offered("c") == HANDLES
    assert len(cloud.cleaned) == 1


def test_what_only_tidies_up_the_host_does_not_wait(cloud: Cloud) -> None:
    _pull_while_dirty(cloud, "b", first="pull")
    assert cloud.rows(models.Arq, models.Work) == {}
    assert {device.missing for device in query.list_devices()} == {False}


def test_the_record_of_a_disk_that_never_comes_back_is_removed(
    cloud: Cloud, ctx: context.RequestContext
) -> None:
    _pull_while_dirty(cloud, "c", first="pull")
    (device,) = query.list_devices(missing=True)

    given_up = removal.remove_device(device.uuid, force=False)
    cloud.work_off()

    (arq,) = given_up.arqs
    assert arq.host_step == "clean"
    assert "cannot clean it" in (arq.last_error or "")
    assert cloud.rows(models.Arq, models.Work) == {}
    assert query.list_devices(missing=True) == []
