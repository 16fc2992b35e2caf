# SPDX-License-Identifier: Apache-2.0
"""Binds that program first, and what becomes of them when something dies."""

from __future__ import annotations

import pathlib

import pytest

from cyborg.agent import service as agent_service
from cyborg.audits import consistency
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.tests.fpga import Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import RP, until

pytestmark = pytest.mark.slow

AES, ZIP = "aes-128", "zip-9"
AES_TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"


def test_a_bind_programs_first_and_another_one_waits_for_that(
    dynamic: Card, sink: NovaSink
) -> None:
    image = dynamic.image(AES, accel_function_name="cipher")
    dynamic.site.hang("program")
    first = dynamic.bind(bitstream_id=image)
    until(dynamic.is_writing)
    assert dynamic.state(first) == "BindStarted"
    assert sink.events == {}
    second = dynamic.bind(function_id=AES)
    refused = dynamic.ask_to_bind(dynamic.arq(function_id=ZIP), models.new_uuid())
    dynamic.site.hurry(lambda: len(dynamic.site.held()) == 2)

    dynamic.site.obey()

    assert refused.status_code == 409
    for arq in (first, second):
        dynamic.bound(arq)
    assert dynamic.runs()["image_uuid"] == image
    until(lambda: sink.events == {first: "completed", second: "completed"})
    assert dynamic.operation()["instance_uuid"] is not None
    # Another bind of what runs writes nothing, whatever it names.
    written_at = dynamic.runs()["programmed_at"]
    for named in ({"bitstream_id": image}, {"function_name": "cipher"}):
        dynamic.bound(dynamic.bind(**named))
    assert dynamic.runs()["programmed_at"] == written_at
    assert len(dynamic.site.call("GET", "/operations", version="2.4")["operations"]) == 1


def test_a_bind_has_the_function_by_the_name_that_it_asks_for(dynamic: Card) -> None:
    dynamic.run(dynamic.image(AES, accel_function_name="cipher"))
    other = dynamic.image(AES, accel_function_name="stream-cipher")

    arq = dynamic.bind(function_name="stream-cipher")

    dynamic.bound(arq)
    runs = dynamic.runs()
    assert (runs["image_uuid"], runs["function_name"]) == (other, "stream-cipher")


def test_a_bind_never_changes_what_another_guest_runs(dynamic: Card, sink: NovaSink) -> None:
    dynamic.image(AES), dynamic.image(ZIP)
    first = dynamic.bind(function_id=AES)
    dynamic.bound(first)

    second = dynamic.bind(function_id=ZIP)

    failed = dynamic.resolved(second)
    assert failed["state"] == "BindFailed"
    # Whose guest that is concerns administrators only.
    sentence = f"Deployable {dynamic.uuid} cannot be programmed: "
    assert failed["state_reason"] == f"{sentence}it is in use."
    refused = dynamic.program(function_id=ZIP)
    assert refused.status_code == 409
    assert f"{sentence}ARQ {first} of instance " in refused.text
    assert dynamic.runs()["function_id"] == AES
    until(lambda: sink.events == {first: "completed", second: "failed"})


def test_a_bind_does_not_tell_who_has_an_allocation_and_fails_with_the_programming(
    dynamic: Card, sink: NovaSink
) -> None:
    dynamic.image(ZIP)
    consumer = models.new_uuid()
    dynamic.site.placement.allocate(consumer, RP, FPGA=1)

    first = dynamic.bind(function_id=ZIP)

    failed = dynamic.resolved(first)
    assert failed["state"] == "BindFailed"
    reason = f"It could not be programmed with function {ZIP}: it is in use."
    assert failed["state_reason"] == reason
    assert f"Consumer {consumer} has an allocation" in dynamic.operation()["error"]
    dynamic.site.placement.release(consumer)
    dynamic.site.fail("program")

    second = dynamic.bind(function_id=ZIP)

    failed = dynamic.resolved(second)
    assert failed["state"] == "BindFailed"
    assert "out of order" in failed["state_reason"]
    until(lambda: sink.events == {first: "failed", second: "failed"})
    assert dynamic.runs()["in_doubt"] is False


def test_a_guest_does_not_change_its_own_function(dynamic: Card) -> None:
    dynamic.image(AES)
    instance = models.new_uuid()
    # Only Glance knows that this is another function.
    one, other = dynamic.arq(function_id=AES), dynamic.arq(bitstream_id=dynamic.image(ZIP))
    wanted = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": instance}
    patch = [{"path": f"/{key}", "op": "add", "value": val} for key, val in wanted.items()]
    dynamic.site.call("PATCH", "/accelerator_requests", {one: patch, other: patch})

    states = {dynamic.resolved(one)["state"], dynamic.resolved(other)["state"]}

    assert "BindFailed" in states
    if "Bound" in states:
        (bound,) = (arq for arq in (one, other) if dynamic.state(arq) == "Bound")
        assert dynamic.runs()["function_id"] == (AES if bound == one else ZIP)


def test_another_conductor_takes_over(dynamic: Card, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    site = dynamic.site
    site.hang("program")
    operation = dynamic.program(image_uuid=dynamic.image(AES)).json()["uuid"]
    until(dynamic.is_writing)

    site.replace(conductor_service.ConductorService)
    site.obey()

    assert dynamic.ended(operation)["state"] == "succeeded"
    assert dynamic.runs()["function_id"] == AES
    assert caplog.text.count("Fake program of") == 1
    assert consistency.violations() == []


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_lost_is_put_back_from_what_the_host_has_kept(
    dynamic: Card, images: GlanceServer, tmp_path: pathlib.Path, *, kept: bool
) -> None:
    image = dynamic.image(AES)
    arq = dynamic.bind(function_id=AES)
    dynamic.bound(arq)
    if kept:
        images.clear()
    else:
        (file,) = (tmp_path / "bitstreams").iterdir()
        file.unlink()
    (loaded,) = (tmp_path / "loaded").glob("*.function")
    loaded.write_text("")

    dynamic.site.replace(agent_service.Agent)

    dynamic.site.hurry(lambda: dynamic.operation()["asked_by"] == "recovery")
    ended = dynamic.ended(dynamic.operation()["uuid"])
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    assert loaded.read_text() == AES
    assert dynamic.runs()["image_uuid"] == image
    assert dynamic.state(arq) == "Bound"
