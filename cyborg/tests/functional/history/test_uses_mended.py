# SPDX-License-Identifier: Apache-2.0
"""What usage and quotas count wrongly is found, and mended where an operator asks for it."""

from __future__ import annotations

import pathlib

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history
from cyborg.audits import uses
from cyborg.audits.finding import Finding, repair
from cyborg.db import models
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.status_command import Status

pytestmark = pytest.mark.usefixtures("database")

_ENTRY = models.HistoryEntry


@pytest.fixture
def card(database: sa.Engine) -> None:
    """A device with four handles."""
    hosts.apply(hosts.card("a"))


def boot(conf: cfg.ConfigOpts, ctx: context.RequestContext, count: int = 1) -> list[str]:
    arqs = boots.arqs(ctx, count)
    boots.bind(ctx, arqs, models.new_uuid())
    engine.drain(conf)
    return arqs


def in_use() -> dict[str | None, int]:
    return {each.project_id: each.in_use for each in history.sum_uses(None) if each.in_use}


def change(*where: sa.ColumnElement[bool], **values: object) -> None:
    with db.writer() as session:
        assert db.update(session, _ENTRY, *where, **values)


def of(arq: str) -> list[models.HistoryEntry]:
    return history.list_entries(None, kind=history.USED, arq_uuid=arq)


def mend(found: list[Finding]) -> list[str]:
    """Repair it; what was explained before."""
    explained: list[str] = []
    done = list(repair(found, explained.append))
    assert [outcome is not None and outcome.endswith(" Done.") for _, outcome in done] == [
        True for _ in found
    ]
    return explained


@pytest.mark.every_database
@pytest.mark.usefixtures("card")
def test_a_use_whose_end_was_not_written_is_ended(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, tenant: context.RequestContext
) -> None:
    (kept,) = boot(conf, ctx)
    first, second = boot(conf, ctx, 2)
    release.delete_arqs(ctx, [first, second])
    # Released by a process that writes no history.
    lost = _ENTRY.arq_uuid.in_([first, second])
    change(lost, ended_ms=None, started_ms=_ENTRY.started_ms - 60_000)
    (again,) = boot(conf, tenant)
    assert in_use() == {"project-1": 3, "project-2": 1}

    found = uses.find()
    assert len(found) == 2
    assert all("and it has not, or another" in each.sentence for each in found)
    assert {arq for arq in (first, second, kept) if arq in str(found)} == {first, second}
    assert len(mend(found)) == 2
    assert uses.find() == []
    assert in_use() == {"project-1": 1, "project-2": 1}
    assert [entry.ended_ms for arq in (kept, again) for entry in of(arq)] == [None, None]
    # The handle that was given again was given back before that; nobody is known to have the other.
    ((next_use,), (one,), (two,)) = of(again), of(first), of(second)
    same, other = (one, two) if one.handle_uuid == next_use.handle_uuid else (two, one)
    assert same.ended_ms == next_use.started_ms
    assert (other.ended_ms or 0) >= next_use.started_ms


@pytest.mark.every_database
@pytest.mark.usefixtures("card")
def test_a_use_that_was_not_written_is_written(
    conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    lost, kept = boot(conf, ctx, 2)
    (before,) = of(lost)
    with db.writer() as session:
        db.delete(session, _ENTRY, _ENTRY.arq_uuid == lost)
    (found,) = uses.find()
    assert found.sentence.startswith(f"ARQ {lost} is Bound with attach handle")
    for _ in range(2):
        # What another has mended meanwhile is not written twice.
        mend([found])
    assert uses.find() == []
    (entry,) = of(lost)
    names = ("project_id", "consumer_uuid", "handle_uuid", "device_uuid", "resource_class")
    for name in (*names, "hostname", "ended_ms"):
        assert getattr(entry, name) == getattr(before, name)
    assert abs(entry.started_ms - before.started_ms) < 60_000
    assert in_use() == {"project-1": 2}
    assert len(of(kept)) == 1


@pytest.mark.every_database
@pytest.mark.usefixtures("card")
def test_a_use_that_was_written_twice_counts_once(
    conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    (arq,) = boot(conf, ctx)
    (entry,) = of(arq)
    columns = {column.name for column in _ENTRY.__table__.columns} - {"id", "uuid"}
    with db.writer() as session:
        history.write(session, [{name: getattr(entry, name) for name in columns}])
    assert in_use() == {"project-1": 2}
    mend(uses.find())
    assert in_use() == {"project-1": 1}
    (first, second) = of(arq)
    assert (first.ended_ms, second.ended_ms) == (None, second.started_ms)


@pytest.mark.usefixtures("card")
def test_the_command_explains_and_mends(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, tmp_path: pathlib.Path, database_url: str
) -> None:
    check = Status(tmp_path, database_url)
    (arq,) = boot(conf, ctx)
    with db.writer() as session:
        db.delete(session, models.Work)
    change(_ENTRY.arq_uuid == arq, ended_ms=db.now_ms())
    status, report = check.json("check", "--format", "json")
    (finding,) = report["findings"]
    assert (status, finding["check"], finding["repair"]) == (1, "history", None)
    assert arq in finding["finding"]
    assert in_use() == {}
    status, report = check.json("check", "--format", "json", "--repair")
    assert report["findings"][0]["repair"].endswith("the bind was asked for. Done.")
    assert in_use() == {"project-1": 1}
    assert check("check")[0] == 0
