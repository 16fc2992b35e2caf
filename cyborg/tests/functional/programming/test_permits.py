# SPDX-License-Identifier: Apache-2.0
"""Leave to write: given only for the write that an operation waits for, and to its host."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, rpc, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.programming import operation_steps, operations, states, write_permits
from cyborg.tests import boots, hosts
from cyborg.tests.one_operation import situation, withdrawn

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


@pytest.fixture
def item() -> work.Item:
    """An operation on a card that has withdrawn what is offered of it."""
    hosts.apply(hosts.card("a", program_mode="dynamic", function=""))
    return withdrawn()


def ask(**changes: Any) -> str | None:
    """Ask for leave to make the first write of the latest operation; why not, or None."""
    operation = operations.list_operations()[-1]
    request = rpc.WriteRequest(
        host="host-1",
        deployable_uuid=operation.deployable_uuid,
        operation_uuid=operation.uuid,
        write=1,
    )
    permit = write_permits.permit_write(dataclasses.replace(request, **changes))
    assert permit.seconds == (0.0 if permit.refused else write_permits.TERM)
    return permit.refused


def test_leave_is_given_while_the_operation_writes(item: work.Item) -> None:
    assert "is reserving, and write 1 of 0" in str(ask())
    operation_steps.begin_to_write(item)
    # As often as it is asked for.
    assert [ask(), ask()] == [None, None]
    failure = rpc.ProgramFailed("out of order", written=True)

    operation_steps.end_failed(item, situation(item), failure, unchanged=False)

    assert "has ended" in str(ask())


def test_nobody_else_is_given_leave(item: work.Item) -> None:
    operation_steps.begin_to_write(item)

    for changes, reason in (
        ({"write": 0}, "write 0 of 1 is not wanted"),
        ({"write": 2}, "write 2 of 1 is not wanted"),
        ({"operation_uuid": models.new_uuid()}, "has ended, or"),
        ({"deployable_uuid": models.new_uuid()}, "or its deployable was removed"),
        ({"host": "host-2"}, "is on host host-1, not on host-2"),
    ):
        assert reason in str(ask(**changes))


def test_a_host_that_is_down_reports_first(item: work.Item) -> None:
    operation_steps.begin_to_write(item)
    with db.writer() as session:
        db.update(session, models.Host, down=True)

    with pytest.raises(errors.ServiceUnavailable, match="is down, and must report first"):
        ask()

    hosts.apply(hosts.card("a", program_mode="dynamic", function=""))
    assert ask() is None


@pytest.mark.makes_up_rows
def test_nothing_is_written_under_a_guest_whatever_has_gone_wrong(item, ctx) -> None:
    operation_steps.begin_to_write(item)
    (arq,) = boots.arqs(ctx, 1)
    with db.writer() as session:
        handle = session.scalars(sa.select(models.AttachHandle.id)).first()
        changes = {"state": models.BOUND, "attach_handle_id": handle}
        db.update(session, models.Arq, models.Arq.uuid == arq, **changes)

    assert f"ARQ {arq} of instance" in str(ask())

    with db.writer() as session:
        db.update(session, models.Operation, asked_by=operations.RECOVERY)
    assert ask() is None


def test_leave_waits_for_who_decides_about_the_deployable(item: work.Item) -> None:
    operation_steps.begin_to_write(item)
    answers: list[str | None] = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    (row,) = hosts.deployables()
    with db.writer() as session:
        deployable = operations.lock(session, row.uuid)
        operation = operations.active_on(session, row.uuid)
        assert deployable is not None
        assert operation is not None
        asking.start()
        # Long enough to be answered, if it did not wait.
        asking.join(1)
        operations.move(session, operation, operations.FAILED, "Given up.")
        states.change(session, deployable, states.ProgramEvent.UNWRITTEN)

    asking.join(60)
    assert "has ended" in str(answers[0])
