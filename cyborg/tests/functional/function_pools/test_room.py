# SPDX-License-Identifier: Apache-2.0
"""Function pools count what can really be given, and go on elsewhere where something stalls."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.db import models
from cyborg.drivers import value_checks
from cyborg.function_pools import planner, pools
from cyborg.programming import operations
from cyborg.tests import hosts
from cyborg.tests.fpgas import AES, SIX, ZIP, Fpgas, pool_spec
from cyborg.tests.programmed_cards import IMAGES
from cyborg.tests.programmed_host import Fpgas as Host
from cyborg.tests.programming_machine import Machine

THREE = dict.fromkeys("abc", "")


@pytest.mark.every_database
def test_handles_that_are_one_accelerator_together_are_one_slot(cloud: Fpgas) -> None:
    cloud.report({"a": AES, "b": "", "c": ""}, num_accelerators=1)
    uuid = cloud.pool(free=1)
    assert cloud.counts(uuid) == {"ready": 1, "devices": 1}

    cloud.use("host-1_a")
    # Its other handle is free, and nobody can be given it.
    assert cloud.counts(uuid) == {"used": 1, "devices": 1}
    assert cloud.look_again() == ["host-1_b"]
    assert cloud.counts(uuid) == {"used": 1, "pending": 1, "devices": 2}

    cloud.end()
    assert cloud.settle() == {"host-1_a": AES, "host-1_b": AES}
    assert cloud.counts(uuid) == {"ready": 1, "used": 1, "devices": 2}
    # Who requires both handles has no more of it.
    cloud.use("host-1_a")
    assert cloud.counts(uuid) == {"ready": 1, "used": 1, "devices": 2}


def test_as_many_cards_are_chosen_as_have_the_slots(cloud: Fpgas) -> None:
    cloud.report(THREE, num_accelerators=1)
    uuid = cloud.pool(free=2)
    assert cloud.look() == ["host-1_a", "host-1_b"]
    cloud.end()
    assert cloud.counts(uuid) == {"ready": 2, "devices": 2}
    # What is surplus is counted likewise.
    zipped = cloud.pool("zip", function_id=ZIP, free=2)
    cloud.settle()
    assert (cloud.counts(uuid)["ready"], cloud.counts(zipped)["ready"]) == (2, 1)


def test_a_card_without_accelerators_has_no_slots(cloud: Fpgas) -> None:
    cloud.report({"a": "", "b": AES}, num_accelerators=0)
    uuid = cloud.pool()
    assert cloud.look() == []
    assert cloud.counts(uuid) == {"devices": 1}
    assert cloud.shown(uuid)["reason"] == (
        "No programmable deployable is left for the pool."
    )


@pytest.mark.every_database
def test_an_accelerator_that_is_taken_is_missed_though_a_handle_is_free(cloud: Fpgas) -> None:
    cloud.report({"a": AES, "b": AES, "c": ZIP}, num_accelerators=1)
    uuid, zipped = cloud.pool(free=0), cloud.pool("zip", function_id=ZIP, free=0)
    cloud.use("host-1_a")
    cloud.boot()
    cloud.boot(**{"accel:function_id": ZIP})
    assert (cloud.shown(uuid)["misses"], cloud.shown(zipped)["misses"]) == (0, 0)
    # Two requests, for both handles of the card that is left.
    both = {"trait:CUSTOM_FPGA_XILINX": "required"}
    cloud.boot(**both)
    assert (cloud.shown(uuid)["misses"], cloud.shown(zipped)["misses"]) == (0, 0)
    cloud.boot(**both | {"resources:FPGA": "3"})
    assert (cloud.shown(uuid)["misses"], cloud.shown(zipped)["misses"]) == (2, 0)


def _try(
    cloud: Fpgas,
    name: str,
    error: str | None,
    *,
    age_s: int,
    state: str = operations.WRITING,
    owner: str | None = None,
) -> None:
    """Have the operation on a deployable be so old, and so the work on it have ended so far.

    ``owner`` is the conductor that tries it again.
    """
    where = sa.select(models.Deployable.uuid).where(models.Deployable.name == name)
    operation = models.Operation
    with db.writer() as session:
        uuid = session.scalars(where).one()
        asked = {"asked_ms": operation.asked_ms - age_s * 1000, "state": state}
        assert db.update(session, operation, operation.active == uuid, **asked)
        of_it = (models.Work.kind == work.PROGRAM, models.Work.key == uuid)
        assert db.update(session, models.Work, *of_it, last_error=error, owner=owner)


@pytest.mark.every_database
def test_what_stalls_leaves_its_place_to_another_card(cloud: Fpgas) -> None:
    cloud.report(SIX)
    uuid = cloud.pool(free=4, max_devices=3)
    assert cloud.look() == ["host-1_a", "host-1_b"]
    # What is being tried again is not stalled.
    _try(cloud, "host-1_a", "No way to Glance.", age_s=300, owner="conductor-1")
    assert cloud.look_again() == ["host-1_a", "host-1_b"]
    assert cloud.shown(uuid)["reason"] is None
    _try(cloud, "host-1_a", "No way to Glance.", age_s=0)
    # This one takes long, and goes on.
    _try(cloud, "host-1_b", None, age_s=3000)

    assert cloud.look_again() == ["host-1_a", "host-1_b", "host-1_c"]

    assert cloud.counts(uuid) == {"pending": 6, "devices": 3}
    said = "Stalled: 1 of those being programmed. The last error: No way to Glance."
    assert cloud.shown(uuid)["reason"] == said
    _try(cloud, "host-1_c", "No way either.", age_s=300)
    assert cloud.look_again() == ["host-1_a", "host-1_b", "host-1_c"]
    assert cloud.shown(uuid)["reason"] == (
        "It has 3 deployables, and max_devices is 3. "
        "Stalled: 2 of those being programmed. The last error: No way either."
    )
    cloud.end()
    cloud.look_again()
    assert cloud.counts(uuid) == {"ready": 6, "surplus": 2, "devices": 3}
    assert cloud.shown(uuid)["reason"] is None


def test_a_pool_has_its_slots_though_a_host_never_answers_for_one_card(fpgas: Host) -> None:
    machine = Machine(fpgas)
    machine.report(works=True)
    machine.cards["b"].child = IMAGES["aes-1"]
    uuid = pools.create_pool(pool_spec(free=1, max_devices=2)).uuid
    machine.let_time_pass()
    assert [card.letter for card in machine.cards.values() if card.loaded] == []
    with db.writer() as session:
        early = models.Operation.asked_ms - 300_000
        db.update(session, models.Operation, asked_ms=early)
        db.update(session, models.FunctionPool, looked_ms=0)
    planner.want_due(fpgas.conf)
    while fpgas.do_one([work.FUNCTION_POOL]):
        pass
    assert pools.get_pool(uuid).row.reason == (
        "Stalled: 1 of those being programmed. "
        "The last error: what was started before still writes it"
    )

    machine.let_time_pass()

    found = pools.get_pool(uuid)
    assert found.counts.ready >= found.counts.wanted
    assert found.row.reason is None
    machine.cards["b"].end_child()
    machine.let_time_pass()
    assert pools.get_pool(uuid).counts.devices == 2
    assert pools.get_pool(uuid).counts.pending == 0


@pytest.mark.parametrize("free", [4, 6])
def test_what_another_card_would_wait_for_too_keeps_its_place(cloud: Fpgas, free: int) -> None:
    cloud.report(SIX)
    uuid = cloud.pool(free=free)
    both = ["host-1_a", "host-1_b"]
    assert cloud.look() == both
    # This one may go on yet.
    _try(cloud, "host-1_a", "The host still writes.", age_s=200)
    _try(cloud, "host-1_b", "Glance is away.", age_s=300, state=operations.QUEUED)
    for _ in range(2):
        assert cloud.look_again() == both
        assert cloud.counts(uuid) == {"pending": 4, "devices": 2}
        assert cloud.shown(uuid)["reason"] == (
            "Stalled: 1 of those being programmed. The last error: Glance is away."
        )
    _try(cloud, "host-1_b", None, age_s=0)
    cloud.look_again()
    cloud.end()
    cloud.settle()
    assert cloud.counts(uuid)["ready"] == free


@pytest.mark.every_database
@pytest.mark.makes_up_rows
def test_a_card_is_in_use_though_its_deployable_has_another_name_now(cloud: Fpgas) -> None:
    cloud.report({"a": AES})
    (arq,) = cloud.use("host-1_a")
    part = hosts.deployable("host-1_new", range(16, 18), program_mode="dynamic", function=AES)
    hosts.apply(hosts.device("a", part))
    uuid = cloud.pool(function_id=ZIP, free=1)

    assert cloud.look() == []

    assert cloud.shown(uuid)["reason"] == (
        "No other deployable can be programmed now; of 2 that match: "
        "1 disabled, unhealthy, missing or on a host that is down, 1 in use."
    )
    with db.writer() as session:
        held = models.Arq.uuid == arq
        db.update(session, models.Arq, held, attach_handle_id=None, state=models.BIND_STARTED)
    assert cloud.look_again() == []
    with db.writer() as session:
        db.delete(session, models.Arq, models.Arq.uuid == arq)
    assert cloud.look_again() == ["host-1_new"]


def test_a_pool_has_a_function_that_a_card_can_run(cloud: Fpgas) -> None:
    body: dict[str, object] = {"name": "p", "free": 1, "max_devices": 1}
    longest = "a" * 128
    value_checks.function_id(longest)
    uuid = cloud.pool(function_id=longest)
    for function in ("\N{LATIN SMALL LETTER SHARP S}" * 128, "a b", longest + "b", "--", " "):
        for method, path in (
            ("POST", "/function_pools"),
            ("PUT", f"/function_pools/{uuid}"),
            ("POST", "/function_misses"),
        ):
            rest = {} if path == "/function_misses" else body
            given = rest | {"function_id": function}
            answer = cloud.site.ask(method, path, given, "2.4")
            assert answer.status_code == 400, answer.text
            assert "function_id" in answer.text
    assert cloud.shown(uuid)["function_id"] == longest
