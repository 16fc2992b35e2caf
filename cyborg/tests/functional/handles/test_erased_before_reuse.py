# SPDX-License-Identifier: Apache-2.0
"""What one guest wrote is erased before another may read it, though the disk was away meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from oslo_config import cfg

from cyborg.arqs import service
from cyborg.audits import consistency
from cyborg.db import models
from cyborg.handles import release
from cyborg.hosts import removal
from cyborg.inventory import query
from cyborg.tests import hosts
from cyborg.tests.cloud import HANDLES, Cloud
from cyborg.tests.mounted_api import Api

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


def test_the_record_of_a_disk_that_never_comes_back_is_removed(cloud, ctx) -> None:
    _pull_while_dirty(cloud, "c", first="pull")
    (device,) = query.list_devices(missing=True)

    given_up = removal.remove_device(device.uuid, force=False)
    cloud.work_off()

    (arq,) = given_up.arqs
    assert arq.host_step == "clean"
    assert "cannot clean it" in (arq.last_error or "")
    assert cloud.rows(models.Arq, models.Work) == {}
    assert query.list_devices(missing=True) == []


@pytest.fixture
def api(conf: cfg.ConfigOpts, cloud: Cloud) -> Api:
    conf.set_override("auth_strategy", "noauth", group="api")
    return Api(conf)


def listed(api: Api, query: str) -> list[str]:
    path = f"/v2/accelerator_requests?all_projects=true&{query}"
    found: list[dict[str, Any]] = api.call("GET", path)["arqs"]
    return [each["uuid"] for each in found]


def deleting(api: Api, query: str = "") -> list[str]:
    return listed(api, f"state=Deleting{query}")


@pytest.mark.every_database
def test_they_are_found_by_instance_and_sorted_by_when_they_were_made(cloud, api) -> None:
    instances, arqs = zip(*(cloud.boot("b") for _ in range(3)), strict=True)
    cloud.agent = "is away"
    for instance in reversed(instances):
        cloud.placement.release(instance)
        release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()

    for instance, arq in zip(instances, arqs, strict=True):
        assert deleting(api, f"&instance={instance}") == [arq]
        assert listed(api, f"instance={instance}") == []
    first, second, third = arqs
    assert deleting(api, "&sort_key=created_at") == [first, second, third]
    descending = "&sort_key=created_at&sort_dir=desc&limit=2"
    assert deleting(api, descending) == [third, second]
    assert deleting(api, f"{descending}&marker={second}") == [first]
    assert deleting(api, "&sort_key=instance_uuid") == [
        arq for _, arq in sorted(zip(instances, arqs, strict=True))
    ]
    cloud.agent = "works"
    cloud.work_off()
    assert deleting(api) == []
