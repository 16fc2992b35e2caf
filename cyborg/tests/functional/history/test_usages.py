# SPDX-License-Identifier: Apache-2.0
"""Usage is what the history says of a class and a period; what that counts wrongly is mended."""

from __future__ import annotations

import datetime

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db, history
from cyborg.audits import uses
from cyborg.audits.finding import Finding, repair
from cyborg.db import models
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.mounted_api import Api
from cyborg.tests.status_command import Status

pytestmark = pytest.mark.usefixtures("database")

HOUR = 3_600_000
ENTRY = models.HistoryEntry
GPU = {"resources:PGPU": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}


@pytest.fixture(autouse=True)
def cards(database: sa.Engine) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), resource_class="PGPU"))


def boot(conf: cfg.ConfigOpts, ctx: context.RequestContext, count: int, letter: str = "a") -> str:
    group = GPU if letter == "b" else None
    place = provider_uuid(f"host-1_{letter}")
    return boots.boot(conf, ctx, count, group, device_rp_uuid=place)


def set_times(**times: tuple[int, int | None]) -> int:
    """Set begin and end of the uses of each instance, in hours before now; return now."""
    with db.writer() as session:
        now = session.scalars(sa.select(db.now_ms())).one()
        for instance, (began, ended) in times.items():
            ended_ms = None if ended is None else now - ended * HOUR
            where = ENTRY.consumer_uuid == instance
            db.update(session, ENTRY, where, started_ms=now - began * HOUR, ended_ms=ended_ms)
    return now


def of(project: str | None, *period: int) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """In use and whole hours by project and class."""
    found = history.sum_uses(project, *period)
    return {
        (each.project_id, each.resource_class): (each.in_use, round(each.hours)) for each in found
    }


@pytest.mark.every_database
def test_usage_is_the_sum_of_the_history(conf, ctx, tenant) -> None:
    ended, runs = boot(conf, ctx, 2), boot(conf, ctx, 1)
    gpu, other = boot(conf, ctx, 1, "b"), boot(conf, tenant, 1)
    release.delete_instance_arqs(ctx, ended)
    now = set_times(**{ended: (20, 10), runs: (5, None), gpu: (4, None), other: (3, None)})

    fpga, pgpu = ("project-1", "FPGA"), ("project-1", "PGPU")
    assert of("project-1") == {fpga: (1, 25), pgpu: (1, 4)}
    assert of(None) == {fpga: (1, 25), pgpu: (1, 4), ("project-2", "FPGA"): (1, 3)}
    # A period cuts what began before it and ended after it.
    assert of("project-1", now - 12 * HOUR, now - 2 * HOUR) == {fpga: (1, 7), pgpu: (1, 2)}
    assert of("project-1", now - 16 * HOUR, now - 15 * HOUR) == {fpga: (1, 2), pgpu: (1, 0)}
    assert of("project-3") == {}


def test_over_http(conf, ctx, tenant) -> None:
    mine, other = boot(conf, ctx, 1), boot(conf, tenant, 2)
    now = set_times(**{mine: (6, None), other: (6, None)})
    conf.set_override("auth_strategy", "noauth", group="api")
    api = Api(conf)

    def ask(query: str, project: str | None = None) -> webob.Response:
        who = {"x_project_id": project or "", "x_roles": "member,reader", "x_user_id": "somebody"}
        return api.ask("GET", f"/v2/usages{query}", **(who if project else {}))

    (own,) = ask("", "project-2").json["usages"]
    assert (own["project_id"], own["resource_class"], own["in_use"]) == ("project-2", "FPGA", 2)
    assert round(own["hours"]) == 12
    assert ask("?project_id=project-1", "project-2").json["usages"] == []
    assert ask("?all_projects=true", "project-2").status_int == 403
    everything = ask("?all_projects=true").json["usages"]
    assert [each["project_id"] for each in everything] == ["project-1", "project-2"]
    begin = datetime.datetime.fromtimestamp((now - 2 * HOUR) / 1000, datetime.UTC)
    (cut,) = ask(f"?project_id=project-1&start={begin:%Y-%m-%dT%H:%M:%SZ}").json["usages"]
    assert round(cut["hours"]) == 2
    conf.set_override("history_expiry", 3600, group="conductor")
    since = datetime.datetime.fromisoformat(ask("").json["known_since"])
    assert 0 <= since.timestamp() * 1000 - (now - HOUR) < HOUR
    conf.set_override("history_expiry", 0, group="conductor")
    shown = ask("?project_id=project-1", "project-2").json
    assert (shown["usages"], shown["known_since"]) == ([], None)
    for wrong in ("?start=yesterday", "?start=2026-11-21T10:00Z&end=2026-11-20T10:00Z"):
        assert ask(wrong).status_int == 400, wrong


