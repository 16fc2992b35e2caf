# SPDX-License-Identifier: Apache-2.0
"""What is wanted in Placement is read as it was at one moment, whatever commits meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, rpc, work
from cyborg.db import models
from cyborg.drivers import base
from cyborg.peers import glance
from cyborg.placement import desired, tree
from cyborg.programming import cancellation, operation_steps, operations, program
from cyborg.tests import engine, hosts, servers

#: More than reading a host takes.
STATEMENTS = 7


@pytest.fixture
def item(database: sa.Engine) -> work.Item:
    """A conductor writes another function to the card, which nobody has."""
    card = hosts.deployable("host-1_a", program_mode=base.SINGLE_PROGRAM, function="aes")
    hosts.apply(hosts.device("card", card))
    (deployable,) = hosts.deployables()
    operations.ask(deployable.uuid, program.Program(function_id="zip"), "user 1")
    claimed = engine.take("conductor-1", 600, [work.PROGRAM])
    assert claimed is not None
    return claimed


def write(item: work.Item) -> Iterator[None]:
    """Each step of it that commits."""
    image = glance.Image(
        uuid=models.new_uuid(),
        name=None,
        size=1,
        hash_algo=None,
        hash_value=None,
        checksum="00",
        status="active",
        properties={glance.FUNCTION_ID: "zip"},
    )
    operation_steps.withdraw(item, image)
    yield
    operation_steps.begin_to_write(item)
    situation = operation_steps.read(item)
    assert situation is not None
    yield
    answer = rpc.ProgramAnswer(function="zip", verified_by="a look", report_counter=0)
    operation_steps.end_well(item, situation, answer)
    yield


def wanted() -> tree.Provider:
    """The card's provider."""
    state = desired.read("host-1")
    assert state is not None
    (provider,) = state.providers.values()
    return provider


@contextlib.contextmanager
def after_statement(engine: sa.Engine, number: int, happen: Callable[[], None]) -> Iterator[None]:
    """Something commits when this thread has run so many statements."""
    seen, thread = 0, threading.get_ident()

    def look(*_: Any) -> None:
        nonlocal seen
        if threading.get_ident() == thread:
            seen += 1
            if seen == number:
                other = threading.Thread(target=happen)
                other.start()
                other.join()

    sa.event.listen(engine, "after_cursor_execute", look)
    try:
        yield
    finally:
        sa.event.remove(engine, "after_cursor_execute", look)


@pytest.mark.every_database
@pytest.mark.parametrize("number", range(1, STATEMENTS))
@pytest.mark.parametrize("done", [0, 2])
def test_no_function_is_offered_that_is_not_run(
    database: sa.Engine, item: work.Item, done: int, number: int
) -> None:
    """Neither when a card is withdrawn meanwhile, nor when it is offered again."""
    steps = write(item)
    for _ in range(done):
        next(steps)
    before = wanted()

    with after_statement(database, number, lambda: next(steps)):
        between = wanted()

    assert between in (before, wanted())


@pytest.mark.parametrize(
    "database_kind",
    [pytest.param(kind, marks=pytest.mark.services) for kind in servers.DATABASES],
    indirect=True,
)
def test_the_next_transaction_of_the_connection_sees_what_commits_meanwhile(
    item: work.Item,
) -> None:
    states = sa.select(models.Operation.state)
    steps = write(item)
    with db.snapshot() as session:
        assert session.scalars(states).all() == ["queued"]
        connection = session.connection().connection.dbapi_connection

    with db.writer() as session:
        assert session.connection().connection.dbapi_connection is connection
        assert session.scalars(states).all() == ["queued"]
        other = threading.Thread(target=lambda: next(steps))
        other.start()
        other.join()
        assert session.scalars(states).all() == ["reserving"]


@pytest.mark.parametrize(
    "database_kind",
    [pytest.param(kind, marks=pytest.mark.services) for kind in servers.DATABASES],
    indirect=True,
)
def test_what_is_cancelled_may_begin_to_be_reserved_meanwhile(
    database: sa.Engine, item: work.Item
) -> None:
    (operation,) = operations.list_operations()
    steps = write(item)

    with after_statement(database, 1, lambda: next(steps)):
        cancellation.cancel(operation.uuid, "user 2")

    ended = operations.get_operation(operation.uuid)
    assert (ended.state, ended.fault) == (operations.FAILED, operations.CANCELLED)
    (deployable,) = hosts.deployables()
    assert deployable.program_state == models.LOADED
