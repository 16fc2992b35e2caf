# SPDX-License-Identifier: Apache-2.0
"""Programming, from the API to the fake card: real Glance, real Placement, real messages."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import requests

from cyborg import work
from cyborg.agent import service as agent_service
from cyborg.arqs import invariants
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.tests import engine, hosts
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import RP, Site, until

AES, ZIP = "aes-128", "zip-9"
AES_TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"
HANDLES = 4


class Card:
    """The one fake card of the site, as clients and schedulers see it."""

    def __init__(self, site: Site, images: GlanceServer) -> None:
        self.site = site
        self._images = images
        self.uuid = site.call("GET", "/deployables")["deployables"][0]["uuid"]

    def image(self, function: str, **properties: str) -> str:
        """Upload a bitstream of the function."""
        known = {"accel_function_id": function} | properties
        return self._images.upload(function, json.dumps({"function": function}).encode(), **known)

    def program(self, **what: str) -> requests.Response:
        """Ask for it to be programmed."""
        return self.site.ask("POST", f"/deployables/{self.uuid}/program", what, "2.8")

    def programmed(self, **what: str) -> dict[str, Any]:
        """Have it programmed, and return the operation when it has ended."""
        answer = self.program(**what)
        assert answer.status_code == 202, answer.text
        return self.ended(answer.json()["uuid"])

    def ended(self, operation: str) -> dict[str, Any]:
        """The operation, when it has ended."""

        def read() -> dict[str, Any] | None:
            engine.make_due()
            found: dict[str, Any] = self.site.call("GET", f"/operations/{operation}", version="2.8")
            return found if found["ended_at"] else None

        return until(read)

    def operation(self) -> dict[str, Any]:
        """The latest operation."""
        path = "/operations?sort_dir=desc&sort_key=id&limit=1"
        found: dict[str, Any] = self.site.call("GET", path, version="2.8")["operations"][0]
        return found

    def is_writing(self) -> bool:
        """Whether an operation has got that far."""
        listed = self.site.call("GET", "/operations?state=writing", version="2.8")
        return bool(listed["operations"])

    def runs(self) -> dict[str, Any]:
        """What the API says that it runs."""
        path = f"/deployables/{self.uuid}"
        shown: dict[str, Any] = self.site.call("GET", path, version="2.8")["program"]
        return shown

    def offered(self) -> int:
        """How many of its handles Placement offers."""
        total, reserved = self.site.offered()
        return total - reserved

    def traits(self) -> set[str]:
        """Its provider's traits."""
        until(self.site.synced)
        return set(self.site.placement.below(hosts.ROOT)[RP].traits)

    def arq(self, **group: str) -> str:
        """An ARQ whose group asks for one handle of the card, and for what is given besides."""
        name = f"dp-{models.new_uuid()}"
        groups = [{"resources:FPGA": "1"} | {f"accel:{key}": val for key, val in group.items()}]
        self.site.call("POST", "/device_profiles", [{"name": name, "groups": groups}])
        created = self.site.call("POST", "/accelerator_requests", {"device_profile_name": name})
        return str(created["arqs"][0]["uuid"])

    def ask_to_bind(self, arq: str, instance: str) -> requests.Response:
        wanted = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": instance}
        patch = [{"path": f"/{key}", "op": "add", "value": val} for key, val in wanted.items()]
        return self.site.ask("PATCH", "/accelerator_requests", {arq: patch})

    def bind(self, instance: str | None = None, **group: str) -> str:
        """Begin to bind a new ARQ; return it."""
        arq = self.arq(**group)
        answer = self.ask_to_bind(arq, instance or models.new_uuid())
        assert answer.status_code == 202, answer.text
        return arq

    def state(self, arq: str) -> str:
        return str(self.site.call("GET", f"/accelerator_requests/{arq}")["state"])

    def resolved(self, arq: str) -> dict[str, Any]:
        """The ARQ, when its bind has ended."""

        def read() -> dict[str, Any] | None:
            engine.make_due()
            path = f"/accelerator_requests/{arq}"
            found: dict[str, Any] = self.site.call("GET", path, version="2.4")
            return found if found["state"] != "BindStarted" else None

        return until(read)


