# SPDX-License-Identifier: Apache-2.0
"""What device profiles may ask for, and what is recorded where nothing was written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc, work
from cyborg.arqs import binding
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.inventory import report as inventory_report
from cyborg.peers import glance
from cyborg.policy import context
from cyborg.programming import image_match, operation_steps, operations, program, states
from cyborg.programming.locked_operation import CannotProgram
from cyborg.tests import boots, engine, hosts
from cyborg.tests.one_operation import IMAGE, deployable, glance_image, situation, withdrawn

AES = {glance.FUNCTION_ID: "aes"}

pytestmark = pytest.mark.usefixtures("database")


def report(function: str) -> None:
    """The card's region shows that function, "" none."""
    hosts.apply(hosts.card("a", program_mode="dynamic", function=function))


def _note_written() -> None:
    """Record that Cyborg has written the function that the deployable runs."""
    record = states.record(bitstream_id=IMAGE, function_id="aes", programmed_by="user 1")
    with db.writer() as session:
        row = session.scalars(sa.select(models.Deployable)).one()
        states.change(session, row, states.ProgramEvent.FOUND_LOADED, **record)


@pytest.mark.parametrize("written", [IMAGE.upper(), IMAGE.replace("-", "")])
def test_a_profile_may_write_a_uuid_in_any_form(conf, ctx, written) -> None:
    report("")
    uuids = boots.arqs(ctx, 1, boots.GROUP | {"accel:bitstream_id": written})
    boots.bind(ctx, uuids, models.new_uuid())
    engine.drain(conf)
    (operation,) = operations.list_operations()
    assert operation.image_uuid == IMAGE


def test_a_profile_may_ask_for_no_image_that_cannot_be(ctx: context.RequestContext) -> None:
    report("")
    uuids = boots.arqs(ctx, 1, boots.GROUP | {"accel:bitstream_id": "x" * 255})
    with pytest.raises(errors.Invalid, match=r"accel:bitstream_id x+ is no UUID of an image\."):
        boots.bind(ctx, uuids, models.new_uuid())
    assert set(boots.states(ctx).values()) == {"Initial"}


@pytest.fixture
def item() -> work.Item:
    """The operation on the card's region, which is being written by the host."""
    report("")
    item = withdrawn()
    operation_steps.begin_to_write(item)
    return item


def test_a_card_may_leave_the_bus_while_it_is_written(item: work.Item) -> None:
    before = situation(item)
    hosts.apply()
    assert [found.uuid for found in hosts.deployables()] == [item.key]
    away = situation(item)
    # The host is asked for the same, and so goes on with what it does.
    assert [each.uuid for each in away.handles] == [each.uuid for each in before.handles]
    answer = rpc.ProgramAnswer(function="aes", verified_by="test", report_counter=0)
    operation_steps.end_well(item, away, answer)
    report("aes")
    found = deployable()
    assert (found.uuid, found.bitstream_id, found.function_id) == (item.key, IMAGE, "aes")
    assert (found.missing, found.is_settled) == (False, True)


def test_a_card_that_does_not_come_back_goes_when_the_host_has_given_up(item: work.Item) -> None:
    hosts.apply()
    failure = rpc.ProgramFailed("There is no such card.", written=True)
    operation_steps.end_failed(item, situation(item), failure, unchanged=False)
    hosts.apply()
    assert hosts.deployables() == []


def test_a_card_that_goes_before_it_is_written_is_gone() -> None:
    report("")
    operations.ask(deployable().uuid, program.Program(image_uuid=IMAGE), "user 1")
    hosts.apply()
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    assert operation_steps.read(item) is None
    (operation,) = operations.list_operations()
    assert (operation.state, operation.error) == (
        operations.FAILED,
        "The deployable is gone from its host.",
    )
    hosts.apply()
    assert hosts.deployables() == []


def test_a_lost_program_of_a_card_that_goes_is_put_back_when_it_comes_again(ctx, conf) -> None:
    _lose_in_use(ctx, conf)
    assert situation(_claim()).operation.state == operations.QUEUED
    hosts.apply()
    item = _claim()
    assert operation_steps.read(item) is None
    assert work.finish(item)
    (gone,) = operations.list_operations()
    assert (gone.state, deployable().is_settled) == (operations.FAILED, False)
    hosts.apply()
    assert consistency.violations() == []

    report("")

    assert not deployable().is_settled
    again = situation(_claim()).operation
    assert (again.asked_by, again.image_uuid) == ("recovery", IMAGE)
    assert again.uuid != gone.uuid


