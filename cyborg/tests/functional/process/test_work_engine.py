# SPDX-License-Identifier: Apache-2.0
"""The work table as the only engine: several conductors, slow handlers, skewed clocks, stops."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.conductor import worker
from cyborg.db import models
from cyborg.tests import engine
from cyborg.tests.engine import left
from cyborg.tests.functional.process import work_conductor
from cyborg.tests.functional.process.work_conductor import JOURNAL

pytestmark = pytest.mark.slow

KEYS = [f"key-{number}" for number in range(400)]
SLOW = [f"slow-{number}" for number in range(4)]
#: Seconds that take ten on an idle machine.
TIMEOUT = 300


@pytest.fixture
def conductors(database_url: str) -> Iterator[Callable[[str, float], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, skew: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, work_conductor.__file__, database_url, name, str(skew)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@db.retry
def _want(keys: Sequence[str]) -> None:
    with db.writer() as session:
        work.want(session, "test", keys)
        session.execute(
            JOURNAL.insert(), [{"key": key, "what": "want", "owner": ""} for key in keys]
        )


def want(*keys: str, kind: str = "test") -> None:
    with db.writer() as session:
        work.want(session, kind, keys)


def _wait_until_empty() -> None:
    deadline = time.monotonic() + TIMEOUT
    while left():
        assert time.monotonic() < deadline, f"{left()} rows are left"
        time.sleep(0.1)


def _journal() -> dict[str, list[tuple[str, str]]]:
    query = sa.select(JOURNAL.c.key, JOURNAL.c.what, JOURNAL.c.owner).order_by(
        JOURNAL.c.key, JOURNAL.c.id
    )
    with db.reader() as session:
        rows = session.execute(query).all()
    return {
        key: [(what, owner) for _, what, owner in group]
        for key, group in itertools.groupby(rows, key=lambda row: row[0])
    }


def _assert_nothing_lost_nor_doubled(journal: dict[str, list[tuple[str, str]]]) -> None:
    for key, entries in journal.items():
        words = [what for what, _ in entries]
        last_want = len(words) - 1 - words[::-1].index("want")
        assert "run" in words[last_want:], f"the last wish for {key} was lost"
        ended = {owner for what, owner in entries if what == "end"}
        running: str | None = None
        for what, owner in entries:
            # A run without an end lost its lease and stopped at its checkpoint.
            if what == "run" and owner in ended:
                assert running is None, f"{key} ran twice at once: {running}, {owner}"
                running = owner
            elif what == "end":
                running = None


@pytest.mark.every_database
def test_nothing_is_lost_and_nothing_runs_twice_at_once(database, conductors) -> None:
    JOURNAL.create(db.engine())
    _want(KEYS[:200] + SLOW)
    first, second = conductors("ahead", 3600.0), conductors("behind", -3600.0)
    _want(KEYS[200:])
    for round_ in range(5):
        # Wanted again while claimed, while running and while finishing.
        for part in range(10):
            _want(KEYS[part * 20 + round_ :: 200])
    first.send_signal(signal.SIGSTOP)
    # Longer than its leases: the other one takes over what the stopped one holds.
    time.sleep(2 * work_conductor.LEASE)
    first.send_signal(signal.SIGCONT)
    _want(SLOW + KEYS[:50])
    second.kill()
    _wait_until_empty()
    _assert_nothing_lost_nor_doubled(_journal())


def _claims(rows: int, owner: str = "me") -> list[work.Item]:
    claims = [engine.take(f"{owner}#{number}", 30.0, ["test"]) for number in range(rows)]
    return [item for item in claims if item is not None]


def test_a_row_wanted_while_it_is_done_is_done_again(database: sa.Engine) -> None:
    want("a")
    (item,) = _claims(1)
    assert engine.take("other", 30.0, ["test"]) is None
    want("a")
    assert work.finish(item) is False
    (again,) = _claims(1, "again")
    assert work.finish(again) is True
    assert left() == 0


def test_a_stale_holder_changes_nothing(database: sa.Engine) -> None:
    want("a")
    stale = engine.take("stale", 0.0, ["test"])
    assert stale is not None
    time.sleep(0.01)
    (fresh,) = _claims(1)
    work.back_off(stale, "too late")
    assert work.finish(stale) is True
    assert left() == 1
    work.renew([stale, fresh], 30.0)
    with pytest.raises(work.LeaseLost):
        stale.checkpoint()
    with db.writer() as session:
        work.hold(session, fresh)
        with pytest.raises(work.LeaseLost):
            work.hold(session, stale)
    fresh.checkpoint()
    assert work.finish(fresh) is True


def test_a_failed_row_keeps_its_error_and_waits_unless_it_is_wanted_again(
    database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than any machine takes from one statement to the next.
    monkeypatch.setattr(work, "FIRST_BACK_OFF", work.LONGEST_BACK_OFF)
    want("a")
    (item,) = _claims(1)
    work.back_off(item, "the reason")
    assert engine.take("other", 30.0, ["test"]) is None
    with db.reader() as session:
        row = session.scalars(sa.select(models.Work)).one()
    assert (row.last_error, row.attempts, row.owner) == ("the reason", 1, None)
    want("a")
    assert len(_claims(1, "again")) == 1


@pytest.mark.every_database
def test_what_is_tried_to_no_avail_is_named_with_its_last_error(database: sa.Engine) -> None:
    want("a", "b", "c")
    for item in _claims(3):
        work.back_off(item, f"{item.key} fails")
    with db.writer() as session:
        attempts = sa.case({"a": 7, "b": 21}, value=models.Work.key, else_=6)
        db.update(session, models.Work, attempts=attempts)

    found = work.stuck(6)

    assert [(row.kind, row.key, row.attempts, row.last_error) for row in found] == [
        ("test", "b", 21, "b fails"),
        ("test", "a", 7, "a fails"),
    ]
    assert all(0 <= row.age < TIMEOUT for row in found)
    assert [row.key for row in work.stuck(0, limit=1)] == ["b"]


def test_claiming_and_finishing_costs_at_most_four_statements(database, count_sql) -> None:
    want("a")
    with count_sql() as counter:
        work.finish(_claims(1)[0])
    assert len(counter.statements) <= 4, counter.statements


@pytest.mark.every_database
def test_rows_that_are_claimed_together_have_each_its_own_owner(database: sa.Engine) -> None:
    want("a", "b", "c", "d")
    owners = ["me#1", "me#2", "me#3"]
    claims, more = work.take(iter(owners), 30.0, {"test": 3})
    assert (len(claims), more) == (3, True)
    with db.reader() as session:
        row = models.Work
        rows = session.execute(sa.select(row.key, row.owner, row.attempts, row.lease_ms)).all()
    owned = {key: owner for key, owner, attempts, lease in rows if owner and attempts and lease}
    assert owned == {item.key: item.owner for item in claims}
    assert sorted(owned.values()) == owners


def test_work_that_has_got_the_id_of_other_work_is_not_claimed_for_it(
    database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = work._due

    def look_and_let_it_be_replaced(kinds: Sequence[str]) -> list[sa.Row[Any]]:
        found = look(kinds)
        with db.writer() as session:
            session.execute(sa.update(models.Work).values(key="b"))
        return found

    want("a")
    monkeypatch.setattr(work, "_due", look_and_let_it_be_replaced)
    assert _claims(1) == []
    monkeypatch.undo()
    assert [item.key for item in _claims(1)] == ["b"]


def test_a_rolled_back_change_leaves_no_work(database: sa.Engine) -> None:
    def change() -> None:
        with db.writer() as session:
            work.want(session, "test", ["a"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert left() == 0


def test_a_kind_that_is_stuck_does_not_hold_up_another(database: sa.Engine) -> None:
    stuck, done = threading.Event(), threading.Event()

    def hang(item: work.Item) -> None:
        stuck.wait(TIMEOUT)

    runner = worker.Worker(
        {"stuck": hang, "test": lambda item: done.set()},
        name="one",
        threads=2,
        lease_seconds=30,
        poll_interval=0.1,
    )
    want(*map(str, range(6)), kind="stuck")
    runner.start()
    try:
        want("a")
        assert done.wait(TIMEOUT)
    finally:
        stuck.set()
        runner.stop(grace=10)


def test_a_failed_row_is_tried_again_when_it_is_due(database: sa.Engine) -> None:
    tries: list[int] = []

    def fail_twice(item: work.Item) -> None:
        tries.append(item.attempts)
        if len(tries) < 3:
            raise work.TryLater("not yet")

    want("one")
    runner = worker.Worker(
        {"test": fail_twice}, name="me", threads=1, lease_seconds=30, poll_interval=3600
    )
    runner.start()
    _wait_until_empty()
    runner.stop(1)
    assert tries == [1, 2, 3]


def test_a_thread_is_started_where_none_is_idle(database: sa.Engine) -> None:
    before = set(threading.enumerate())
    runner = worker.Worker(
        {"test": lambda item: None}, name="me", threads=16, lease_seconds=30, poll_interval=3600
    )
    runner.start()
    for number in range(12):
        want(str(number))
        runner.kick()
        _wait_until_empty()
    started = set(threading.enumerate()) - before
    runner.stop(10)
    # Those that claim and renew among them.
    assert len(started) < 8
