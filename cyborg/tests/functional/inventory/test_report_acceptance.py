# SPDX-License-Identifier: Apache-2.0
"""A host that is broken into sends reports that reach beyond its own devices."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import pathlib
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, host_keys, liveness, rpc
from cyborg.common import errors
from cyborg.common.reasons import Reason
from cyborg.conductor import endpoint
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import acceptance, nodes
from cyborg.inventory import report as inventory_report
from cyborg.policy import context
from cyborg.rpc import lines, signing
from cyborg.tests import boots, engine, hosts, signed
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.signed import PATIENCE

pytestmark = pytest.mark.usefixtures("database")

HOUR = 3_600_000


def evil(*devices: base.Device, **changes: object) -> rpc.HostReport:
    report = hosts.report(*devices, host="evil")
    return replace(report, **({"node": "evil.example"} | changes))  # type: ignore[arg-type]


def send(report: rpc.HostReport) -> str:
    return inventory_report.apply_report(report)


def names() -> list[str]:
    return sorted(row.name for row in hosts.deployables())


def device(name: str = "evil_x", **changes: object) -> base.Device:
    return hosts.device("x", replace(hosts.deployable(name), **changes))  # type: ignore[arg-type]


def test_a_node_belongs_to_its_first_host() -> None:
    hosts.apply(hosts.card("a"))
    for _ in range(2):
        with pytest.raises(acceptance.ReportRefused, match=r"^node: .* belongs to host host-1"):
            send(evil(device(), node=hosts.ROOT))
    assert send(evil(device())) == inventory_report.APPLIED
    with pytest.raises(acceptance.ReportRefused, match="belongs to host host-1"):
        send(evil(device(), node=hosts.ROOT))
    assert "belongs to host host-1" in hosts.errors_of("evil")["refused-messages"]
    assert names() == ["evil_x", "host-1_a"]
    # Whatever the host reports next: it is shown for an hour, with its time.
    said = hosts.errors_of("evil")
    assert send(evil(device(), errors={"other": "x"})) == inventory_report.APPLIED
    assert hosts.errors_of("evil") == {"other": "x", **said}
    written = datetime.datetime.fromisoformat(said["refused-messages"].partition(": ")[0])
    assert abs(datetime.datetime.now(datetime.UTC) - written).total_seconds() < HOUR / 1000
    hosts.let_pass(3600)
    assert hosts.errors_of("evil") == {"other": "x"}


def test_a_host_does_not_speak_under_the_names_of_conductors() -> None:
    false = dict.fromkeys(("refused-messages", "cyborg-conductor", "other"), "all is well")
    assert send(evil(device(), errors=false)) == inventory_report.APPLIED
    assert hosts.errors_of("evil") == {"other": "all is well"}


X = Reason(liveness.REFUSED, "x")


def test_a_refusal_that_comes_again_has_a_new_time_once_a_minute(
    count_sql: Callable[[], contextlib.AbstractContextManager[SqlCounter]],
) -> None:
    hosts.apply(hosts.card("a"))
    for seconds, writes in ((0, 1), (50, 0), (10, 1), (3600, 1)):
        hosts.let_pass(seconds)
        with count_sql() as counter:
            liveness.note_refusal("host-1", X)
        assert len(counter.matching("UPDATE")) == writes, seconds
    # Another one, of somebody who has many.
    for seconds, is_written in ((0, False), (3600, True)):
        hosts.let_pass(seconds)
        assert liveness.note_refusal("host-1", replace(X, public="y"), instead=False) == is_written
    assert not liveness.note_refusal("unknown", X)


NO_NAMES = ("evil\nhost", "", "a b", "-a", "a" * 256, "ä", None, 7)


def test_names_and_counts_that_are_none() -> None:
    for field, name in itertools.product(("host", "node"), NO_NAMES):
        with pytest.raises(acceptance.ReportRefused, match=f"^{field}: "):
            send(evil(device(), **{field: name}))
    assert names() == []
    send(evil(device()))
    for count in (-1, 10**9, "many", 1.5):
        wire = evil(device()).to_wire() | {"not_offered": count}
        with pytest.raises(acceptance.ReportRefused, match="not_offered must be a number"):
            inventory_report.read(wire, 10**6)
    assert "not_offered must be a number" in hosts.errors_of("evil")["refused-messages"]


def test_a_start_in_the_future_does_not_make_later_reports_look_old() -> None:
    now = round(time.time() * 1000)
    mine = replace(evil(device()), started=now, counter=1)
    assert send(mine) == inventory_report.APPLIED
    for false in (
        replace(mine, started=now + HOUR, devices={}),
        replace(mine, started=now + HOUR),
    ):
        with pytest.raises(acceptance.ReportRefused, match=r"^started: "):
            send(false)
    assert not inventory_report.note_unchanged(replace(mine, started=now + HOUR).unchanged())
    assert names() == ["evil_x"]
    assert send(replace(mine, counter=2)) == inventory_report.UNCHANGED


def test_a_report_that_is_dropped_as_old_is_shown_with_its_host() -> None:
    now = round(time.time() * 1000)
    mine = replace(evil(device()), started=now, counter=5)
    assert send(mine) == inventory_report.APPLIED
    # A message may come twice.
    assert send(mine) == inventory_report.OLD
    assert hosts.errors_of("evil") == {}
    assert send(replace(mine, counter=4, devices={})) == inventory_report.OLD
    assert "a newer one is known" in hosts.errors_of("evil")["refused-messages"]
    # What was refused to it before stays.
    liveness.note_refusal("evil", replace(X, public="a report was refused: node"))
    assert send(replace(mine, counter=3, devices={})) == inventory_report.OLD
    assert hosts.errors_of("evil")["refused-messages"].endswith("a report was refused: node")
    with db.writer() as session:
        db.update(session, models.Host, refused=None, refused_ms=None)
    assert send(replace(mine, counter=4, devices={})) == inventory_report.OLD
    assert names() == ["evil_x"]
    # What is known is still known, so the next one need not be whole.
    assert inventory_report.note_unchanged(replace(mine, counter=6).unchanged())
    assert "a newer one is known" in hosts.errors_of("evil")["refused-messages"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"resource_class": "VCPU"}, "resource class 'VCPU' is not"),
        ({"traits": ("COMPUTE_STATUS_DISABLED",)}, "trait 'COMPUTE_STATUS_DISABLED' is not"),
        ({"traits": ("MISC_SHARES_VIA_AGGREGATE",)}, "trait 'MISC_SHARES_VIA_AGGREGATE' is not"),
        ({"name": "host-1_a"}, "does not begin with evil_"),
        ({"name": "evilx"}, "does not begin with evil_"),
        ({"name": "evil_x\nKey 1 is enrolled"}, r"'evil_x\nKey 1 is enrolled' is left out"),
        ({"name": "evil_\x1b[2J"}, "characters that cannot be printed"),
        ({"attributes": {"a": "x" * 10_000}}, "an attribute has more than 8192 characters"),
        ({"std_board_info": "x" * 20_000}, "its board info is too long"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_device_that_no_host_may_report_is_left_out_alone(
    wrong: dict[str, Any], said: str
) -> None:
    good = hosts.device("y", hosts.deployable("evil_y"))
    bad = replace(device(), **wrong) if "std_board_info" in wrong else device(**wrong)
    send(evil(bad, good))
    assert names() == ["evil_y"]
    assert said in hosts.errors_of("evil")[hosts.DRIVER]


def test_what_is_known_of_such_a_device_stays() -> None:
    send(evil(device()))
    send(evil(device(resource_class="MEMORY_MB")))
    (kept,) = hosts.deployables()
    assert {each.key: each.value for each in kept.attributes}["rc"] == "FPGA"
    assert not kept.missing


def test_no_device_takes_the_name_of_a_compute_node() -> None:
    other = replace(hosts.report(host="other"), node="evil_node")
    send(other)
    send(evil(hosts.device("x", hosts.deployable("evil_node"))))
    assert names() == []
    assert "a compute node has that name" in hosts.errors_of("evil")[hosts.DRIVER]


@pytest.mark.parametrize("is_known_by", ["report", "key"])
def test_a_name_that_begins_as_those_of_a_longer_host_is_left_to_it(
    tmp_path: pathlib.Path, is_known_by: str
) -> None:
    if is_known_by == "report":
        send(replace(hosts.report(host="evil_2"), node="two.example"))
    else:
        host_keys.enrol("evil_2", signed.new_key(tmp_path / "two.pem"))
    send(evil(device("evil_2_x"), hosts.device("y", hosts.deployable("evil_y"))))
    assert names() == ["evil_y"]
    assert "names like that are for host evil_2" in hosts.errors_of("evil")[hosts.DRIVER]


def test_the_owner_of_a_node_is_told_who_claims_it() -> None:
    hosts.apply(hosts.card("a"))
    with pytest.raises(acceptance.ReportRefused, match=r"^node: \S+ belongs to host host-1\. If"):
        send(evil(device(), node=hosts.ROOT))
    said = hosts.errors_of("host-1")["refused-messages"]
    assert said.endswith("Z: host evil claims the node of this one")
    hosts.apply(hosts.card("a"))
    # Nor can it wipe that by messages in the owner's name.
    assert not liveness.note_refusal("host-1", replace(X, code=liveness.FORGED))
    assert hosts.errors_of("host-1") == {"refused-messages": said}


def test_a_machine_that_was_renamed_keeps_what_its_guests_have(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card("a"))
    (arq,) = boots.arqs(ctx)
    boots.bind(ctx, [arq], models.new_uuid())
    engine.drain(conf)
    renamed = replace(hosts.report(device(), host="evil"), node=hosts.ROOT)
    renamed = replace(
        renamed,
        devices={hosts.DRIVER: (hosts.device("a", hosts.deployable("evil_a")),)},
    )
    with pytest.raises(errors.Conflict, match="is up"):
        nodes.rename_host("host-1", "evil")
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    for old, new, kind in (
        ("host-9", "evil", errors.NotFound),
        ("host-1", "host-1", errors.Conflict),
        ("host-1", "a b", errors.Invalid),
    ):
        with pytest.raises(kind):
            nodes.rename_host(old, new)

    nodes.rename_host("host-1", "evil")

    assert send(renamed) == inventory_report.APPLIED
    assert boots.states(ctx) == {arq: models.BOUND}
    assert "evil_a" in names()
    assert [found.host for found in liveness.list_services()] == ["evil"]


FREE = "plain-compute"


@pytest.mark.parametrize("has_key", [False, True])
def test_a_known_host_takes_no_free_node(tmp_path: pathlib.Path, *, has_key: bool) -> None:
    """A compute node without an agent has no record that tells whose it is."""
    if has_key:
        nodes.enrol("evil", signed.new_key(tmp_path / "evil.pem"))
    assert send(evil(device())) == inventory_report.APPLIED
    with pytest.raises(acceptance.ReportRefused, match="only if an administrator says so"):
        send(evil(device(), node=FREE))
    assert "only if an administrator" in hosts.errors_of("evil")["refused-messages"]
    assert node_of("evil") == "evil.example"
    # Its own name is no other's: an agent takes it if it cannot find its domain.
    assert send(evil(device(), node="evil")) == inventory_report.APPLIED
    # Nor is the true agent kept out.
    assert send(replace(hosts.report(host=FREE), node=FREE)) == inventory_report.APPLIED


def node_of(host: str) -> str:
    with db.reader() as session:
        return session.scalars(sa.select(models.Host.node).where(models.Host.name == host)).one()


def test_a_host_with_a_key_has_the_node_of_its_name_or_that_of_an_administrator(
    tmp_path: pathlib.Path,
) -> None:
    key = signed.new_key(tmp_path / "evil.pem")
    nodes.enrol("evil", key)
    for node in (FREE, "evil2", "evilx.example", "example.evil"):
        with pytest.raises(acceptance.ReportRefused, match="is no name of host evil"):
            send(evil(device(), node=node))
    assert [found.host for found in liveness.list_services()] == []
    nodes.enrol("evil", key, FREE)
    assert [(each.host, each.state) for each in liveness.list_services()] == [("evil", "down")]
    assert send(evil(device(), node=FREE)) == inventory_report.APPLIED
    assert node_of("evil") == FREE
    with pytest.raises(errors.Conflict, match=f"{FREE} belongs to host evil"):
        nodes.enrol("host-1", signed.new_key(tmp_path / "one.pem"), FREE)
    with pytest.raises(errors.NotFound):
        host_keys.list_keys("host-1")
    with pytest.raises(errors.Invalid, match="not a valid node name"):
        nodes.enrol("evil", key, "a b")


def test_a_host_that_was_known_before_it_had_a_key_keeps_its_node(tmp_path: pathlib.Path) -> None:
    assert send(evil(device(), node=FREE)) == inventory_report.APPLIED
    nodes.enrol("evil", signed.new_key(tmp_path / "evil.pem"))
    assert send(evil(node=FREE)) == inventory_report.APPLIED


def test_an_administrator_gives_a_known_host_another_node() -> None:
    send(evil(device()))
    hosts.apply()
    for host, node, kind in (
        ("nobody", FREE, errors.NotFound),
        ("evil", hosts.ROOT, errors.Conflict),
        ("evil", "a\nb", errors.Invalid),
    ):
        with pytest.raises(kind):
            nodes.move(host, node)
    nodes.move("evil", FREE)
    assert send(evil(device(), node=FREE)) == inventory_report.APPLIED
    assert (node_of("evil"), names()) == (FREE, ["evil_x"])


@pytest.mark.every_database
def test_of_two_first_reports_at_once_one_has_the_node() -> None:
    ready = threading.Barrier(2)

    def first(host: str) -> str:
        ready.wait()
        try:
            return send(replace(hosts.report(host=host), node=FREE))
        except acceptance.ReportRefused:
            return inventory_report.REFUSED

    for number in range(5):
        with futures.ThreadPoolExecutor(2) as pool:
            found = list(pool.map(first, (f"a{number}", f"b{number}")))
        assert sorted(found) == [inventory_report.APPLIED, inventory_report.REFUSED]
        with db.writer() as session:
            db.update(session, models.Host, removed=True, down=True)


def test_a_renamed_host_has_the_keys_that_are_named(tmp_path: pathlib.Path) -> None:
    hosts.apply()
    public = [signed.new_key(tmp_path / f"{number}.pem") for number in range(4)]
    mine, other, *of_new = public
    for key in (mine, other):
        nodes.enrol("host-1", key)
    for key in of_new:
        nodes.enrol("evil", key)
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    named = signing.fingerprint(mine)
    with pytest.raises(errors.NotFound, match="has no key x"):
        nodes.rename_host("host-1", "evil", ("x",))
    with pytest.raises(errors.Conflict, match="more than 2 keys"):
        nodes.rename_host("host-1", "evil", (named,))
    host_keys.revoke("evil", signing.fingerprint(of_new[0]))
    nodes.rename_host("host-1", "evil", (named,))
    good = {each.public_key for each in host_keys.list_keys("evil") if each.revoked_ms is None}
    assert good == {mine, of_new[1]}
    (left,) = host_keys.list_keys("host-1")
    assert (left.public_key, left.revoked_ms is None) == (other, False)


def many(count: int, **changes: object) -> rpc.HostReport:
    """A report of a device with ``count`` deployables, each with what ``changes`` says of it."""
    parts = [
        replace(
            hosts.deployable(f"evil_{n}", (n,)),
            **{name: made(n) for name, made in changes.items()},  # type: ignore[operator]
        )
        for n in range(count)
    ]
    return evil(*(hosts.device(part.name, part) for part in parts))


def test_traits_and_classes_of_a_host_are_bounded() -> None:
    send(many(300, traits=lambda n: (f"CUSTOM_{n}",), resource_class=lambda n: f"CUSTOM_C{n}"))
    found = hosts.deployables()
    named = {row.value for each in found for row in each.attributes}
    assert 200 < len({name for name in named if name.startswith("CUSTOM_")}) <= 256
    assert "had more than 256 traits and resource classes" in hosts.errors_of("evil")["fake_driver"]
    # A host that has as many devices, and no more kinds of them, has all.
    send(many(300, traits=lambda _n: ("CUSTOM_SAME",)))
    assert len([row for row in hosts.deployables() if not row.missing]) >= 300
    assert hosts.errors_of("evil") == {}


def test_texts_of_a_host_are_bounded() -> None:
    ill = replace(device(), unhealthy="x" * 10**6)
    long = {f"driver-{n}": "y" * 10**6 for n in range(5)}
    assert send(replace(evil(ill), errors=long)) == inventory_report.APPLIED
    (found,) = liveness.list_services(binary=liveness.AGENT, host="evil")
    assert len(str(found.errors)) < 10_000
    assert found.errors["driver-0"].endswith("… (1000000 characters, cut)")
    (row,) = hosts.deployables()
    assert row.device.unhealthy is not None
    assert len(row.device.unhealthy) < 1100

    # Of many devices that are left out, not each has its sentence.
    wrong = [hosts.device(f"{n}", hosts.deployable(f"host-1_{n}", (n,))) for n in range(200)]
    send(evil(*wrong))
    assert len(str(hosts.errors_of("evil"))) < 2000


def test_lines_about_the_health_of_a_host_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_said", {})
    devices = many(250).devices
    send(evil(*devices[hosts.DRIVER]))
    send(evil(*(replace(each, unhealthy="it is hot") for each in devices[hosts.DRIVER])))
    said = [line for line in caplog.messages if "of host evil is unhealthy" in line]
    # The minute may end in between.
    assert 100 <= len(said) <= 200


def test_a_report_of_too_much_is_refused_as_a_whole_and_changes_nothing() -> None:
    send(evil(device()))
    before = names()
    drivers = {f"driver-{n}": "is broken" for n in range(65)}
    attributes = {f"key-{n}": "x" for n in range(200)}
    devices = [hosts.device(str(n), hosts.deployable(f"evil_{n}")) for n in range(5)]
    for report, sentence in (
        (evil(*devices), "max_report_devices, which is 4"),
        (replace(evil(device()), errors=drivers), "66 drivers are more than a host has, 64"),
        (evil(device(attributes=attributes)), "more than 64, which are 16 for each"),
    ):
        with pytest.raises(acceptance.ReportRefused, match=sentence):
            inventory_report.apply_report(report, max_devices=4)
        assert sentence in hosts.errors_of("evil")["refused-messages"]
        assert names() == before


@pytest.mark.every_database
def test_a_huge_report_holds_up_no_other_host() -> None:
    hosts.apply(hosts.card("a"))
    # As large as a host with a thousand devices may send it.
    facts = {f"key-{n:03}": "x" * 100 for n in range(155)}
    huge = many(100, attributes=lambda _n: facts)
    ended: list[str] = []

    def attack() -> None:
        ended.append(inventory_report.apply_report(huge, max_devices=1024))

    attacker = threading.Thread(target=attack)
    attacker.start()
    took: list[float] = []
    while attacker.is_alive() or not took:
        began = time.monotonic()
        hosts.apply(hosts.card("a", traits=(f"CUSTOM_{len(took)}",)))
        took.append(time.monotonic() - began)
    assert ended == [inventory_report.APPLIED]
    # SQLite has one writer, so there a report waits for the other.
    assert max(took) < 20, took


def test_reports_of_one_host_leave_threads_for_others(
    conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ending = threading.Semaphore(0), threading.Event()

    def take_long(*_given: object) -> str:
        begun.release()
        assert ending.wait(PATIENCE)
        return inventory_report.UNCHANGED

    monkeypatch.setattr(inventory_report, "apply_report", take_long)
    conductor = endpoint.ConductorEndpoint(conf, lambda: None)
    wire, digest = evil().to_wire(), evil().unchanged().to_wire()
    with futures.ThreadPoolExecutor() as pool:
        taken = [pool.submit(conductor.report, {}, wire) for _ in range(2)]
        assert all(begun.acquire(timeout=PATIENCE) for _ in taken)
        for further in (
            lambda: conductor.report({}, wire),
            lambda: conductor.report_unchanged({}, digest),
        ):
            with pytest.raises(errors.Conflict, match="2 reports of host evil are being stored"):
                further()
        assert not conductor.report_unchanged({}, hosts.report().unchanged().to_wire())
        ending.set()
        for each in taken:
            each.result(PATIENCE)
    assert not conductor.report_unchanged({}, digest)