@pytest.fixture
def start(site: Site, images: GlanceServer, tmp_path: pathlib.Path) -> Any:
    """Start the site with one card of the mode."""

    def started(mode: str, **options: object) -> Card:
        folder = str(tmp_path / "loaded")
        site.start(program_mode=mode, handles_per_device=HANDLES, state_dir=folder, **options)
        return Card(site, images)

    return started


@pytest.fixture
def single(start: Any) -> Card:
    """A card with one program for all its handles; it has none yet."""
    card: Card = start("single-program")
    return card


@pytest.fixture
def dynamic(start: Any) -> Card:
    """A card that is offered whatever it runs."""
    card: Card = start("dynamic")
    return card


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
    single.programmed(**{key: asked})
    written_at = single.runs()["programmed_at"]

    again = single.program(**{key: asked}).json()

    assert again["state"] == "succeeded"
    assert again["history"][-1]["text"].endswith("already.")
    assert single.runs()["programmed_at"] == written_at


def test_an_image_by_its_name_that_it_runs_is_not_written_again(single: Card) -> None:
    single.programmed(image_uuid=single.image(AES))
    written_at = single.runs()["programmed_at"]

    again = single.programmed(image_name=AES)

    assert again["history"][-1]["text"].endswith("already.")
    assert single.runs()["programmed_at"] == written_at


def test_another_function_takes_the_place_of_the_first(single: Card) -> None:
    single.programmed(image_uuid=single.image(AES))
    single.programmed(image_uuid=single.image(ZIP))

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
    assert dynamic.resolved(arq)["state"] == "Bound"

    refused = dynamic.program(image_uuid=dynamic.image(AES))

    assert refused.status_code == 409
    assert arq in refused.text
    assert dynamic.runs()["function_id"] is None


def test_what_placement_has_given_out_is_not_programmed(dynamic: Card) -> None:
    consumer = models.new_uuid()
    dynamic.site.placement.allocate(consumer, RP, FPGA=1)

    operation = dynamic.programmed(image_uuid=dynamic.image(AES))

    assert operation["state"] == "failed"
    assert consumer in operation["error"]
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

    assert dynamic.programmed(image_uuid=dynamic.image(AES, **own))["state"] == "succeeded"


def test_an_image_that_is_not_there_fails(dynamic: Card) -> None:
    missing = models.new_uuid()

    operation = dynamic.programmed(image_uuid=missing)

    assert operation["state"] == "failed"
    assert missing in operation["error"]


@pytest.mark.parametrize(("at", "left"), [("start", AES), ("middle", None), ("end", None)])
def test_what_a_failure_leaves_is_known(single: Card, at: str, left: str | None) -> None:
    single.programmed(image_uuid=single.image(AES))
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


@pytest.mark.parametrize("asked", ["bitstream_id", "function_id", "function_name"])
def test_a_bind_programs_first(dynamic: Card, sink: NovaSink, asked: str) -> None:
    image = dynamic.image(AES, accel_function_name="cipher")
    value = {"bitstream_id": image, "function_id": AES, "function_name": "cipher"}[asked]
    dynamic.site.hang("program")
    arq = dynamic.bind(**{asked: value})
    until(dynamic.is_writing)
    assert dynamic.state(arq) == "BindStarted"
    assert sink.events == {}

    dynamic.site.obey()

    assert dynamic.resolved(arq)["state"] == "Bound"
    assert dynamic.runs()["image_uuid"] == image
    until(lambda: sink.events == {arq: "completed"})
    assert dynamic.operation()["instance_uuid"] is not None


def test_a_second_bind_of_what_runs_writes_nothing(dynamic: Card) -> None:
    dynamic.image(AES)
    first = dynamic.bind(function_id=AES)
    assert dynamic.resolved(first)["state"] == "Bound"
    written_at = dynamic.runs()["programmed_at"]

    second = dynamic.bind(function_id=AES)

    assert dynamic.resolved(second)["state"] == "Bound"
    assert dynamic.runs()["programmed_at"] == written_at


