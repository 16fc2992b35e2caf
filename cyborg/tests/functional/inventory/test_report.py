# SPDX-License-Identifier: Apache-2.0
"""What host reports do to the database."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, rpc, work
from cyborg.audits import consistency
from cyborg.conductor import endpoint
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import report as inventory_report
from cyborg.tests import hosts, leaving
from cyborg.tests.counted_statements import SqlCounter

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.makes_up_rows]


def _devices() -> list[models.Device]:
    device, deployable = models.Device, models.Deployable
    query = sa.select(device).options(
        orm.joinedload(device.host),
        orm.joinedload(device.control_path),
        orm.selectinload(device.deployables).selectinload(deployable.attributes),
        orm.selectinload(device.deployables).selectinload(deployable.attach_handles),
    )
    with db.reader() as session:
        return list(session.scalars(query.order_by(device.id)))


def _tree() -> dict[str, dict[str, list[str]]]:
    """Control path to deployable name to the device numbers of its handles."""
    return {
        device.control_path.cpid_info: {
            dep.name: [
                handle.attach_info.split('"device": "')[1][:2] for handle in dep.attach_handles
            ]
            for dep in device.deployables
        }
        for device in _devices()
    }


def _wanted() -> set[tuple[str, str]]:
    with db.reader() as session:
        return {(row.kind, row.key) for row in session.scalars(sa.select(models.Work))}


def _hold(number: int, state: str = models.BOUND) -> str:
    """Let an ARQ hold the handle of that number; its uuid."""
    with db.writer() as session:
        handle = session.scalars(
            sa.select(models.AttachHandle).where(
                models.AttachHandle.attach_info.contains(f'"device": "{number:02x}"')
            )
        ).one()
        arq = models.Arq(
            project_id="p",
            state=state,
            device_profile_name="dp",
            group={},
            consumer_uuid=models.new_uuid(),
            attach_handle_id=handle.id,
        )
        session.add(arq)
    return arq.uuid


def _arq(uuid: str) -> models.Arq:
    with db.reader() as session:
        return session.scalars(sa.select(models.Arq).where(models.Arq.uuid == uuid)).one()


def _drop_arq(uuid: str) -> None:
    with db.writer() as session:
        db.delete(session, models.Arq, models.Arq.uuid == uuid)


@pytest.mark.every_database
def test_a_first_report_makes_the_host_and_all_below_it() -> None:
    hosts.apply(hosts.card("a"))
    (device,) = _devices()
    (deployable,) = device.deployables
    assert (device.host.name, device.host.node) == ("host-1", "host-1.example")
    assert device.control_path.cpid_info == '{"address": "a"}'
    assert deployable.rp_uuid == "cde9bdaf-7c37-3645-abd3-a2350ad870d6"
    assert [(a.key, a.value) for a in deployable.attributes] == [
        ("traits1", "CUSTOM_FAKE_DEVICE"),
        ("rc", "FPGA"),
    ]
    assert len(deployable.attach_handles) == 4
    assert _wanted() == {(work.PLACEMENT, "host-1")}


def test_an_unchanged_report_costs_one_statement_and_wants_nothing(count_sql: CountSql) -> None:
    device = hosts.card("a")
    hosts.apply(device)
    with db.writer() as session:
        db.delete(session, models.Work)
    with count_sql() as counter:
        hosts.apply(device)
    assert len(counter.statements) == 1, counter.statements
    assert _wanted() == set()


@pytest.mark.every_database
def test_a_digest_is_a_sign_of_life_if_it_is_the_stored_one(count_sql: CountSql) -> None:
    first = hosts.report(hosts.card("a"))
    other = hosts.report(hosts.card("b"))
    assert not inventory_report.note_unchanged(first.unchanged())
    assert inventory_report.apply_report(first) == inventory_report.APPLIED
    later = dataclasses.replace(first, counter=first.counter + 10)
    with count_sql() as counter:
        assert inventory_report.note_unchanged(later.unchanged())
    assert len(counter.statements) == 1, counter.statements
    # It counts: what was sent before it is old.
    assert not inventory_report.note_unchanged(first.unchanged())
    assert inventory_report.apply_report(first) == inventory_report.OLD
    newest = dataclasses.replace(other, counter=first.counter + 20)
    assert not inventory_report.note_unchanged(newest.unchanged())


@pytest.mark.every_database
@pytest.mark.parametrize("many", [2, 40])
def test_a_changed_report_costs_the_same_for_any_number_of_devices(
    count_sql: CountSql, many: int
) -> None:
    def fleet(handles: range) -> list[Any]:
        return [hosts.card(f"{n}", handles) for n in range(many)]

    hosts.apply(*fleet(range(4)))
    with count_sql() as counter:
        hosts.apply(*fleet(range(1, 4)))
    assert len(counter.statements) <= 20, counter.statements
    with count_sql() as counter:
        hosts.apply(*fleet(range(5)))
    others = [text for text in counter.statements if not text.startswith("INSERT")]
    assert len(others) <= 20, others


@pytest.mark.every_database
def test_thousands_of_handles_are_inserted_in_parts(count_sql: CountSql) -> None:
    with count_sql() as counter:
        hosts.apply(hosts.card("a", range(1200)))
    inserted = [text for text in counter.statements if text.startswith("INSERT INTO attach_handle")]
    assert len(inserted) == 3
    with db.reader() as session:
        handle = models.AttachHandle
        assert session.scalar(sa.select(sa.func.count(sa.distinct(handle.attach_info)))) == 1200


def test_new_devices_are_inserted_and_not_changed_again(count_sql: CountSql) -> None:
    with count_sql() as counter:
        hosts.apply(*(hosts.card(f"{n}") for n in range(40)))
    changed = {text.split()[1] for text in counter.statements if text.startswith("UPDATE")}
    assert changed == {"hosts"}
    assert not [text for text in counter.statements if text.startswith("DELETE")]
    others = [text for text in counter.statements if not text.startswith("INSERT")]
    assert len(others) <= 17, others


def test_the_digest_of_a_report_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    digest = rpc.HostReport.digest

    def make(report: rpc.HostReport) -> str:
        made.append(digest(report))
        return made[-1]

    monkeypatch.setattr(rpc.HostReport, "digest", make)
    hosts.apply(hosts.card("a"))
    assert len(made) == 1


@pytest.mark.every_database
def test_an_old_report_is_dropped() -> None:
    new = hosts.card("a")
    hosts.apply(new, order=(5, 2))
    hosts.apply(order=(5, 1))
    hosts.apply(order=(4, 9))
    assert list(_tree()) == ['{"address": "a"}']
    hosts.apply(order=(6, 1))
    assert _tree() == {}


@pytest.mark.every_database
def test_a_host_whose_clock_was_ahead_is_heard_again() -> None:
    hosts.apply(order=(round(time.time() * 1000) + 30_000, 1))
    with db.writer() as session:
        db.update(session, models.Host, last_seen_ms=db.now_ms() - 360_000)
    hosts.apply(hosts.card("a"), order=(5, 1))
    assert list(_tree()) == ['{"address": "a"}']


def test_a_held_handle_that_vanishes_is_kept_until_it_is_free() -> None:
    hosts.apply(hosts.card("a", range(4)))
    arq = _hold(2)
    gone = hosts.card("a", [0, 3])
    hosts.apply(gone)
    # Of those that have vanished the free one is removed.
    assert _tree() == {'{"address": "a"}': {"host-1_a": ["00", "02", "03"]}}
    assert _arq(arq).state == models.BOUND
    _drop_arq(arq)
    hosts.apply(gone, errors={"another_driver": "makes this report a changed one"})
    assert _tree() == {'{"address": "a"}': {"host-1_a": ["00", "03"]}}


@pytest.mark.every_database
def test_a_held_device_that_vanishes_is_kept_and_comes_back() -> None:
    device = hosts.card("a")
    hosts.apply(device, hosts.card("b", range(9, 11)))
    before = {row.uuid for row in _devices()}
    _hold(2)
    hosts.apply()
    (row,) = _devices()
    assert row.missing
    assert row.deployables[0].missing
    assert row.deployables[0].num_accelerators == 0
    assert _tree() == {'{"address": "a"}': {"host-1_a": ["02"]}}
    hosts.apply(device)
    (row,) = _devices()
    assert row.uuid in before
    assert not row.missing
    assert not row.deployables[0].missing
    assert not any(handle.missing for handle in row.deployables[0].attach_handles)
    assert len(row.deployables[0].attach_handles) == 4


@pytest.mark.every_database
def test_vanishing_while_a_handle_is_prepared_fails_the_arq() -> None:
    hosts.apply(hosts.card("a", prepares=True))
    arq = _hold(1, models.BIND_STARTED)
    hosts.apply()
    failed = _arq(arq)
    assert failed.state == models.BIND_FAILED
    assert "vanished" in str(failed.state_reason)
    assert failed.attach_handle_id is None
    assert _tree() == {}
    assert (work.NOVA_EVENT, failed.consumer_uuid) in _wanted()


@pytest.mark.every_database
def test_vanishing_while_a_handle_is_cleaned_wants_the_step_that_counts_as_done() -> None:
    hosts.apply(hosts.card("a", cleans=True))
    with db.writer() as session:
        handle = models.AttachHandle
        of_one = sa.select(handle).where(handle.attach_info.contains('"device": "01"'))
        leaving.left(session, session.scalars(of_one).one())
    hosts.apply()
    assert work.HOST_STEP in {kind for kind, _ in _wanted()}
    assert _tree() == {'{"address": "a"}': {"host-1_a": ["01"]}}


def test_the_devices_of_a_failed_driver_are_kept(conf: cfg.ConfigOpts) -> None:
    hosts.apply(*[hosts.card(name) for name in "ab"])
    both = _tree()
    hosts.apply(by_driver={}, errors={hosts.DRIVER: "it raised"})
    assert _tree() == both
    assert hosts.errors_of("host-1") == {hosts.DRIVER: "it raised"}
    # A device without a place counts as a failure, and not as many that are gone.
    conf.set_override("max_gone_share", 1, group="conductor")
    wire = hosts.report().to_wire()
    wire["devices"][hosts.DRIVER] = [{"control_path": "unheard of"}]
    endpoint.ConductorEndpoint(conf, lambda: None).report({}, wire)
    assert _tree() == both
    # A driver that answers with a complaint is believed.
    hosts.apply(hosts.card("a"), errors={hosts.DRIVER: "a card is another driver's"})
    assert list(_tree()) == ['{"address": "a"}']
    hosts.apply(by_driver={})
    assert _tree() == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"type": "TELEPATH"}, "device type 'TELEPATH'"),
        ({"deployables": [{"name": "host-1_a"}]}, "KeyError: 'attach_handles'"),
        ({"unhealthy": "\0"}, "unhealthy"),
    ],
)
def test_a_device_that_this_release_cannot_read_is_left_as_it_is(
    conf: cfg.ConfigOpts, change: dict[str, Any], sentence: str
) -> None:
    cards = [hosts.card(name) for name in "abc"]
    hosts.apply(*cards[:2])
    wire = hosts.report(*cards).to_wire()
    known, _, new = wire["devices"][hosts.DRIVER]
    known |= change
    new |= change
    endpoint.ConductorEndpoint(conf, lambda: None).report({}, wire)
    assert list(_tree()) == ['{"address": "a"}', '{"address": "b"}']
    with db.reader() as session:
        assert not list(session.scalars(sa.select(models.Device).where(models.Device.missing)))
    told = hosts.errors_of("host-1")[hosts.DRIVER]
    assert 'device PCI {"address": "a"} is left out' in told
    assert 'device PCI {"address": "c"} is left out' in told
    assert told.count(sentence) == 2
    # This release understands the next one.
    hosts.apply(*cards[1:])
    assert list(_tree()) == ['{"address": "b"}', '{"address": "c"}']


def test_the_rows_of_a_report_are_no_garbage_that_stays(conf: cfg.ConfigOpts) -> None:
    conductor = endpoint.ConductorEndpoint(conf, lambda: None)
    said = hosts.report(hosts.card("a"))
    thresholds = gc.get_threshold()
    gc.collect()
    # Other tests may have left some.
    before = _loaded()
    # As good as never, as in a service.
    gc.set_threshold(10**9)
    try:
        conductor.report({}, said.to_wire())
        left = [one for one in _loaded() if not any(one is old for old in before)]
    finally:
        gc.set_threshold(*thresholds)
    assert left == []


def _loaded() -> list[models.Deployable]:
    return [one for one in gc.get_objects() if isinstance(one, models.Deployable)]


def test_many_devices_that_are_gone_at_once_are_kept_for_one_report(conf: cfg.ConfigOpts) -> None:
    cards = [hosts.card(name) for name in "abcdefgh"]

    def report(*devices: base.Device) -> tuple[int, str | None]:
        number, error = send_kept(conf, *devices, of=models.Device)
        return number, error.partition(" from the report;")[0] if error else None

    assert report(*cards) == (8, None)
    # Four of eight are no larger share than permitted.
    assert report(*cards[4:]) == (4, None)
    assert report(*cards) == (8, None)
    assert report(*cards[:1]) == (8, "7 of 8 devices are missing")
    # Others are gone this time, so those have not been missing twice.
    assert report(*cards[7:]) == (8, "7 of 8 devices are missing")
    assert report(*cards) == (8, None)
    report()
    assert report() == (0, None)
    # A host with few devices is no exception, not even if it has one.
    for count in range(1, 5):
        left = (count - 1) // 2
        assert report(*cards[:count]) == (count, None)
        assert report(*cards[:left]) == (count, f"{count - left} of {count} devices are missing")
        assert report(*cards[:left]) == (left, None)
    # One is that the operator told to be.
    conf.set_override("max_gone_share", 1, group="conductor")
    assert report(*cards) == (8, None)
    assert report() == (0, None)


def send_kept(
    conf: cfg.ConfigOpts,
    *devices: base.Device,
    of: type[models.AttachHandle | models.Device] = models.AttachHandle,
) -> tuple[int, str | None]:
    """How many handles are there after this report, and why some are kept, if they are."""
    conductor = endpoint.ConductorEndpoint(conf, lambda: None)
    conductor.report({}, hosts.report(*devices).to_wire())
    with db.reader() as session:
        there = sa.select(sa.func.count()).where(~of.missing)
        number = session.scalars(there).one()
    errors = hosts.errors_of("host-1")
    assert errors.keys() <= {"cyborg-conductor"}
    return number, errors.get("cyborg-conductor")


@pytest.mark.parametrize("how", ["no deployables", "no handles", "one is left", "devices too"])
def test_devices_that_stay_and_are_empty_are_kept_for_one_report(
    conf: cfg.ConfigOpts, how: str
) -> None:
    cards = [hosts.card(name) for name in "abcdefgh"]
    assert send_kept(conf, *cards) == (32, None)
    emptied = [
        hosts.card(name, range(how == "one is left"), unhealthy="it is not there any more")
        if how != "no deployables"
        else hosts.device(name)
        for name in "abcdefgh"[: 4 if how == "devices too" else 8]
    ]
    number, error = send_kept(conf, *emptied)
    assert number == 32
    assert error is not None
    assert f"{24 if how == 'one is left' else 32} of 32 attach handles are missing" in error
    # Another number is another loss.
    number, error = send_kept(conf, cards[0], *emptied[1:])
    assert (number, error is None) == (32, False)
    left = 8 if how == "one is left" else 0
    assert send_kept(conf, *emptied)[0] == 32
    assert send_kept(conf, *emptied) == (left, None)
    # It is back at once.
    assert send_kept(conf, *cards) == (32, None)
    # Half may go.
    assert send_kept(conf, *cards[:4], *[hosts.card(name, []) for name in "efgh"]) == (16, None)
    assert send_kept(conf, hosts.card("a", range(3)))[0] == 16


@pytest.mark.every_database
def test_a_card_that_is_emptied_is_kept_even_if_it_is_the_only_one(conf: cfg.ConfigOpts) -> None:
    assert send_kept(conf, hosts.card("a", range(8))) == (8, None)
    assert send_kept(conf, hosts.card("a", range(4))) == (4, None)
    assert send_kept(conf, hosts.card("a", []))[0] == 4
    assert send_kept(conf, hosts.card("a", [])) == (0, None)
    assert send_kept(conf, hosts.card("a", range(1))) == (1, None)
    number, error = send_kept(conf, hosts.card("a", []))
    assert (number, error is None) == (1, False)
    assert send_kept(conf, hosts.card("a", [])) == (0, None)
    assert send_kept(conf, hosts.card("a", range(8))) == (8, None)
    # It was taken out.
    number, error = send_kept(conf)
    assert number == 8
    assert error is not None
    assert error.startswith("1 of 1 devices are missing from the report;")
    assert send_kept(conf) == (0, None)


def test_what_is_kept_is_not_there_twice(conf: cfg.ConfigOpts) -> None:
    known = [hosts.card(name, [n]) for n, name in PLACES]
    moved = [hosts.card(f"{n}", [n]) for n, _ in PLACES]
    assert send_kept(conf, *known) == (8, None)
    number, error = send_kept(conf, *moved)
    assert (number, error is None) == (8, False)
    assert consistency.violations() == []
    assert send_kept(conf, *moved) == (8, None)


PLACES = list(enumerate("abcdefgh"))


@pytest.mark.every_database
def test_the_devices_of_a_failed_driver_do_not_go_over_to_another() -> None:
    seen = hosts.card("a", resource_class="PGPU")
    by_name = hosts.device("b", hosts.deployable("host-1_a", resource_class="PGPU"))
    hosts.apply(hosts.card("a"))
    for another in (seen, by_name):
        hosts.apply(by_driver={"another": [another]}, errors={hosts.DRIVER: "it raised"})
        (device,) = _devices()
        assert device.driver == hosts.DRIVER
        assert "FPGA" in {attribute.value for attribute in device.deployables[0].attributes}
    hosts.apply(by_driver={"another": [seen], hosts.DRIVER: []})
    assert [device.driver for device in _devices()] == ["another"]


def test_the_handles_of_a_failed_driver_are_not_offered_by_another_as_well() -> None:
    parts = hosts.card("b", range(1, 4))
    hosts.apply(hosts.card("a", range(3)))

    hosts.apply(by_driver={"another": [parts]}, errors={hosts.DRIVER: "it hangs"})

    assert _tree() == {
        '{"address": "a"}': {"host-1_a": ["00", "01", "02"]},
        '{"address": "b"}': {"host-1_b": ["03"]},
    }
    hosts.apply(by_driver={"another": [parts], hosts.DRIVER: []})
    ((name, handles),) = _tree()['{"address": "b"}'].items()
    assert (name, sorted(handles)) == ("host-1_b", ["01", "02", "03"])


@pytest.mark.parametrize("answer", [[], [range(1)]], ids=["no", "less"])
def test_a_device_that_cannot_be_read_keeps_what_it_had(answer: list[range]) -> None:
    """One of its functions; the rest of the report is believed."""
    other = hosts.card("b", range(3, 5))
    hosts.apply(hosts.card("a", range(3)), other)
    before = _tree()['{"address": "a"}']
    found = [hosts.card("a", handles) for handles in answer]
    new = hosts.card("c", range(2, 3))

    hosts.apply(*found, new, unread=["0000:0c:01.0", "0000:0d:00.0"])

    assert _tree() == {'{"address": "a"}': before, '{"address": "c"}': {"host-1_c": []}}
    hosts.apply(*found, new)
    assert _tree() != {'{"address": "a"}': before, '{"address": "c"}': {"host-1_c": []}}


@pytest.mark.every_database
def test_a_resource_class_changes_only_when_nothing_is_held() -> None:
    def classes() -> list[str]:
        (device,) = _devices()
        return [a.value for a in device.deployables[0].attributes if a.key == "rc"]

    hosts.apply(hosts.card("a"))
    arq = _hold(1)
    changed = hosts.card("a", resource_class="CUSTOM_NEW")
    hosts.apply(changed)
    assert classes() == ["FPGA"]
    _drop_arq(arq)
    hosts.apply(changed, errors={"another_driver": "makes this report a changed one"})
    assert classes() == ["CUSTOM_NEW"]


@pytest.mark.every_database
def test_attributes_of_an_administrator_survive_and_traits_keep_their_keys() -> None:
    hosts.apply(hosts.card("a", traits=("CUSTOM_A", "CUSTOM_B")))
    with db.writer() as session:
        dep = session.scalars(sa.select(models.Deployable)).one()
        session.add(
            models.Attribute(deployable_id=dep.id, key="traits3", value="CUSTOM_X", origin="admin")
        )
    hosts.apply(hosts.card("a", traits=("CUSTOM_C", "CUSTOM_B")))
    (device,) = _devices()
    found = {a.key: a.value for a in device.deployables[0].attributes}
    assert found == {
        "traits2": "CUSTOM_B",
        "traits3": "CUSTOM_X",
        "traits4": "CUSTOM_C",
        "rc": "FPGA",
    }


@pytest.mark.every_database
def test_a_deployable_name_of_another_host_is_left_out_and_reported() -> None:
    hosts.apply(hosts.device("a", hosts.deployable("host-1_2_a")), host="host-1")
    hosts.apply(
        hosts.device("a", hosts.deployable("host-1_2_a")),
        hosts.device("b", hosts.deployable("host-1_2_b")),
        host="host-1_2",
    )
    assert [d.control_path.cpid_info for d in _devices()] == [
        '{"address": "a"}',
        '{"address": "b"}',
    ]
    with db.reader() as session:
        query = sa.select(models.Host).where(models.Host.name == "host-1_2")
        host = session.scalars(query).one()
    assert "host host-1 has one of that name" in host.driver_errors[hosts.DRIVER]
    assert host.report_digest is None


@pytest.mark.every_database
def test_a_deployable_that_moves_to_another_device_arrives_with_the_next_report() -> None:
    one = hosts.deployable("host-1_one", range(2))
    two = hosts.deployable("host-1_two", range(2, 4))
    hosts.apply(hosts.device("a", one, two))
    moved = (hosts.device("a", one), hosts.device("b", two))
    hosts.apply(*moved)
    hosts.apply(*moved)
    assert {path: list(deps) for path, deps in _tree().items()} == {
        '{"address": "a"}': ["host-1_one"],
        '{"address": "b"}': ["host-1_two"],
    }


def test_a_device_whose_control_path_changes_stays_the_same_device() -> None:
    hosts.apply(hosts.card("a"))
    (before,) = _devices()
    _hold(1)
    hosts.apply(hosts.device("z", hosts.deployable("host-1_a")))
    (after,) = _devices()
    assert after.uuid == before.uuid
    assert after.control_path.cpid_info == '{"address": "z"}'
