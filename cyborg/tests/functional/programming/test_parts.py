# SPDX-License-Identifier: Apache-2.0
"""What becomes of programs when a card's functions are grouped otherwise under its guests."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import rpc, work
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import giving_up, release
from cyborg.policy import context
from cyborg.programming import operation_steps, operations, program
from cyborg.tests import boots, engine, hosts, one_operation
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.usefixtures("database")

OLD, NEW = "host-1_a", "host-1_b"
AES = program.Program(function_id="aes")
ZIP = program.Program(function_id="zip")
FAKE = "CUSTOM_FAKE_DEVICE"
TRAIT, OTHER = (program.function_trait("", function) for function in ("aes", "zip"))


def report(name: str, mode: str | None = base.SINGLE_PROGRAM, **changes: object) -> None:
    """The card has one deployable of that name, which runs a function."""
    part = hosts.deployable(name, range(3), **{"program_mode": mode, "function": "aes"} | changes)
    hosts.apply(hosts.device("card", part))


def bound(ctx: context.RequestContext, conf: cfg.ConfigOpts, **group: str) -> tuple[str, str]:
    """An instance, and its ARQ that is Bound to the card."""
    instance = models.new_uuid()
    (arq,) = boots.arqs(ctx, 1, boots.GROUP | group)
    boots.bind(ctx, [arq], instance)
    engine.drain(conf)
    assert boots.states(ctx)[arq] == models.BOUND
    return instance, arq


def found(name: str) -> models.Deployable:
    return next(each for each in hosts.deployables() if each.name == name)


def test_a_card_with_another_name_is_not_programmed_under_its_guest(ctx, conf) -> None:
    report(OLD)
    instance, arq = bound(ctx, conf)
    report(NEW)

    missing = f"ARQ {arq} of instance {instance} has a deployable of its device that is missing"
    with pytest.raises(errors.Conflict, match=missing):
        operations.ask(found(NEW).uuid, ZIP, "user 1")

    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    report(NEW)
    operation = operations.ask(found(NEW).uuid, ZIP, "user 1")
    assert operation.state == operations.QUEUED


def test_a_card_of_which_another_gets_a_part_is_as_good_as_it_was_for_its_guest(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, placement: PlacementServer, root: str
) -> None:
    report(OLD)
    asks = {"accel:function_id": "aes"}
    instance, arq = bound(ctx, conf, **asks)
    operation = operations.ask(found(OLD).uuid, AES, "user 1")
    assert operation.state == operations.SUCCEEDED

    fixed = {"function": None, "traits": (FAKE, TRAIT)}
    report(OLD, None, **fixed)

    assert boots.states(ctx)[arq] == models.BOUND
    placement.sync()
    assert placement.offered(boots.RP) == {"FPGA": (3, 0)}
    assert TRAIT in placement.below(hosts.ROOT)[boots.RP].traits
    with pytest.raises(errors.NotOffered):
        operations.ask(found(OLD).uuid, ZIP, "user 1")
    other, _ = bound(ctx, conf)
    for each in (instance, other):
        release.delete_instance_arqs(ctx, each)
    engine.drain(conf)
    # Nobody keeps account any more of what it runs.
    report(OLD, None, **fixed)
    assert found(OLD).function_id is None
    assert program.TRAIT_KEY not in {each.key for each in found(OLD).attributes}
    placement.sync()
    assert placement.offered(boots.RP) == {"FPGA": (3, 0)}
    # With all of its functions again it can be programmed.
    report(OLD)
    operation = operations.ask(found(OLD).uuid, ZIP, "user 1")
    assert operation.state == operations.QUEUED


def test_a_card_that_is_not_programmable_for_a_while_is_still_to_be_overwritten(ctx, conf) -> None:
    report(OLD, blank_image=models.new_uuid())
    instance, _ = bound(ctx, conf)

    report(OLD, None, function=None)
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)

    (sentence,) = (each.sentence for each in consistency.withheld())
    assert f"driver {hosts.DRIVER} does not program it" in sentence
    assert len(engine.pending()) == 1
    # An operator has turned cleaning off.
    report(OLD)
    engine.make_due()
    engine.drain(conf)
    assert found(OLD).blank_image is None
    assert (engine.pending(), consistency.withheld()) == ({}, [])


def test_the_blank_image_of_a_card_that_is_programmed_no_more_goes_with_its_guest(
    ctx, conf
) -> None:
    report(OLD, base.DYNAMIC, function=None, blank_image=models.new_uuid())
    instance, arq = bound(ctx, conf)
    report(OLD, None, function=None)
    assert found(OLD).blank_image is not None

    release.delete_instance_arqs(ctx, instance)
    giving_up.release_arq(ctx, arq, force=True)
    # The same words as before: they are news all the same.
    report(OLD, None, function=None)
    assert found(OLD).blank_image is None


@pytest.mark.parametrize(
    "asks", [{"accel:function_id": "aes"}, {f"trait:{TRAIT}": "required"}]
)
def test_what_is_kept_for_a_guest_of_such_a_card_serves_no_other(
    ctx, conf, placement, root, asks
) -> None:
    report(OLD)
    _, kept = bound(ctx, conf, **asks)
    report(OLD, None, function=None, traits=(FAKE, TRAIT))

    # Somebody has programmed it by hand.
    report(OLD, None, function=None, traits=(FAKE, OTHER))

    placement.sync()
    assert {TRAIT, OTHER} & placement.below(hosts.ROOT)[boots.RP].traits == {OTHER}
    (arq,) = boots.arqs(ctx, 1, boots.GROUP | asks)
    refusals = (errors.Invalid, errors.Conflict)
    with pytest.raises(refusals, match=f"not programmable|{TRAIT} is required"):
        boots.bind(ctx, [arq], models.new_uuid())
    assert boots.states(ctx)[kept] == models.BOUND
    assert consistency.violations() == []

    # As it can be programmed again, its guest is given back what it had.
    report(OLD, function="zip")
    assert not found(OLD).is_settled
    assert found(OLD).function_id == "aes"


def test_what_is_kept_for_a_guest_is_not_put_back_under_another(ctx, conf, placement, root) -> None:
    report(OLD)
    instance, _ = bound(ctx, conf, **{"accel:function_id": "aes"})
    report(OLD, None, function=None, traits=(FAKE, OTHER))
    _, arq = bound(ctx, conf, **{f"trait:{OTHER}": "required"})

    report(OLD, function="zip")
    engine.drain(conf)

    assert operations.list_operations() == []
    assert (found(OLD).is_settled, found(OLD).function_id) == (True, "zip")
    placement.sync()
    assert OTHER in placement.below(hosts.ROOT)[boots.RP].traits
    # Operators are told of the guest that lost its function meanwhile.
    (told,) = (each.sentence for each in consistency.violations())
    assert "does not run function aes" in told
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    assert boots.states(ctx)[arq] == models.BOUND


@pytest.mark.parametrize("shown", ["", "zip"])
def test_what_a_card_with_a_part_less_loses_is_put_back_when_it_is_whole(ctx, conf, shown) -> None:
    """Its other guest uses what it has found."""
    report(OLD)
    bound(ctx, conf, **{"accel:function_id": "aes"})
    bound(ctx, conf)
    report(OLD, None, function=None, traits=(FAKE, TRAIT))

    report(OLD, function=shown)

    assert (found(OLD).is_settled, found(OLD).function_id) == (False, "aes")


def test_a_card_that_loses_a_part_before_it_is_written_is_left_alone(conf) -> None:
    """The host refuses, which sees the card as it is."""
    report(OLD)
    item = one_operation.withdrawn()
    operation_steps.begin_to_write(item)

    report(OLD, None, function=None)
    situation = one_operation.situation(item)
    refused = rpc.ProgramFailed("Another has a part of it.", written=False)
    operation_steps.end_failed(item, situation, refused, unchanged=True)

    (operation,) = operations.list_operations()
    assert (operation.state, operation.error) == (operations.FAILED, str(refused))
    assert found(OLD).is_settled


@pytest.mark.parametrize("asks", [{"accel:function_id": "aes"}, {f"trait:{TRAIT}": "required"}])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_guest_under_a_former_name_gets_back_what_the_hardware_lost(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, asks: dict[str, str], *, at_once: bool
) -> None:
    """The power fails when the card gets another name, or later."""
    report(OLD)
    instance, _ = bound(ctx, conf, **asks)

    if not at_once:
        report(NEW)
        assert (found(NEW).is_settled, found(NEW).function_id) == (True, "aes")
    report(NEW, function="")

    assert (found(NEW).is_settled, found(NEW).function_id) == (False, "aes")
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    recovery = one_operation.situation(item).operation
    assert (recovery.deployable_uuid, recovery.asked_by) == (found(NEW).uuid, operations.RECOVERY)
    # When its guest has left there is nothing to put back.
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    assert operation_steps.read(item) is None
    report(NEW, function="")
    assert (found(NEW).is_settled, found(NEW).function_id) == (True, None)


@pytest.mark.parametrize("handles", [1, 2])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_guest_of_one_of_several_parts_gets_back_what_the_hardware_lost(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, handles: int, *, at_once: bool
) -> None:
    """The part of its handle is the one that it has, whatever the parts are called now."""
    other = "host-1_c"

    def report_two(one: str, two: str, function: str = "aes") -> None:
        runs = {"program_mode": base.SINGLE_PROGRAM, "function": function}
        first = hosts.deployable(one, range(handles), **runs)
        hosts.apply(hosts.device("card", first, hosts.deployable(two, range(2, 4), **runs)))

    report_two(OLD, other)
    bound(ctx, conf, **{"accel:function_id": "aes"})

    if not at_once:
        report_two(NEW, "host-1_d")
    report_two(NEW, "host-1_d", "")

    assert (found(NEW).is_settled, found(NEW).function_id) == (False, "aes")


def test_what_a_guest_under_a_former_name_did_not_ask_for_is_not_put_back(ctx, conf) -> None:
    report(OLD)
    bound(ctx, conf)

    report(NEW, function="")

    assert (found(NEW).is_settled, found(NEW).function_id) == (True, None)