def test_who_comes_before_a_lost_program_is_put_back_waits_for_that(ctx, conf) -> None:
    _lose_in_use(ctx, conf)
    assert operations.list_operations() == []

    (second,) = boots.arqs(ctx, 1, boots.GROUP | {"accel:function_id": "aes"})
    boots.bind(ctx, [second], models.new_uuid())
    engine.drain(conf)

    assert boots.states(ctx)[second] == "BindStarted"
    (recovery,) = operations.list_operations()
    assert (recovery.asked_by, recovery.image_uuid) == ("recovery", IMAGE)
    same = operations.ask(deployable().uuid, program.Program(image_uuid=IMAGE), "user 1")
    assert same.uuid == recovery.uuid
    with pytest.raises(errors.Conflict, match=recovery.uuid):
        operations.ask(deployable().uuid, program.Program(function_id="zip"), "user 1")
    assert consistency.violations() == []


def _lose_in_use(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> None:
    """A guest has a handle of the card, and a report says that it runs nothing any more."""
    report("aes")
    boots.bind(ctx, boots.arqs(ctx, 1, boots.GROUP), models.new_uuid())
    engine.drain(conf)
    _note_written()
    report("")


def _claim() -> work.Item:
    work.hand_back_all()
    engine.make_due()
    item = engine.take(f"conductor-{models.new_uuid()}", 600, [work.PROGRAM])
    assert item is not None
    return item


def test_a_look_from_before_a_failed_write_is_not_believed_after_it() -> None:
    report("zip")
    item = withdrawn()
    operation_steps.begin_to_write(item)
    late = hosts.report(hosts.card("a", program_mode="dynamic", function="zip"))
    failure = rpc.ProgramFailed("The link broke.", written=True, report_counter=late.counter)

    operation_steps.end_failed(item, situation(item), failure, unchanged=False)

    inventory_report.apply_report(late)
    assert deployable().function_id is None
    report("zip")
    assert deployable().function_id == "zip"


@pytest.mark.parametrize("shows", [True, False], ids=["shows another", "fails"])
def test_a_look_from_before_a_try_in_vain_is_not_believed_when_that_is_given_up(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, *, shows: bool
) -> None:
    _lose_in_use(ctx, conf)
    item = _claim()
    assert operation_steps.read(item) is not None
    assert operation_steps.withdraw(item, dataclasses.replace(glance_image(), properties=AES))
    operation_steps.begin_to_write(item)
    late = hosts.report(hosts.card("a", program_mode="dynamic", function="zip"))
    with pytest.raises(work.TryLater, match="cannot be put back now"):
        _fail(item, late.counter, shows=shows)
    release.delete_arqs(ctx, list(boots.states(ctx)))

    # At once, since somebody could come before it is ended by another transaction.
    assert not operation_steps.begin_to_write(item)
    (operation,) = operations.list_operations()
    assert (operation.state, operation.error) == ("failed", "No guest has it any more.")
    inventory_report.apply_report(late)
    assert (deployable().function_id, deployable().is_settled) == (None, True)


def _fail(item: work.Item, counter: int, *, shows: bool) -> None:
    """The host shows another function after it was written, or it cannot be written."""
    if shows:
        answer = rpc.ProgramAnswer(function="zip", verified_by="test", report_counter=counter)
        operation_steps.end_well(item, situation(item), answer)
    else:
        failure = rpc.ProgramFailed("The link broke.", written=True, report_counter=counter)
        operation_steps.end_failed(item, situation(item), failure, unchanged=False)


def test_what_a_guest_found_while_the_driver_alone_knew_it_is_not_overwritten(ctx, conf) -> None:
    report("aes")
    before = boots.arqs(ctx, 1, boots.GROUP)
    boots.bind(ctx, before, models.new_uuid())
    engine.drain(conf)
    _note_written()
    zip_trait = program.function_trait("", "zip")
    hosts.apply(hosts.card("a", traits=(hosts.card("a").deployables[0].traits[0], zip_trait)))
    newcomers = boots.arqs(ctx, 1, boots.GROUP | {f"trait:{zip_trait}": "required"})
    boots.bind(ctx, newcomers, models.new_uuid())
    engine.drain(conf)
    assert boots.states(ctx)[newcomers[0]] == "Bound"
    release.delete_arqs(ctx, before)

    report("zip")

    assert (deployable().function_id, deployable().is_settled) == ("zip", True)


def test_what_is_not_programmed_any_more_is_not_written_and_not_recorded() -> None:
    report("aes")
    operations.ask(deployable().uuid, program.Program(image_uuid=IMAGE), "user 1")
    item = _claim()
    hosts.apply(hosts.card("a"))

    assert operation_steps.read(item) is not None
    with pytest.raises(CannotProgram, match="not program it any more"):
        operation_steps.withdraw(item, glance_image())
    row = deployable()
    kept = [each.value for each in row.attributes if each.key == program.TRAIT_KEY]
    assert (row.function_id, kept) == (None, [])


def test_what_is_about_to_be_bound_as_it_is_keeps_its_program(ctx) -> None:
    shown = hosts.card("a", program_mode="single-program", function="aes", prepares=True)
    hosts.apply(shown)
    uuids = boots.arqs(ctx, 1, boots.GROUP | {"accel:function_id": "aes"})
    boots.bind(ctx, uuids, models.new_uuid())
    item = engine.take("conductor-1", 600, [work.BIND])
    assert item is not None
    binding.bind_instance(item)
    assert set(boots.states(ctx).values()) == {"BindStarted"}

    another = program.Program(image_uuid=IMAGE, function_id="aes")
    with pytest.raises(errors.Conflict, match=uuids[0]):
        operations.ask(deployable().uuid, another, "instance 1")


@pytest.mark.parametrize(
    ("asked", "written", "after"),
    [
        ({"accel:function_id": "aes"}, False, "BindStarted"),
        ({}, True, "BindStarted"),
        ({}, False, "BindFailed"),
    ],
    ids=["function is put back", "it is put back", "nothing is there"],
)
def test_nobody_is_bound_to_what_is_lost_while_the_handle_is_prepared(
    ctx, conf, monkeypatch, asked, after, written
) -> None:
    keeps: dict[str, Any] = {"program_mode": "single-program", "prepares": True}
    hosts.apply(hosts.card("a", function="aes", **keeps))
    if written:
        _note_written()

    def prepare(*_: object) -> None:
        """Meanwhile a report shows the loss."""
        hosts.apply(hosts.card("a", function="", **keeps))

    monkeypatch.setattr(rpc, "run_host_step", prepare)
    (uuid,) = boots.arqs(ctx, 1, boots.GROUP | asked)
    boots.bind(ctx, [uuid], models.new_uuid())

    for _ in range(2):
        engine.drain(conf)
        assert boots.states(ctx)[uuid] != "Bound"
        assert consistency.violations() == []
        engine.make_due()

    assert boots.states(ctx)[uuid] == after
    assert deployable().is_settled == (not written and not asked)


def why_not(item: work.Item, properties: dict[str, Any], **facts: str) -> str | None:
    """Why an image that says so does not fit the card, of which those facts are known."""
    at = situation(item)
    known = [models.Attribute(key=key, value=value) for key, value in facts.items()]
    return image_match.why_not(
        dataclasses.replace(glance_image(), properties=properties),
        program.Program(image_uuid=IMAGE),
        device=at.device,
        deployable=at.deployable,
        attributes=[*at.attributes, *known],
    )


def test_an_image_may_say_nothing_that_cannot_be_recorded(item: work.Item) -> None:
    for key in (glance.FUNCTION_ID, glance.FUNCTION_NAME):
        for value in ("x" * 256, "nu\0l", "half \ud800"):
            said = why_not(item, {key: value})
            assert said == f"its {key} is no text of at most 255 characters."


def test_the_version_of_an_image_is_the_firmware_if_that_is_known(item: work.Item) -> None:
    said = {glance.VERSION: "1.2"}
    assert why_not(item, said) is None
    for firmware, fits in (("1.2", True), ("0x1.2", True), ("1.3", False)):
        assert (why_not(item, said, firmware=firmware) is None) == fits
