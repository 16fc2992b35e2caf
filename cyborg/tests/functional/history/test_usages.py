# SPDX-License-Identifier: Apache-2.0
"""Usage is what the history says, of the class and the period asked for."""

from __future__ import annotations

import datetime

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db, history
from cyborg.db import models
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

HOUR = 3_600_000
GPU = {"resources:PGPU": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}


@pytest.fixture(autouse=True)
def cards(database: sa.Engine) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), resource_class="PGPU"))


def boot(conf: cfg.ConfigOpts, ctx: context.RequestContext, count: int, letter: str = "a") -> str:
    instance = models.new_uuid()
    arqs = boots.arqs(ctx, count, GPU if letter == "b" else None)
    boots.bind(ctx, arqs, instance, device_rp_uuid=provider_uuid(f"host-1_{letter}"))
    engine.drain(conf)
    return instance


def set_times(**times: tuple[int, int | None]) -> int:
    """Set begin and end of the uses of each instance, in hours before now; return now."""
    entry = models.HistoryEntry
    with db.writer() as session:
        now = session.scalars(sa.select(db.now_ms())).one()
        for instance, (began, ended) in times.items():
            ended_ms = None if ended is None else now - ended * HOUR
            where = entry.consumer_uuid == instance
            db.update(session, entry, where, started_ms=now - began * HOUR, ended_ms=ended_ms)
    return now


def of(project: str | None, *period: int) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """In use and whole hours by project and class."""
    found = history.sum_uses(project, *period)
    return {
        (each.project_id, each.resource_class): (each.in_use, round(each.hours)) for each in found
    }


@pytest.mark.every_database
def test_usage_is_the_sum_of_the_history(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, tenant: context.RequestContext
) -> None:
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


def test_over_http(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, tenant: context.RequestContext
) -> None:
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
