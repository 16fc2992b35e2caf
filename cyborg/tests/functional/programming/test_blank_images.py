# SPDX-License-Identifier: Apache-2.0
"""What a guest has left in an FPGA is overwritten before anybody else gets a part of it."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.audits import consistency
from cyborg.db import models
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests.fpga import HANDLES, Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import RP, Site, until

pytestmark = pytest.mark.slow

AES = "aes-128"
POOL = {"name": "pool", "function_id": AES, "free": 1, "max_devices": 1}


@pytest.fixture
def blank(site: Site, images: GlanceServer) -> str:
    """The image that fake FPGAs are overwritten with."""
    uuid = images.upload("blank", b'{"function": ""}')
    site.conf.set_override("drivers", {"fake_driver": "required"}, group="cleaning")
    site.conf.set_override("blank_images", {"CUSTOM_FAKE_DEVICE": uuid}, group="cleaning")
    return uuid


def use(card: Card, count: int = 1, **group: str) -> list[str]:
    """Have guests, each with a handle; their instances."""
    instances = [models.new_uuid() for _ in range(count)]
    for arq in [card.bind(instance, **group) for instance in instances]:
        card.bound(arq)
    return instances


def leave(ctx: context.RequestContext, *instances: str) -> None:
    for instance in instances:
        release.delete_instance_arqs(ctx, instance)


def is_clean(site: Site) -> bool:
    return site.hurry(lambda: not site.held() and site.idle())


def cleanings(site: Site) -> list[dict[str, Any]]:
    """The operations that have overwritten, oldest first."""
    listed = site.call("GET", "/operations?sort_key=id&sort_dir=asc", version="2.4")["operations"]
    return [each for each in listed if each["asked_by"] == "cleaning"]


def test_a_region_is_overwritten_with_an_image_that_is_named(site, ctx, start_card, blank) -> None:
    site.conf.set_override("blank_images", {"FPGA": "blank"}, group="cleaning")
    card = start_card("dynamic")
    card.image(AES)
    (guest,) = use(card, function_id=AES)
    assert card.runs()["function_id"] == AES

    leave(ctx, guest)
    assert is_clean(site)

    (done,) = cleanings(site)
    assert (done["state"], done["error"]) == ("succeeded", None)
    assert card.runs()["function_id"] is None
    assert card.runs()["image_uuid"] is None
    assert card.runs()["programmed_by"] == "cleaning"
    assert card.offered() == HANDLES
    # Also after a guest that asked for nothing, who may have written it himself.
    leave(ctx, *use(card))
    assert is_clean(site)
    assert len(cleanings(site)) == 2


def test_a_card_is_overwritten_when_its_last_guest_has_left(site, ctx, start_card, blank) -> None:
    card = start_card("single-program")
    card.run(card.image(AES))
    first, second = use(card, 2)

    leave(ctx, first)
    until(lambda: card.offered() == HANDLES - 1)
    (step,) = site.hurry(lambda: [each for each in site.work("host-step") if each.last_error])
    assert "overwritten when nobody has it" in (step.last_error or "")
    assert cleanings(site) == []
    assert card.runs()["function_id"] == AES

    leave(ctx, second)
    assert is_clean(site)

    (done,) = cleanings(site)
    assert done["state"] == "succeeded"
    # It runs nothing now, so it is given to nobody who does not say what it is to run.
    assert card.offered() == 0
    assert consistency.withheld() == []


def test_a_card_of_a_pool_keeps_its_function(site, ctx, start_card, blank) -> None:
    card = start_card("single-program")
    image = card.image(AES)
    card.run(image)
    site.call("POST", "/function_pools", POOL, "2.4")
    written_at = card.runs()["programmed_at"]

    leave(ctx, *use(card, function_id=AES))
    assert is_clean(site)

    (done,) = cleanings(site)
    assert (done["state"], done["image_uuid"]) == ("succeeded", image)
    runs = card.runs()
    assert (runs["image_uuid"], runs["function_id"]) == (image, AES)
    assert runs["programmed_at"] > written_at
    assert card.offered() == HANDLES


def test_what_cannot_be_overwritten_is_given_to_nobody(site, ctx, start_card, blank) -> None:
    """And the image of its pool is not insisted on."""
    card = start_card("dynamic")
    image = card.image(AES)
    card.run(image)
    site.call("POST", "/function_pools", POOL, "2.4")
    (guest,) = use(card, function_id=AES)
    site.fail("program")
    leave(ctx, guest)
    (found,) = site.hurry(consistency.withheld)
    assert "out of order" in found.sentence
    until(lambda: card.offered() < HANDLES)
    site.hurry(lambda: len(cleanings(site)) > 1)

    site.obey()
    assert is_clean(site)

    assert consistency.withheld() == []
    assert cleanings(site)[-1]["state"] == "succeeded"
    first, *others = [each["image_uuid"] for each in cleanings(site)]
    assert (first, set(others)) == (image, {blank})
    assert card.offered() == HANDLES


def test_it_is_reserved_while_a_handle_is_cleaned_whose_guest_left_before_the_write(
    site: Site, ctx: context.RequestContext, start_card: Any, blank: str
) -> None:
    """Nova would choose it for a function, which cannot be written meanwhile."""
    card = start_card("dynamic", host_step=True)
    (guest,) = use(card)
    site.fail("clean")
    leave(ctx, guest)
    (found,) = site.hurry(consistency.withheld)
    assert "out of order" in found.sentence
    (done,) = cleanings(site)
    assert done["state"] == "succeeded"

    assert card.offered() == 0

    site.obey()
    assert is_clean(site)
    assert card.offered() == HANDLES


def test_an_allocation_that_is_given_back_late_is_waited_for(site, ctx, start_card, blank) -> None:
    card = start_card("dynamic")
    instance = models.new_uuid()
    site.placement.allocate(instance, RP, FPGA=1)
    arq = card.bind(instance)
    card.bound(arq)
    leave(ctx, instance)

    def waits_for() -> str:
        (operation,) = cleanings(site) or [{"history": [{"text": ""}]}]
        return str(operation["history"][-1]["text"])

    site.hurry(lambda: "has an allocation" in waits_for())
    assert consistency.withheld() == []
    site.placement.release(instance)
    assert is_clean(site)
    (done,) = cleanings(site)
    assert done["state"] == "succeeded"


def test_who_never_had_it_has_left_nothing(site, ctx, start_card, blank) -> None:
    card = start_card("dynamic")
    card.image(AES)
    site.fail("program")
    instance = models.new_uuid()
    assert card.resolved(card.bind(instance, function_id=AES))["state"] == "BindFailed"
    leave(ctx, instance)
    assert is_clean(site)
    assert cleanings(site) == []


def test_without_a_blank_image_it_is_not_offered(site: Site, blank: str, start_card: Any) -> None:
    site.conf.set_override("blank_images", {"CUSTOM_OTHER": blank}, group="cleaning")
    card = start_card("dynamic")
    assert card.offered() == 0
    (device,) = site.call("GET", "/devices", version="2.4")["devices"]
    assert "blank_images has no image for host-1_FakeDevice" in device["health_reason"]
