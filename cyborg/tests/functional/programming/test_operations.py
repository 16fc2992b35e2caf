# SPDX-License-Identifier: Apache-2.0
"""Programming, from the API to the fake card: real Glance, real Placement, real messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus, server
from typing import Any

import pytest
import requests
from oslo_config import cfg

from cyborg import work
from cyborg.db import models
from cyborg.tests import messages
from cyborg.tests.fpga import HANDLES, Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import RP, until

AES, ZIP = "aes-128", "zip-9"
AES_TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"


def test_a_card_with_one_program_is_offered_when_it_has_one(single: Card) -> None:
    assert single.offered() == 0
    image = single.image(AES)

    operation = single.programmed(image_uuid=image)

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


@pytest.mark.parametrize("key", ["image_uuid", "function_id"])
def test_what_it_runs_is_not_written_again(single: Card, key: str) -> None:
    asked = {"image_uuid": single.image(AES), "function_id": AES}[key]
    assert single.programmed(**{key: asked})["error"] is None
    written_at = single.runs()["programmed_at"]

    again = single.program(**{key: asked}).json()

    assert again["state"] == "succeeded"
    assert again["history"][-1]["text"].endswith("already.")
    assert single.runs()["programmed_at"] == written_at


def test_an_image_by_its_name_that_it_runs_is_not_written_again(single: Card) -> None:
    single.run(single.image(AES))
    written_at = single.runs()["programmed_at"]

    again = single.programmed(image_name=AES)

    assert again["history"][-1]["text"].endswith("already.")
    assert single.runs()["programmed_at"] == written_at


def test_another_function_takes_the_place_of_the_first(single: Card) -> None:
    single.run(single.image(AES))
    single.run(single.image(ZIP))

    assert single.runs()["function_id"] == ZIP
    assert AES_TRAIT not in single.traits()
    assert "CUSTOM_FPGA_FUNCTION_ID_FAKE_ZIP9" in single.traits()


def test_nothing_is_offered_while_it_is_written(dynamic: Card) -> None:
    assert dynamic.offered() == HANDLES
    dynamic.site.hang("program")

    dynamic.program(image_uuid=dynamic.image(AES))
    until(dynamic.is_writing)

    assert dynamic.runs()["in_doubt"]
    assert dynamic.offered() == 0
    refused = dynamic.ask_to_bind(dynamic.arq(), models.new_uuid())
    assert refused.status_code == 409
    assert "is being programmed" in refused.text

    dynamic.site.obey()
    dynamic.site.hurry(lambda: dynamic.operation()["state"] == "succeeded")
    assert dynamic.offered() == HANDLES


def test_of_two_requests_one_wins(dynamic: Card) -> None:
    dynamic.site.hang("program")
    first = dynamic.program(image_uuid=dynamic.image(AES)).json()

    other = dynamic.program(image_uuid=dynamic.image(ZIP))
    same = dynamic.program(image_uuid=first["image_uuid"])

    assert other.status_code == 409
    assert first["uuid"] in other.text
    assert same.json()["uuid"] == first["uuid"]
    dynamic.site.obey()
    assert dynamic.ended(first["uuid"])["state"] == "succeeded"


def test_what_a_guest_has_is_not_programmed(dynamic: Card) -> None:
    arq = dynamic.bind()
    dynamic.bound(arq)

    refused = dynamic.program(image_uuid=dynamic.image(AES))

    assert refused.status_code == 409
    assert arq in refused.text
    assert dynamic.runs()["function_id"] is None


def test_what_a_guest_runs_may_be_asked_for_by_the_name_of_its_image(dynamic: Card) -> None:
    dynamic.run(dynamic.image(AES))
    dynamic.image(ZIP)
    arq = dynamic.bind(function_id=AES)
    dynamic.bound(arq)
    written_at = dynamic.runs()["programmed_at"]

    same, other = dynamic.programmed(image_name=AES), dynamic.programmed(image_name=ZIP)

    assert (same["state"], same["error"]) == ("succeeded", None)
    assert same["history"][-1]["text"].endswith("already.")
    assert other["state"] == "failed"
    assert arq in other["error"]
    assert dynamic.runs()["programmed_at"] == written_at


def test_a_function_that_a_guest_runs_may_be_asked_for_by_its_name(dynamic: Card) -> None:
    dynamic.run(dynamic.image(AES))
    first = dynamic.bind(function_id=AES)
    dynamic.bound(first)
    written_at = dynamic.runs()["programmed_at"]
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


def test_what_placement_gives_out_later_is_not_programmed(
    glance_line: messages.Wire, dynamic: Card
) -> None:
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


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ({"accel_vendor": "0x8086"}, "accel:vendor"),
        ({"accel_board": "PAC_N3000"}, "accel:board"),
        ({"accel_region_id": "9926ab6d6c925a68aabca7d84c545738"}, "accel:region_id"),
    ],
)
def test_a_bitstream_for_other_hardware_is_not_written(
    dynamic: Card, properties: dict[str, str], word: str
) -> None:
    operation = dynamic.programmed(image_uuid=dynamic.image(AES, **properties))

    assert operation["state"] == "failed"
    assert word in operation["error"]
    assert dynamic.offered() == HANDLES


def test_a_bitstream_for_this_hardware_is_written(dynamic: Card) -> None:
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


class _Busy(server.BaseHTTPRequestHandler):
    """A Glance that is overloaded."""

    def do_GET(self) -> None:
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def busy_glance(images: GlanceServer, conf: cfg.ConfigOpts) -> Iterator[None]:
    http = server.ThreadingHTTPServer(("127.0.0.1", 0), _Busy)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{http.server_port}"
    conf.set_override("endpoint_override", url, group="glance")
    yield
    http.shutdown()
    http.server_close()


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


def test_an_image_that_is_not_there_fails(dynamic: Card) -> None:
    missing = models.new_uuid()

    operation = dynamic.programmed(image_uuid=missing)

    assert operation["state"] == "failed"
    assert missing in operation["error"]


@pytest.mark.parametrize(("at", "left"), [("start", AES), ("middle", None), ("end", None)])
def test_what_a_failure_leaves_is_known(single: Card, at: str, left: str | None) -> None:
    single.run(single.image(AES))
    single.site.fail_at("program", at)

    operation = single.programmed(image_uuid=single.image(ZIP))

    assert operation["state"] == "failed"
    assert "out of order" in operation["error"]
    runs = single.runs()
    # At the end the hardware has the new function, which the next report tells.
    assert runs["in_doubt"] is False
    if at == "end":
        until(lambda: single.runs()["function_id"] == ZIP)
        assert single.runs()["image_uuid"] is None
    else:
        assert runs["function_id"] == left
        assert single.offered() == (HANDLES if left else 0)


class TestSynchronous:
    """PATCH …/program, as clients in the field send it."""

    @pytest.fixture
    def patch(self, dynamic: Card) -> Any:
        def send(image: str, version: str = "2.0") -> requests.Response:
            value = [{"image_uuid": image}]
            body = [{"path": "/program", "op": "replace", "value": value}]
            path = f"/deployables/{dynamic.uuid}/program"
            return dynamic.site.ask("PATCH", path, body, version)

        return send

    def test_it_answers_when_it_is_done(self, dynamic: Card, patch: Any) -> None:
        image = dynamic.image(AES)

        answer = patch(image)

        assert answer.status_code == 200
        assert answer.json()["bitstream_id"] == image
        assert patch(image).status_code == 200

    def test_it_says_what_failed(self, dynamic: Card, patch: Any) -> None:
        dynamic.site.fail("program")

        answer = patch(dynamic.image(AES))

        assert answer.status_code == 502
        assert "out of order" in answer.text

    def test_it_refuses_what_is_in_use(self, dynamic: Card, patch: Any) -> None:
        consumer = models.new_uuid()
        dynamic.site.placement.allocate(consumer, RP, FPGA=1)

        answer = patch(dynamic.image(AES))

        assert answer.status_code == 409
        dynamic.site.placement.release(consumer)

    def test_it_refuses_what_is_no_image(self, patch: Any) -> None:
        assert patch(models.new_uuid()).status_code == 400

    def test_it_does_not_wait_for_good(self, dynamic: Card, patch: Any) -> None:
        dynamic.site.conf.set_override("answer_timeout", 1, group="programming")
        dynamic.site.hang("program")

        answer = patch(dynamic.image(AES))

        assert answer.status_code == 503
        assert dynamic.operation()["uuid"] in answer.text
        dynamic.site.obey()
        assert dynamic.ended(dynamic.operation()["uuid"])["state"] == "succeeded"


def test_operations_are_forgotten_in_the_end(dynamic: Card) -> None:
    operation = dynamic.programmed(image_uuid=dynamic.image(AES))["uuid"]
    dynamic.site.conf.set_override("operation_expiry", 1, group="programming")

    def gone() -> bool:
        return dynamic.site.ask("GET", f"/operations/{operation}", None, "2.4").status_code == 404

    until(gone)
    assert not dynamic.site.work(work.PROGRAM)
