# SPDX-License-Identifier: Apache-2.0
"""What contradicts itself is refused before anything is withdrawn or written."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from cyborg.db import models
from cyborg.programming import program
from cyborg.tests import messages
from cyborg.tests.fpga import Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import RP

AES, ZIP = (program.function_trait("FAKE", function) for function in ("aes", "zip"))


def profile(card: Card, *groups: dict[str, str]) -> requests.Response:
    """Create a device profile whose name is its answer's."""
    asked = [{"resources:FPGA": "1"} | group for group in groups]
    body = [{"name": f"dp-{models.new_uuid()}", "groups": asked}]
    return card.site.ask("POST", "/device_profiles", body)


def arqs(card: Card, *groups: dict[str, str]) -> list[str]:
    """The ARQs of a new profile."""
    name = profile(card, *groups).json()["name"]
    created = card.site.call("POST", "/accelerator_requests", {"device_profile_name": name})
    return [arq["uuid"] for arq in created["arqs"]]


def patch(card: Card, uuids: list[str]) -> requests.Response:
    """Bind them to the card, for one instance."""
    instance = models.new_uuid()
    wanted = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": instance}
    changes = [{"path": f"/{key}", "op": "add", "value": val} for key, val in wanted.items()]
    return card.site.ask("PATCH", "/accelerator_requests", dict.fromkeys(uuids, changes))


def said(answer: requests.Response) -> str:
    assert answer.status_code == 400, answer.text
    return str(answer.json())


@pytest.fixture
def aes(single: Card) -> Card:
    """The card with a function that it offers."""
    single.run(single.image("aes"))
    return single


def assert_untouched(card: Card) -> None:
    assert card.runs()["function_id"] == "aes"
    assert card.operation()["function_id"] is None
    assert AES in card.traits()


def test_a_profile_or_a_pool_that_contradicts_itself(aes: Card) -> None:
    """The function is that of another trait, image or name than is asked for as well."""
    aes.image("aes", accel_function_name="Aes")
    image = aes.image("zip")
    asks_for_zip = {f"trait:{ZIP}": "required"}
    for other in (asks_for_zip, {"accel:bitstream_id": image}, {"accel:function_name": "Zip"}):
        text = said(profile(aes, {}, {"accel:function_id": "aes"} | other))
        assert "groups[1] can never be bound" in text

    text = said(profile(aes, {"accel:bitstream_id": image, f"trait:{AES}": "required"}))
    assert f"image {image}, whose function is zip" in text
    fits = profile(aes, {"accel:bitstream_id": image} | asks_for_zip)
    assert fits.status_code == 201, fits.text

    # Nor can one be replaced by such a one.
    groups = [{"resources:FPGA": "1", "accel:function_id": "aes"} | asks_for_zip]
    body = {"name": "dp", "groups": groups, "description": None, "visibility": "public"}
    path = f"/device_profiles/{fits.json()['uuid']}"
    answer = aes.site.ask("PUT", path, body | {"projects": []}, "2.4")
    assert "can never be bound" in said(answer)

    pool = {"name": "pool", "function_id": "aes", "free": 1, "max_devices": 1}
    wrongs: tuple[dict[str, Any], ...] = ({"image_uuid": image}, {"traits": [ZIP]})
    for wrong in wrongs:
        answer = aes.site.ask("POST", "/function_pools", pool | wrong, "2.4")
        assert "The function pool can never be filled" in said(answer)
    assert aes.site.call("GET", "/function_pools", version="2.4")["function_pools"] == []


def test_what_glance_says_only_later_is_refused_then(aes: Card, images: GlanceServer) -> None:
    """When an ARQ is made, or else when it is to be bound."""
    image = images.upload("later", b'{"function": "zip"}')
    group = {"accel:bitstream_id": image, f"trait:{AES}": "required"}
    name = profile(aes, group).json()["name"]
    made = {"device_profile_name": name}
    (asked,) = aes.site.call("POST", "/accelerator_requests", made)["arqs"]
    images.describe(image, **{"accel:function_id": "zip"})

    early, late = aes.site.ask("POST", "/accelerator_requests", made), patch(aes, [asked["uuid"]])

    for answer in (early, late):
        assert f"image {image}, whose function is zip" in said(answer)
    assert_untouched(aes)


def test_two_programs_for_one_deployable(aes: Card) -> None:
    for function in ("zip", "gzip"):
        aes.image(function)
    for other in ({}, {"accel:function_id": "gzip"}):
        both = arqs(aes, {"accel:function_id": "zip"}, other)
        text = said(patch(aes, both))
        assert "cannot be programmed with function zip for one ARQ" in text, other
        assert_untouched(aes)
    same = arqs(aes, *[{"accel:function_id": "zip"}] * 2)
    assert patch(aes, same).status_code == 202
    for arq in same:
        aes.bound(arq)


def test_a_glance_that_does_not_answer_refuses_nothing(
    glance_line: messages.Wire, aes: Card
) -> None:
    image = aes.image("zip")
    glance_line.cut()

    answer = profile(aes, {"accel:function_id": "aes", "accel:bitstream_id": image})

    assert answer.status_code == 201, answer.text