def bound(conf: cfg.ConfigOpts, ctx: context.RequestContext, count: int = 1) -> list[str]:
    arqs = boots.arqs(ctx, count)
    boots.bind(ctx, arqs, models.new_uuid())
    engine.drain(conf)
    return arqs


def in_use() -> dict[str | None, int]:
    return {each.project_id: each.in_use for each in history.sum_uses(None) if each.in_use}


def change(*where: sa.ColumnElement[bool], **values: object) -> None:
    with db.writer() as session:
        assert db.update(session, ENTRY, *where, **values)


def uses_of(arq: str) -> list[models.HistoryEntry]:
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
def test_a_use_whose_end_was_not_written_is_ended(conf, ctx, tenant) -> None:
    (kept,) = bound(conf, ctx)
    first, second = bound(conf, ctx, 2)
    release.delete_arqs(ctx, [first, second])
    # Released by a process that writes no history.
    lost = ENTRY.arq_uuid.in_([first, second])
    change(lost, ended_ms=None, started_ms=ENTRY.started_ms - 60_000)
    (again,) = bound(conf, tenant)
    assert in_use() == {"project-1": 3, "project-2": 1}

    found = uses.find()
    assert len(found) == 2
    assert all("and it has not, or another" in each.sentence for each in found)
    assert {arq for arq in (first, second, kept) if arq in str(found)} == {first, second}
    assert len(mend(found)) == 2
    assert uses.find() == []
    assert in_use() == {"project-1": 1, "project-2": 1}
    assert [entry.ended_ms for arq in (kept, again) for entry in uses_of(arq)] == [None, None]
    # The handle that was given again was given back before that; nobody is known to have the other.
    ((next_use,), (one,), (two,)) = uses_of(again), uses_of(first), uses_of(second)
    same, other = (one, two) if one.handle_uuid == next_use.handle_uuid else (two, one)
    assert same.ended_ms == next_use.started_ms
    assert (other.ended_ms or 0) >= next_use.started_ms


@pytest.mark.every_database
def test_a_use_that_was_not_written_is_written(conf, ctx) -> None:
    lost, kept = bound(conf, ctx, 2)
    (before,) = uses_of(lost)
    with db.writer() as session:
        db.delete(session, ENTRY, ENTRY.arq_uuid == lost)
    (found,) = uses.find()
    assert found.sentence.startswith(f"ARQ {lost} is Bound with attach handle")
    for _ in range(2):
        # What another has mended meanwhile is not written twice.
        mend([found])
    assert uses.find() == []
    (entry,) = uses_of(lost)
    names = ("project_id", "consumer_uuid", "handle_uuid", "device_uuid", "resource_class")
    for name in (*names, "hostname", "ended_ms"):
        assert getattr(entry, name) == getattr(before, name)
    assert abs(entry.started_ms - before.started_ms) < 60_000
    assert in_use() == {"project-1": 2}
    assert len(uses_of(kept)) == 1


@pytest.mark.every_database
def test_a_use_that_was_written_twice_counts_once(conf, ctx) -> None:
    (arq,) = bound(conf, ctx)
    (entry,) = uses_of(arq)
    columns = {column.name for column in ENTRY.__table__.columns} - {"id", "uuid"}
    with db.writer() as session:
        history.write(session, [{name: getattr(entry, name) for name in columns}])
    assert in_use() == {"project-1": 2}
    mend(uses.find())
    assert in_use() == {"project-1": 1}
    (first, second) = uses_of(arq)
    assert (first.ended_ms, second.ended_ms) == (None, second.started_ms)


def test_the_command_explains_and_mends(conf, ctx, tmp_path, database_url) -> None:
    check = Status(tmp_path, database_url)
    (arq,) = bound(conf, ctx)
    with db.writer() as session:
        db.delete(session, models.Work)
    change(ENTRY.arq_uuid == arq, ended_ms=db.now_ms())
    status, report = check.json("check", "--format", "json")
    (finding,) = report["findings"]
    assert (status, finding["check"], finding["repair"]) == (1, "history", None)
    assert arq in finding["finding"]
    assert in_use() == {}
    status, report = check.json("check", "--format", "json", "--repair")
    assert report["findings"][0]["repair"].endswith("the bind was asked for. Done.")
    assert in_use() == {"project-1": 1}
    assert check("check")[0] == 0
