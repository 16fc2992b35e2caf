# SPDX-License-Identifier: Apache-2.0
"""The history outlives what it is about, and each caller reads the part that is theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db, history, work
from cyborg.arqs import refusals
from cyborg.common import errors, reasons
from cyborg.conductor import periodic_tasks
from cyborg.db import models, paging
from cyborg.handles import release
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.programming import operations
from cyborg.tests import boots, engine, hosts
from cyborg.tests.fpga import Card
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

DAY = 86400


@pytest.fixture
def card(database: sa.Engine) -> str:
    """The uuid of a device with four handles."""
    hosts.apply(hosts.card("a"))
    with db.reader() as session:
        return session.scalars(sa.select(models.Device.uuid)).one()


def entries(**wanted: str) -> list[models.HistoryEntry]:
    return history.list_entries(None, paging.ALL, **wanted)


class Readers:
    """The API as an administrator and as a member of a project see it."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        conf.set_override("auth_strategy", "noauth", group="api")
        self._api = Api(conf)

    def ask(self, path: str, project: str | None = None, version: str = "2.4") -> webob.Response:
        who = {"x_project_id": project or "", "x_roles": "member,reader", "x_user_id": "somebody"}
        return self._api.ask("GET", f"/v2{path}", version=version, **(who if project else {}))

    def read(self, path: str, project: str | None = None, version: str = "2.4") -> Any:
        answer = self.ask(path, project, version)
        assert answer.status_int == 200, answer.text
        return answer.json

    def list(self, path: str, project: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.read(path, project)["history"]
        return found


def let_pass(seconds: int) -> None:
    """Make all of the history so much older."""
    entry, earlier_ms = models.HistoryEntry, seconds * 1000
    aged = {name: getattr(entry, name) - earlier_ms for name in ("started_ms", "ended_ms")}
    with db.writer() as session:
        db.update(session, entry, **aged)


@pytest.mark.every_database
@pytest.mark.parametrize("way", ["delete", "unbind"])
def test_who_had_which_handle_from_when_to_when(conf, ctx, card, way: str) -> None:
    instance = boots.boot(conf, ctx, 2)
    held = dict(zip(boots.states(ctx), boots.handles(ctx), strict=True))
    used = entries(kind=history.USED)
    assert {each.arq_uuid: each.handle_uuid for each in used} == held
    for each in used:
        assert (each.device_uuid, each.consumer_uuid) == (card, instance)
        assert (each.project_id, each.resource_class) == ("project-1", "FPGA")
        assert each.ended_ms is None
        assert json.loads(each.attach_info or "{}")["bus"] == "0c"
        assert each.profile_name

    let_pass(60)
    if way == "delete":
        release.delete_instance_arqs(ctx, instance)
    else:
        with db.writer() as session:
            release.unbind(session, list(release.lock_arqs(session, ctx, held).values()))
    for each in entries(instance_uuid=instance):
        assert each.ended_ms is not None
        assert 60_000 <= each.ended_ms - each.started_ms < 600_000

    # The next guest of the same handles is another entry.
    let_pass(60)
    other = boots.boot(conf, ctx)
    (again,) = entries(instance_uuid=other)
    assert again.handle_uuid in held.values()
    assert again.ended_ms is None
    assert len(entries()) == 3


@pytest.mark.every_database
def test_the_owner_of_a_sick_card_is_told_of_it_and_of_nothing_else(conf, ctx, card) -> None:
    readers = Readers(conf)
    conf.set_override("host", "controller-1")
    instance = boots.boot(conf, ctx, 2)
    secret = "GPU 0000:3b:00.0 of host-1 burns, ask bob@host-1.example."

    def told(project: str) -> list[tuple[str, str | None]]:
        found = readers.list("/history?kind=unhealthy", project)
        assert not any(each["actor"] or each["hostname"] for each in found)
        return sorted((each["arq_uuid"], each["ended_at"]) for each in found)

    def healths(version: str = "2.4") -> list[str]:
        found = readers.read("/accelerator_requests", "project-1", version)["arqs"]
        path = f"/accelerator_requests/{found[0]['uuid']}"
        one = readers.read(path, "project-1", version)
        assert one.get("health", "absent") == found[0].get("health", "absent")
        return [arq.get("health", "absent") for arq in found]

    assert healths() == ["healthy"] * 2
    assert told("project-1") == []
    hosts.apply(hosts.card("a", unhealthy=secret))
    assert healths() == ["unhealthy"] * 2
    assert healths("2.3") == ["absent"] * 2
    mine = sorted(boots.states(ctx))
    assert told("project-1") == [(uuid, None) for uuid in mine]
    assert told("project-2") == []
    answer = readers.read("/history", "project-1")
    for word in ("burns", "0000:3b", "host-1", "bob"):
        assert word not in str(answer), word
    (first, _) = [e for e in answer["history"] if e["kind"] == history.UNHEALTHY]
    assert (first["project_id"], first["instance_uuid"]) == ("project-1", instance)
    assert (first["device_uuid"], first["resource_class"]) == (card, "FPGA")
    assert first["attach_handle_uuid"] in boots.handles(ctx)
    assert "The device is unhealthy" in first["reason"]
    # An administrator reads the device's own entry besides, and why.
    (of_device,) = [e for e in entries(kind=history.UNHEALTHY) if e.project_id is None]
    assert of_device.private_reason == secret

    # The card is well again for one, and not theirs any more for the other.
    with db.writer() as session:
        release.unbind(session, list(release.lock_arqs(session, ctx, [mine[0]]).values()))
    assert [ended is not None for _, ended in told("project-1")] == [True, False]
    hosts.apply(hosts.card("a"))
    assert all(ended for _, ended in told("project-1"))
    (usage,) = readers.read("/usages", "project-1")["usages"]
    assert usage["in_use"] == 1


@pytest.mark.every_database
def test_the_reason_of_a_failed_bind_outlives_the_request(conf, ctx, card) -> None:
    # A conductor binds to a card that can be programmed.
    hosts.apply(hosts.card("a", program_mode="dynamic"))
    failed = boots.ask(ctx)
    hosts.apply(hosts.card("a", program_mode="dynamic", unhealthy="It burns."))
    engine.drain(conf)
    release.delete_instance_arqs(ctx, failed)
    # Nova deletes the ARQs of a boot that took too long; no conductor has said that a bind failed.
    hosts.apply(hosts.card("a", prepares=True))
    tried = boots.ask(ctx)
    item = engine.take("conductor-1", 60, [work.BIND])
    assert item is not None
    work.back_off(item, "Nobody prepares it.")
    other = boots.ask(ctx)
    for each in (tried, other):
        release.delete_instance_arqs(ctx, each)

    found = {each: entries(instance_uuid=each) for each in (failed, tried, other)}
    for (entry,) in found.values():
        assert (entry.kind, entry.device_uuid) == (history.BIND_FAILED, card)
        assert entry.ended_ms is not None
    (entry,) = found[failed]
    assert "It burns." in (entry.private_reason or "")
    assert entry.reason == reasons.OF_BINDS[reasons.UNAVAILABLE]
    (entry,) = found[tried]
    assert entry.private_reason == (
        "It was given up before it had ended. Its last attempt failed: Nobody prepares it."
    )
    assert "Nobody prepares it" not in (entry.reason or "Nobody prepares it")
    (entry,) = found[other]
    assert entry.private_reason == "It was given up before it had ended."


@pytest.mark.every_database
def test_a_bind_to_what_is_not_there_or_does_not_fit_is_kept(conf, ctx, tenant, card) -> None:
    # An administrator binds what a project has: the project is told why it failed.
    arqs = boots.arqs(tenant)
    unknown = provider_uuid("none")
    for instance, changes in (
        (models.new_uuid(), {"device_rp_uuid": unknown}),
        (models.new_uuid(), {"hostname": "host-2"}),
    ):
        with pytest.raises((errors.NotFound, errors.Invalid)) as refused:
            boots.bind(ctx, arqs, instance, **changes)
        (entry,) = entries(instance_uuid=instance)
        assert (entry.kind, entry.arq_uuid) == (history.BIND_FAILED, arqs[0])
        assert entry.project_id == "project-2"
        assert entry.private_reason == refused.value.message
        (own,) = Readers(conf).list(f"/history?instance_uuid={instance}", project="project-2")
        assert own["reason"] == refusals.MISPLACED


@pytest.mark.every_database
def test_what_is_refused_again_and_again_fills_no_table(ctx, tenant, monkeypatch) -> None:
    monkeypatch.setattr(history, "REFUSALS_MAX", 3)
    instance = models.new_uuid()

    def refuse(who: context.RequestContext, instance: str, provider: str) -> None:
        with pytest.raises(errors.NotFound):
            boots.bind(who, [models.new_uuid()], instance, device_rp_uuid=provider)

    for _ in range(5):
        with pytest.raises(errors.NotFound), refusals.kept(ctx, instance):
            raise errors.NotFound("There is none.")
    assert len(entries()) == 1
    for number in range(5):
        refuse(ctx, models.new_uuid(), provider_uuid(f"none-{number}"))
    assert len(entries(project_id="project-1")) == 3
    # Others have their own, and so has the next hour.
    refuse(tenant, models.new_uuid(), provider_uuid("none"))
    assert len(entries(project_id="project-2")) == 1
    let_pass(3601)
    refuse(ctx, models.new_uuid(), provider_uuid("none"))
    assert len(entries(project_id="project-1")) == 4


def test_a_refusal_reads_only_what_the_project_was_refused_lately(ctx) -> None:
    def refuse() -> None:
        with pytest.raises(errors.NotFound), refusals.kept(ctx):
            raise errors.NotFound("There is none.")

    ran: list[tuple[str, Any]] = []

    def note(_conn: object, _cursor: object, statement: str, values: Any, *_rest: object) -> None:
        if statement.startswith(("UPDATE history", "SELECT count")):
            ran.append((f"EXPLAIN QUERY PLAN {statement}", values))

    refuse()
    let_pass(3601)
    for each in db.engines():
        sa.event.listen(each, "before_cursor_execute", note)
    refuse()
    for each in db.engines():
        sa.event.remove(each, "before_cursor_execute", note)
    assert len(entries()) == 2
    with db.reader() as session:
        plans = [str(session.connection().exec_driver_sql(*each).all()) for each in ran]
    assert len(plans) == 2
    assert all("ix_history_project_id_kind_ended_ms" in plan for plan in plans)


@pytest.mark.every_database
def test_illness_and_absence_have_a_beginning_and_an_end(conf, ctx, card) -> None:
    for fault in ("It burns.", "It smokes.", None):
        hosts.apply(hosts.card("a", unhealthy=fault))
    burns, smokes = entries(device_uuid=card, kind=history.UNHEALTHY)
    assert (burns.private_reason, smokes.private_reason) == ("It burns.", "It smokes.")
    assert burns.ended_ms is not None
    assert smokes.ended_ms is not None

    instance = boots.boot(conf, ctx)
    hosts.apply()
    (away,) = entries(device_uuid=card, kind=history.MISSING)
    assert away.ended_ms is None
    release.delete_instance_arqs(ctx, instance)
    # It is gone for good now, and its history stays.
    assert all(each.ended_ms is not None for each in entries(device_uuid=card))
    assert len(entries(device_uuid=card)) == 4


def test_what_ended_long_ago_is_forgotten(conf, ctx, card) -> None:
    assert history.forget in periodic_tasks.TASKS
    conf.set_override("history_expiry", 7 * DAY, group="conductor")
    release.delete_instance_arqs(ctx, boots.boot(conf, ctx))
    running = boots.boot(conf, ctx)
    let_pass(6 * DAY)
    history.forget(conf)
    assert len(entries()) == 2
    let_pass(2 * DAY)
    conf.set_override("history_expiry", 0, group="conductor")
    history.forget(conf)
    assert len(entries()) == 2
    conf.set_override("history_expiry", 7 * DAY, group="conductor")
    history.forget(conf)
    assert [each.consumer_uuid for each in entries()] == [running]


@pytest.mark.every_database
def test_what_is_forgotten_stays_so_when_more_is_to_be_kept(conf, ctx, card) -> None:
    def days_known() -> int | None:
        with db.reader() as session:
            now_ms = session.scalars(sa.select(db.now_ms())).one()
        since_ms = history.known_since(conf)
        return None if since_ms is None else round((now_ms - since_ms) / DAY / 1000)

    conf.set_override("history_expiry", 0, group="conductor")
    assert days_known() is None
    for days in (10, 30):
        release.delete_instance_arqs(ctx, boots.boot(conf, ctx))
        let_pass(days * DAY)
    for expiry in (35, 20):
        conf.set_override("history_expiry", expiry * DAY, group="conductor")
        history.forget(conf)
        assert days_known() == expiry
    conf.set_override("history_expiry", 365 * DAY, group="conductor")
    assert days_known() == 30
    conf.set_override("history_expiry", 0, group="conductor")
    assert days_known() == 30


def test_an_owner_reads_its_own_part_in_plain_words(conf, ctx, tenant, card) -> None:
    boots.boot(conf, ctx)
    flags.disable_device(card)
    with pytest.raises(errors.Conflict):
        boots.boot(conf, tenant)
    readers = Readers(conf)
    path = f"/devices/{card}/history"
    everything = readers.list(path)
    assert {each["kind"] for each in everything} == {"used", "disabled", "bind_failed"}
    assert everything == readers.list("/history")

    (own,) = readers.list(path, project="project-2")
    (same,) = [each for each in everything if each["kind"] == "bind_failed"]
    assert same["hostname"] == hosts.ROOT
    assert own == same | {"reason": own["reason"], "hostname": None}
    assert own["reason"].startswith("The accelerator that was chosen")
    assert card in same["reason"]
    assert readers.list("/history?project_id=project-1", project="project-2") == []
    assert readers.list("/history", project="project-3") == []

    # There are pages.
    first = readers.ask(f"{path}?limit=2").json
    (link,) = first["history_links"]
    rest = readers.list(link["href"].partition("/v2")[2])
    assert first["history"] + rest == readers.list("/history?sort_key=started_at")
    assert (len(first["history"]), len(rest)) == (2, 1)
    assert readers.list(f"/history?device_uuid={provider_uuid('another')}") == []
    assert readers.ask("/history?kind=nonsense").status_int == 400


def test_what_was_written_to_a_card_and_by_whom(dynamic: Card, conf: cfg.ConfigOpts) -> None:
    image = dynamic.image("aes-128")
    operation = dynamic.programmed(image_uuid=image)
    # It runs that already, so nothing is written.
    dynamic.programmed(image_uuid=image)
    (entry,) = entries(kind=history.PROGRAMMED)
    assert (entry.image_uuid, entry.actor) == (image, operation["asked_by"])
    assert (entry.reason, entry.project_id) == (None, None)
    (device,) = dynamic.site.call("GET", "/devices")["devices"]
    assert entry.device_uuid == device["uuid"]

    dynamic.site.fail("program")
    failed = dynamic.programmed(image_uuid=dynamic.image("zip-9"))
    last = entries(kind=history.PROGRAMMED)[-1]
    assert (last.private_reason, last.function_id) == (failed["error"], "zip-9")
    assert (entry.reason, last.reason) == (None, operations.NOT_DONE)
    # What was written for a guest is its project's.
    dynamic.site.obey()
    dynamic.image("sha-3")
    instance = models.new_uuid()
    arq = dynamic.resolved(dynamic.bind(instance, function_id="sha-3"))
    assert arq["state"] == models.BOUND, arq["state_reason"]
    (guests,) = entries(kind=history.PROGRAMMED, instance_uuid=instance)
    assert guests.project_id == arq["project_id"] is not None
    assert {each.hostname for each in (entry, last, guests)} == {"host-1.example"}

    # Its owner reads what was programmed for its instance.
    dynamic.site.call("DELETE", f"/accelerator_requests?instance={instance}")
    dynamic.site.fail("program")
    instance, image = models.new_uuid(), dynamic.image("zip-8")
    arq = dynamic.resolved(dynamic.bind(instance, bitstream_id=image))
    assert arq["state"] == models.BIND_FAILED
    (entry,) = entries(kind=history.PROGRAMMED, instance_uuid=instance)
    assert (entry.image_uuid, entry.project_id) == (image, arq["project_id"])
    path = f"/history?kind=programmed&instance_uuid={instance}"
    (own,) = Readers(conf).list(path, arq["project_id"])
    assert own["reason"] == operations.NOT_DONE
    assert entry.private_reason != own["reason"]
    assert (own["actor"], own["hostname"]) == (None, None)
    assert Readers(conf).list(path, project="another") == []


@pytest.mark.every_database
@pytest.mark.usefixtures("card")
def test_the_project_is_known_though_the_request_is_gone(conf, ctx) -> None:
    instance = boots.boot(conf, ctx)
    for _ in range(2):
        project = history.project_of_instance(instance)
        with db.writer() as session:
            history.write(session, [{"kind": history.PROGRAMMED, "project_id": project}])
        release.delete_instance_arqs(ctx, instance)
    found = entries(kind=history.PROGRAMMED)
    assert [each.project_id for each in found] == [ctx.project_id] * 2
