# SPDX-License-Identifier: Apache-2.0
"""Programming, from the API to the fake card: real Glance, real Placement, real messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from oslo_config import cfg

from cyborg import work
from cyborg.db import models
from cyborg.tests.fpga import HANDLES, Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.liar import Liar, Lie
from cyborg.tests.service import RP, until

pytestmark = pytest.mark.slow

AES, ZIP = "aes-128", "zip-9"
AES_TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"


def test_a_card_with_one_program_is_offered_when_it_has_one(single: Card) -> None:
    assert single.offered() == 0
    image = single.image(AES)

    operation = single.programmed(image_name=AES)

    assert (operation["state"], operation["error"]) == ("succeeded", None)
    assert [event["at"] for event in operation["history"]] == sorted(
        event["at"] for event in operation["history"]
    )
    runs = single.runs()
    assert (runs["image_uuid"], runs["function_id"]) == (image, AES)
    assert (runs["in_doubt"], runs["verified_by"]) == (False, "the fake card's memory")
    assert runs["programmed_by"] == operation["asked_by"]
    assert single.offered() == HANDLES
    assert AES_TRAIT in single.traits()

    # What it runs is not written again, whatever of it is named.
    asked = {"image_uuid": image, "function_id": AES, "image_name": AES}
    again = {key: single.program(**{key: value}).json() for key, value in asked.items()}
    # Only Glance knows which one that is.
    again["image_name"] = single.ended(again["image_name"]["uuid"])
    for operation in again.values():
        assert operation["state"] == "succeeded"
        assert operation["history"][-1]["text"].endswith("already.")
    assert single.runs()["programmed_at"] == runs["programmed_at"]

    # Another function takes its place.
    single.run(single.image(ZIP))
    assert single.runs()["function_id"] == ZIP
    assert AES_TRAIT not in single.traits()
    assert "CUSTOM_FPGA_FUNCTION_ID_FAKE_ZIP9" in single.traits()


def test_nothing_is_offered_while_it_is_written(dynamic: Card) -> None:
    assert dynamic.offered() == HANDLES
    dynamic.site.hang("program")

    first = dynamic.program(image_uuid=dynamic.image(AES)).json()
    until(dynamic.is_writing)

    # Of two requests one wins.
    other = dynamic.program(image_uuid=dynamic.image(ZIP))
    assert (other.status_code, first["uuid"] in other.text) == (409, True)
    assert dynamic.program(image_uuid=first["image_uuid"]).json()["uuid"] == first["uuid"]
    assert dynamic.runs()["in_doubt"]
    assert dynamic.offered() == 0
    refused = dynamic.ask_to_bind(dynamic.arq(), models.new_uuid())
    assert refused.status_code == 409
    assert "is being programmed" in refused.text

    dynamic.site.obey()
    assert dynamic.ended(first["uuid"])["state"] == "succeeded"
    assert dynamic.offered() == HANDLES


def test_what_a_guest_runs_may_be_asked_for_by_names(dynamic: Card) -> None:
    dynamic.run(dynamic.image(AES))
    dynamic.image(ZIP)
    first = dynamic.bind(function_id=AES)
    dynamic.bound(first)
    written_at = dynamic.runs()["programmed_at"]

    same, other = dynamic.programmed(image_name=AES), dynamic.programmed(image_name=ZIP)

    assert (same["state"], same["error"]) == ("succeeded", None)
    assert same["history"][-1]["text"].endswith("already.")
    assert (other["state"], first in other["error"]) == ("failed", True)

    # Functions have names too.
    dynamic.image(AES, accel_function_name="cipher")
    dynamic.image(ZIP, accel_function_name="squeeze")
    other = dynamic.programmed(function_name="squeeze")
    second = dynamic.bind(function_name="cipher")

    dynamic.bound(second)
    assert (other["state"], first in other["error"]) == ("failed", True)
    runs = dynamic.runs()
    assert (runs["function_name"], runs["programmed_at"]) == ("cipher", written_at)
    refused = dynamic.program(function_name="squeeze")
    assert refused.status_code == 409


def test_what_placement_has_given_out_is_not_programmed(dynamic: Card) -> None:
    consumer = models.new_uuid()
    dynamic.site.placement.allocate(consumer, RP, FPGA=1)

    refused = dynamic.program(image_uuid=dynamic.image(AES))

    assert refused.status_code == 409
    assert f"Consumer {consumer} has an allocation of provider {RP}" in refused.text
    assert dynamic.site.call("GET", "/operations", version="2.4")["operations"] == []
    assert dynamic.offered() == HANDLES
    dynamic.site.placement.release(consumer)
    dynamic.run(dynamic.image(AES))


def test_what_placement_gives_out_later_is_not_programmed(glance_line, dynamic) -> None:
    consumer = models.new_uuid()
    glance_line.cut()
    asked = dynamic.program(function_id=AES).json()["uuid"]
    dynamic.site.placement.allocate(consumer, RP, FPGA=1)
    dynamic.image(AES)
    glance_line.join()

    operation = dynamic.ended(asked)

    assert operation["state"] == "failed"
    assert consumer in operation["error"]
    # It was never withheld: whoever was given it may be about to bind.
    said = [event["text"] for event in operation["history"][1:]]
    assert [text for text in said if not text.startswith("It waits: ")] == [operation["error"]]
    assert not dynamic.runs()["in_doubt"]
    until(lambda: dynamic.offered() == HANDLES)
    dynamic.site.placement.release(consumer)


def test_only_a_bitstream_for_this_hardware_is_written(dynamic: Card) -> None:
    missing = models.new_uuid()
    region = "9926ab6d6c925a68aabca7d84c545738"
    others = {"vendor": "0x8086", "board": "PAC_N3000", "region_id": region}
    images = {f"accel:{k}": dynamic.image(AES, **{f"accel_{k}": v}) for k, v in others.items()}
    for word, image in (*images.items(), (missing, missing)):
        operation = dynamic.programmed(image_uuid=image)
        assert operation["state"] == "failed"
        assert word in operation["error"]
        assert dynamic.offered() == HANDLES

    own = {"accel_vendor": "0xabcd", "accel_board": "miss model info"}
    # Nobody knows the firmware of this card.
    own |= {"accel_version": "1.2"}
    assert dynamic.programmed(image_uuid=dynamic.image(AES, **own))["state"] == "succeeded"


def test_what_a_card_shows_after_a_false_image_is_written_counts(single: Card) -> None:
    """Its driver does not read what is in a bitstream."""
    single.run(single.image(AES))

    operation = single.programmed(image_uuid=single.image(ZIP, accel_function_id="other"))

    assert operation["state"] == "failed"
    assert operation["error"] == f"Function {ZIP} is loaded, not other"
    until(lambda: single.runs()["function_id"] == ZIP)
    assert single.runs()["image_uuid"] is None


@pytest.fixture
def busy_glance(images: GlanceServer, conf: cfg.ConfigOpts) -> Iterator[None]:
    """A Glance that is overloaded."""
    liar = Liar()
    liar.lie = Lie(503)
    conf.set_override("endpoint_override", liar.url, group="glance")
    yield
    liar.stop()


@pytest.mark.usefixtures("busy_glance")
def test_an_operation_that_waits_says_for_whom(start_card: Any) -> None:
    card = start_card("dynamic")
    operation = card.program(image_uuid=models.new_uuid()).json()["uuid"]

    def waits() -> str | None:
        found = card.site.call("GET", f"/operations/{operation}", version="2.4")
        texts = [str(event["text"]) for event in found["history"]]
        return texts[-1] if len(texts) > 1 else None

    assert until(waits).startswith("It waits: Glance answered 503: ")
    answer = card.site.ask("DELETE", f"/operations/{operation}", version="2.4")
    assert answer.status_code == 204


def test_what_a_failure_leaves_is_known(single: Card) -> None:
    images = [single.image(function) for function in (AES, ZIP)]
    single.run(images[0])
    for at, left in (("start", AES), ("middle", None), ("end", ZIP)):
        single.site.fail_at("program", at)

        operation = single.programmed(image_uuid=images[1])

        assert operation["state"] == "failed"
        assert "out of order" in operation["error"]
        runs = single.runs()
        assert runs["in_doubt"] is False
        if at == "end":
            # The hardware has the new function, which the next report tells.
            until(lambda: single.runs()["function_id"] == ZIP)
            assert single.runs()["image_uuid"] is None
        else:
            assert runs["function_id"] == left
            assert single.offered() == (HANDLES if left else 0)


def test_clients_in_the_field_are_answered_when_it_is_done(dynamic: Card) -> None:
    site, image, other = dynamic.site, dynamic.image(AES), dynamic.image(ZIP)

    def patch(image: str) -> requests.Response:
        value = [{"image_uuid": image}]
        body = [{"path": "/program", "op": "replace", "value": value}]
        return site.ask("PATCH", f"/deployables/{dynamic.uuid}/program", body)

    answer = patch(image)
    assert (answer.status_code, answer.json()["bitstream_id"]) == (200, image)
    assert patch(image).status_code == 200
    assert patch(models.new_uuid()).status_code == 400
    consumer = models.new_uuid()
    site.placement.allocate(consumer, RP, FPGA=1)
    assert patch(other).status_code == 409
    site.placement.release(consumer)
    site.fail("program")
    answer = patch(other)
    assert (answer.status_code, "out of order" in answer.text) == (502, True)
    site.obey()
    # It does not wait for good.
    site.conf.set_override("answer_timeout", 1, group="programming")
    site.hang("program")
    answer = patch(other)
    operation = dynamic.operation()["uuid"]
    assert (answer.status_code, operation in answer.text) == (503, True)
    site.obey()
    assert dynamic.ended(operation)["state"] == "succeeded"


def test_operations_are_forgotten_in_the_end(dynamic: Card) -> None:
    operation = dynamic.programmed(image_uuid=dynamic.image(AES))["uuid"]
    dynamic.site.conf.set_override("operation_expiry", 1, group="programming")

    def gone() -> bool:
        return dynamic.site.ask("GET", f"/operations/{operation}", None, "2.4").status_code == 404

    until(gone)
    assert not dynamic.site.work(work.PROGRAM)
