# SPDX-License-Identifier: Apache-2.0
"""The command ``cyborg-status``, as operators and their monitoring run it."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.arqs import service
from cyborg.audits import differences, safeguards
from cyborg.audits.finding import Finding
from cyborg.audits.finding import repair as repair_all
from cyborg.db import models, schema
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import client
from cyborg.policy import context
from cyborg.states import allocation_states as states
from cyborg.tests import boots, engine, hosts
from cyborg.tests.novasink import NovaSink
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.status_command import Status

pytestmark = pytest.mark.slow

A = provider_uuid("host-1_a")


@pytest.fixture
def status(tmp_path: pathlib.Path, database: sa.Engine, database_url: str) -> Status:
    return Status(tmp_path, database_url)


@pytest.fixture
def with_placement(status: Status, placement: PlacementServer, card: str) -> Status:
    """One host with one card, in Placement too."""
    with db.writer() as session:
        db.delete(session, models.Work)
    token = ["auth_type = admin_token", "token = admin"]
    status.set("placement", *token, f"endpoint = {placement.url}")
    return status


@pytest.mark.makes_up_rows
def test_what_is_wrong_is_said(with_placement: Status, placement: PlacementServer) -> None:
    end = "Hosts compared with Placement: 1.\n"
    assert with_placement("check") == (0, f"Findings: 0.\n{end}")

    placement.set_traits(A)
    gone = models.new_uuid()
    with db.writer() as session:
        work.want(session, work.BIND, [gone])
        values = {"wanted_ms": 0, "due_ms": db.now_ms() + 9000, "attempts": 12}
        db.update(session, models.Work, **values, last_error="It is broken")
        session.add(models.Arq(state=models.BOUND, device_profile_name="x", group={}, uuid=gone))
    status, found = with_placement.json("check", "--format", "json")
    assert (status, found["fault"]) == (1, None)
    assert found["hosts"] == {"compared": 1, "in_progress": 0}
    about_arq, stuck, difference = (item["finding"] for item in found["findings"])
    assert about_arq.startswith(f"ARQ {gone} is Bound, but")
    assert stuck.startswith(f"bind/{gone} was tried 12 times in ")
    assert stuck.endswith(": It is broken")
    assert found["findings"][2]["check"] == "placement, host host-1"
    assert difference == f"Provider host-1_a ({A}) lacks traits CUSTOM_FAKE_DEVICE."

    status, text = with_placement("check")
    assert status == 1
    assert "It is broken" in text
    assert text.endswith(end)
    assert with_placement("check", "--attempts", "12")[1].count("It is broken") == 0

    # Work under way is nothing wrong.
    with db.writer() as session:
        db.delete(session, models.Arq)
        db.delete(session, models.Work)
        work.want(session, work.PLACEMENT, ["host-1"])
    status, found = with_placement.json("check", "--format", "json")
    assert (status, found["hosts"]) == (0, {"compared": 1, "in_progress": 1})


def test_a_placement_that_does_not_answer_is_another_status(status: Status) -> None:
    hosts.apply(hosts.card())
    with db.writer() as session:
        db.delete(session, models.Work)
    status.set("placement", "auth_type = none", "endpoint_override = http://127.0.0.1:1")
    code, found = status.json("check", "--format", "json")
    assert code == 2
    assert "127.0.0.1" in found["fault"]
    code, text = status("check")
    assert code == 2
    assert "Findings" not in text


@pytest.mark.makes_up_rows
@pytest.mark.parametrize("trouble", ["no database", "no schema", "an old schema", "no option"])
def test_without_a_database_nothing_can_be_said(
    status: Status, database: sa.Engine, trouble: str
) -> None:
    statements = {
        "no schema": "DROP TABLE alembic_version",
        "an old schema": "UPDATE alembic_version SET version_num = 'a1'",
    }
    if trouble in statements:
        with database.begin() as connection:
            connection.execute(sa.text(statements[trouble]))
    else:
        url = "mysql+pymysql://u:secret@127.0.0.1:1/x" if trouble == "no database" else ""
        status.set("database", f"connection = {url}")
    code, found = status.json("check", "--format", "json")
    assert code == 2
    assert found["fault"]
    assert "secret" not in found["fault"]
    code, found = status.json("upgrade", "check", "--json")
    assert code == 2
    assert found["checks"][0]["result"] == 2
    assert "secret" not in found["checks"][0]["details"]


def test_an_upgrade_that_can_be_made(status: Status) -> None:
    code, text = status("upgrade", "check")
    assert code == 0
    assert text.count("Result: Success") == 6
    assert "None" not in text


def test_what_to_look_at_before_an_upgrade(status: Status, tmp_path: pathlib.Path) -> None:
    rules = '"cyborg:arq:create": "!"\n"cyborg:fpga:get_all": "@"\n'
    (tmp_path / "policy.yaml").write_text(rules)
    status.set("agent", "enabled_driver = pci_driver")
    status.set("DEFAULT", "quota_gpus = 5")
    status.set("api", "api_workers = 4")
    status.set("cyborg_nvme", "helper_command = privsep-helper")
    status.set("oslo_limit", "auth_type = password\nusername = cyborg\nendpoint_id = 1")
    status.set("oslo_policy", "enforce_new_defaults = false")
    code, found = status.json("upgrade", "check", "--json")
    assert code == 1, found
    by_name = {check["check"]: check for check in found["checks"]}
    told = by_name["Options without a meaning"]["details"]
    for named in ("[DEFAULT] quota_gpus", "[api] api_workers", "enforce_new_defaults = false"):
        assert named in told
    assert "Option [agent] enabled_driver is not read by this release." in told
    assert told.count("is not read") == 1
    of_rules = by_name["Rules of the policy file"]
    assert of_rules["result"] == 1, of_rules
    assert of_rules["details"].startswith("Rule cyborg:fpga:get_all is none of this release")
    assert of_rules["details"].count("none of this release") == 1


def test_what_stops_an_upgrade(status: Status, tmp_path: pathlib.Path) -> None:
    (tmp_path / "policy.json").write_text('{"cyborg:arq:create": "!"}')
    (tmp_path / "api-paste.ini").write_text("[pipeline:main]\npipeline = a b\n")
    status.set("oslo_policy", "policy_file = policy.json")
    status.set("upgrade_levels", "agent = 1.0")
    code, found = status.json("upgrade", "check", "--json")
    assert code == 2
    failed = {check["check"] for check in found["checks"] if check["result"] == 2}
    assert failed == {"Policy file is YAML", "Paste file", "RPC pins"}


def test_a_database_of_another_release_is_not_taken_for_an_old_one(
    status: Status, database: sa.Engine
) -> None:
    head = schema.head()
    statement = sa.text("UPDATE alembic_version SET version_num = :revision")
    with database.begin() as connection:
        connection.execute(statement, {"revision": "b47c8f2d1e3a"})
    code, text = status("upgrade", "check")
    assert code == 2
    assert "does not know" in " ".join(text.split())
    with database.begin() as connection:
        connection.execute(statement, {"revision": head})


class Books:
    """One card, and instances of which Cyborg, Placement and Nova do not say the same."""

    def __init__(
        self, status: Status, conf: Any, placement: PlacementServer, sink: NovaSink, boot: Any
    ) -> None:
        self.status = status
        self.conf = conf
        self.placement = placement
        self.sink = sink
        self.boot = boot

    def command(self, *arguments: str) -> dict[str, Any]:
        """The findings of the command about each instance, by its uuid."""
        arguments = ("--settle", "0", "--format", "json", *arguments)
        _, found = self.status.json("check", *arguments)
        assert found["fault"] is None
        assert {item["check"] for item in found["findings"]} <= {"allocations, host host-1"}
        return {item["finding"].split()[1]: item for item in found["findings"]}

    def check(self, *, repair: bool = False) -> dict[str, Any]:
        """The same without a start of the command."""
        found, explained = differences.find(self.conf, settle=0), list[str]()
        done: list[tuple[Finding, str | None]]
        if not repair:
            done = [(each, None) for each in found]
        else:
            done = list(repair_all(found, explained.append))
            assert len(explained) == len(done)
        return {
            each.sentence.split()[1]: {"finding": each.sentence, "repair": outcome}
            for each, outcome in done
        }


@pytest.fixture
def books(
    with_placement: Status,
    placement: PlacementServer,
    conf: Any,
    ctx: context.RequestContext,
    sink: NovaSink,
) -> Books:
    def boot(*, arqs: int, allocated: int, in_nova: bool = False) -> str:
        instance = models.new_uuid()
        if arqs:
            boots.bind(ctx, boots.arqs(ctx, arqs), instance)
            engine.drain(conf)
        if allocated:
            placement.allocate(instance, A, FPGA=allocated)
        sink.servers |= {instance} if in_nova else set()
        return instance

    with_placement.set("nova", "auth_type = none", f"endpoint_override = {sink.url}")
    # As the command has it.
    conf.set_override("allocation_audit_interval", 30, group="conductor")
    return Books(with_placement, conf, placement, sink, boot)


def test_arqs_without_allocation_are_released_where_nova_agrees(
    books: Books, ctx: context.RequestContext
) -> None:
    books.boot(arqs=1, allocated=1)
    gone, lives = books.boot(arqs=1, allocated=0), books.boot(arqs=1, allocated=0, in_nova=True)
    found = books.check()
    assert found.keys() == {gone, lives}
    assert f"of provider {A} and no allocation there." in found[gone]["finding"]
    assert {item["repair"] for item in found.values()} == {None}
    assert len(service.list_arqs(ctx)) == 3

    found = books.command("--repair")
    assert found[gone]["repair"].endswith("its ARQs there are deleted. Done.")
    assert "not repaired: Nova does not say" in found[lives]["repair"]
    assert gone not in {arq.consumer_uuid for arq in service.list_arqs(ctx)}
    assert books.check().keys() == {lives}


def test_allocations_without_arq_are_removed_where_nova_agrees(books: Books) -> None:
    books.boot(arqs=1, allocated=1, in_nova=True)
    gone, lives = books.boot(arqs=0, allocated=1), books.boot(arqs=0, allocated=1, in_nova=True)
    other = books.placement.make_provider("of-nova")
    inventory = {"total": 4, "max_unit": 4}
    books.placement.set_inventories(other, VCPU=inventory)
    books.placement.release(gone)
    body: dict[str, Any] = {"consumer_generation": None, "project_id": "p", "user_id": "u"}
    claimed = {A: {"resources": {"FPGA": 1}}, other: {"resources": {"VCPU": 2}}}
    books.placement.call("PUT", f"/allocations/{gone}", body | {"allocations": claimed})

    assert books.check().keys() == {gone, lives}
    found = books.check(repair=True)
    assert found[gone]["repair"].endswith("and no other. Done.")
    assert "not repaired" in found[lives]["repair"]
    kept = books.placement.call("GET", f"/allocations/{gone}")["allocations"]
    assert {uuid: held["resources"] for uuid, held in kept.items()} == {other: {"VCPU": 2}}
    assert books.check().keys() == {lives}


def test_more_arqs_than_allocated_are_shown_and_left(
    books: Books, ctx: context.RequestContext
) -> None:
    more, fewer = books.boot(arqs=2, allocated=1), books.boot(arqs=1, allocated=1)
    books.placement.release(fewer)
    books.placement.allocate(fewer, A, FPGA=2)
    found = books.check(repair=True)
    assert found.keys() == {more, fewer}
    assert f"has 2 ARQs of provider {A}" in found[more]["finding"]
    assert found[more]["finding"].endswith("an allocation of 1 there.")
    assert {item["repair"] for item in found.values()} == {
        "This is not repaired: it cannot be told which of them is right."
    }
    assert len(service.list_arqs(ctx)) == 3


def test_consumers_that_claim_nothing_are_no_findings(
    books: Books, ctx: context.RequestContext
) -> None:
    books.boot(arqs=1, allocated=0)
    claims = books.boot(arqs=0, allocated=1)
    for option in ("allocation_audit_interval", "instance_audit_interval"):
        before = books.conf.conductor[option]
        books.conf.set_override(option, 0, group="conductor")
        assert books.check(repair=True) == {}, option
        books.conf.set_override(option, before, group="conductor")
    assert len(service.list_arqs(ctx)) == 1
    assert books.placement.call("GET", f"/allocations/{claims}")["allocations"]


@pytest.mark.makes_up_rows
def test_what_cyborg_claims_itself_is_compared_without_nova(books: Books) -> None:
    books.boot(arqs=1, allocated=0)
    lost = books.boot(arqs=1, allocated=0)
    columns = {"project_id": "p", "user_id": "u", "consumer_type": "JOB", "state": states.ACTIVE}
    plan: dict[str, Any] = {"request": {}, "alternative": 0, "plan": [], "accelerators": 1}
    with db.writer() as session:
        session.add(models.Allocation(uuid=lost, **columns, **plan))
    books.conf.set_override("instance_audit_interval", 0, group="conductor")
    found = books.check(repair=True)
    assert found.keys() == {lost}
    assert "an allocation of Cyborg's own" in found[lost]["repair"]


def test_what_is_no_instance_is_left_to_whoever_made_it(books: Books) -> None:
    books.boot(arqs=1, allocated=1, in_nova=True)
    theirs = books.boot(arqs=0, allocated=1)
    books.sink.deleted = {theirs}
    api = client.Client(books.conf)
    held = api.find_allocations(theirs)
    assert held is not None
    owner = dataclasses.replace(held.owner, consumer_type="MIGRATION")
    api.hold(theirs, owner, held.amounts, held.generation)
    assert "no instance but MIGRATION" in books.check(repair=True)[theirs]["repair"]
    assert api.find_allocations(theirs) is not None
    books.placement.release(theirs)


def test_a_nova_that_knows_none_of_the_instances_has_nothing_repaired(
    books: Books, ctx: context.RequestContext
) -> None:
    """As where [nova] is of another region, and Placement has lost its allocations."""
    lives, claims = books.boot(arqs=1, allocated=0), books.boot(arqs=0, allocated=1)
    found = books.check(repair=True)
    assert found.keys() == {lives, claims}
    assert all("Nova has none of the instances" in item["repair"] for item in found.values())
    # Once for itself, and once as a witness of all others.
    assert books.sink.asked.count(f"/servers/{lives}") == 2
    assert len(service.list_arqs(ctx)) == 1

    books.sink.deleted = {lives, claims}
    books.check(repair=True)
    assert books.check() == {}


def test_nothing_is_repaired_where_nova_is_of_another_region(
    database: sa.Engine, conf: Any
) -> None:
    conf.set_override("region_name", "RegionTwo", group="nova")
    conf.set_override("region_name", "RegionOne", group="placement")
    found = differences.Difference(
        host="host-1", provider=A, consumer=models.new_uuid(), arqs=(), serving=0, allocated=1
    )
    repair = differences.plan_repair(conf, found, safeguards.once(conf))
    assert repair.carry_out is None
    assert "[nova] region_name is RegionTwo" in repair.explanation


def test_a_provider_that_placement_does_not_have_says_nothing_of_its_arqs(
    books: Books, ctx: context.RequestContext
) -> None:
    books.boot(arqs=1, allocated=1, in_nova=True)
    other = books.boot(arqs=1, allocated=0)
    books.placement.release(*books.sink.servers)
    books.placement.call("DELETE", f"/resource_providers/{A}")
    assert other not in books.check(repair=True)
    assert len(service.list_arqs(ctx)) == 2
    books.placement.sync(full=True)


def test_no_more_are_given_up_at_a_time_than_conductors_may(books: Books) -> None:
    books.boot(arqs=1, allocated=1, in_nova=True)
    for arqs in (1, 1, 0):
        books.boot(arqs=arqs, allocated=1 - arqs)
    books.conf.set_override("max_instance_releases", 1, group="conductor")
    repairs = [item["repair"] for item in books.check(repair=True).values()]
    assert sum(repair.endswith("Done.") for repair in repairs) == 1
    assert sum("as many as [conductor] max_instance_releases" in said for said in repairs) == 2
    left = books.check()
    assert len(left) == 2

    # What Nova says it has deleted, and Cyborg or Placement does not have either, does not count.
    books.sink.deleted = set(left)
    books.check(repair=True)
    assert books.check() == {}