def test_a_bind_never_changes_what_another_guest_runs(dynamic: Card, sink: NovaSink) -> None:
    dynamic.image(AES), dynamic.image(ZIP)
    first = dynamic.bind(function_id=AES)
    assert dynamic.resolved(first)["state"] == "Bound"

    second = dynamic.bind(function_id=ZIP)

    failed = dynamic.resolved(second)
    assert failed["state"] == "BindFailed"
    assert first in failed["state_reason"]
    assert dynamic.runs()["function_id"] == AES
    until(lambda: sink.events == {first: "completed", second: "failed"})


def test_a_guest_does_not_change_its_own_function(dynamic: Card) -> None:
    dynamic.image(AES), dynamic.image(ZIP)
    instance = models.new_uuid()
    one, other = dynamic.arq(function_id=AES), dynamic.arq(function_id=ZIP)
    wanted = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": instance}
    patch = [{"path": f"/{key}", "op": "add", "value": val} for key, val in wanted.items()]
    dynamic.site.call("PATCH", "/accelerator_requests", {one: patch, other: patch})

    states = {dynamic.resolved(one)["state"], dynamic.resolved(other)["state"]}

    assert "BindFailed" in states
    if "Bound" in states:
        (bound,) = (arq for arq in (one, other) if dynamic.state(arq) == "Bound")
        assert dynamic.runs()["function_id"] == (AES if bound == one else ZIP)


def test_a_bind_fails_with_the_programming(dynamic: Card, sink: NovaSink) -> None:
    dynamic.image(AES)
    dynamic.site.fail("program")

    arq = dynamic.bind(function_id=AES)

    failed = dynamic.resolved(arq)
    assert failed["state"] == "BindFailed"
    assert "out of order" in failed["state_reason"]
    until(lambda: sink.events == {arq: "failed"})
    assert dynamic.runs()["in_doubt"] is False


def test_an_arq_that_is_deleted_meanwhile_leaves_a_known_card(dynamic: Card) -> None:
    dynamic.image(AES)
    dynamic.site.hang("program")
    arq = dynamic.bind(function_id=AES)
    until(dynamic.is_writing)

    dynamic.site.call("DELETE", f"/accelerator_requests?arqs={arq}")
    assert dynamic.offered() == 0
    dynamic.site.obey()

    dynamic.site.hurry(lambda: dynamic.operation()["state"] == "succeeded")
    assert dynamic.runs()["function_id"] == AES
    until(lambda: dynamic.offered() == HANDLES)


def test_another_conductor_takes_over(dynamic: Card) -> None:
    site = dynamic.site
    site.hang("program")
    operation = dynamic.program(image_uuid=dynamic.image(AES)).json()["uuid"]
    until(dynamic.is_writing)

    site.replace(conductor_service.ConductorService)
    site.obey()

    assert dynamic.ended(operation)["state"] == "succeeded"
    assert dynamic.runs()["function_id"] == AES
    assert invariants.violations() == []


def test_what_the_hardware_has_lost_is_written_again_for_its_guest(
    dynamic: Card, tmp_path: pathlib.Path
) -> None:
    image = dynamic.image(AES)
    arq = dynamic.bind(function_id=AES)
    assert dynamic.resolved(arq)["state"] == "Bound"
    (loaded,) = (tmp_path / "loaded").glob("*.function")
    loaded.write_text("")

    dynamic.site.replace(agent_service.Agent)

    def recovered() -> bool:
        return dynamic.operation()["asked_by"] == "recovery"

    dynamic.site.hurry(recovered)
    assert dynamic.ended(dynamic.operation()["uuid"])["state"] == "succeeded"
    assert loaded.read_text() == AES
    assert dynamic.runs()["image_uuid"] == image
    assert dynamic.state(arq) == "Bound"


def test_what_the_hardware_has_lost_with_no_guest_is_not_offered(
    single: Card, tmp_path: pathlib.Path
) -> None:
    single.programmed(image_uuid=single.image(AES))
    assert single.offered() == HANDLES
    (loaded,) = (tmp_path / "loaded").glob("*.function")
    loaded.write_text("")

    single.site.replace(agent_service.Agent)

    until(lambda: single.runs()["function_id"] is None)
    assert single.offered() == 0
    assert AES_TRAIT not in single.traits()


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
        return dynamic.site.ask("GET", f"/operations/{operation}", None, "2.8").status_code == 404

    until(gone)
    assert not dynamic.site.work(work.PROGRAM)
