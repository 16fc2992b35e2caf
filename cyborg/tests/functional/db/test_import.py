# SPDX-License-Identifier: Apache-2.0
"""The database of the released upstream, imported.

The rows are those of one that upstream's release 17 made with two agents, a conductor and its API:
three device profiles, a fake card and two GPUs on two hosts, of which one is disabled, servers that
have some of them, and ARQs that were never bound, unbound, and left in the middle of their bind.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history, rpc, work
from cyborg.audits import consistency
from cyborg.cmd import dbsync
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base, fake
from cyborg.handles import release
from cyborg.importing import run, source
from cyborg.inventory import report as inventory_report
from cyborg.tests import bare_machine, leaving, servers, upstream_rows
from cyborg.tests.contract import driver as driver_contract
from cyborg.tests.contract import passes
from cyborg.tests.killed_statement import KILLED, killed_at
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.upstream_rows import ARQS, ROWS

T4 = "compute-2_0000:3b:00.0"
T4_PATH = ROWS["controlpath_ids"][2]


#: The command opens a log, which must not outlive its test.
pytestmark = pytest.mark.usefixtures("quiet_openstack")


@pytest.fixture(params=["17"])
def old(request, database_kind, tmp_path) -> Iterator[sa.Engine]:
    """A database as upstream leaves it; upstream has none but on MariaDB."""
    with contextlib.ExitStack() as stack:
        if database_kind == "mysql":
            name = f"upstream_{uuid.uuid4().hex[:12]}"
            engine = sa.create_engine(stack.enter_context(servers.new_database("mysql", name)))
            upstream_rows.make_tables(engine, request.param)
        else:
            engine = sa.create_engine(f"sqlite:///{tmp_path / 'upstream.sqlite'}")
            source._METADATA.create_all(engine)
        upstream_rows.fill(engine, request.param)
        yield engine
        engine.dispose()


def url_of(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def import_all(engine: sa.Engine) -> run.Report:
    with source.connect(url_of(engine)) as reading:
        report = run.check(reading, lambda *_: None)
        assert report.findings.refusals == []
        run.carry_out(reading, lambda *_: None)
    return report


def dump() -> dict[str, list[dict[str, Any]]]:
    """All rows but for numbers and times that are given by chance; see :func:`identities` too."""
    by_chance = {"id", "wanted_ms", "due_ms", "instance_asked_ms", "audited_ms", "began_ms"}
    found: dict[str, list[dict[str, Any]]] = {}
    with db.reader() as session:
        for table in models.Base.metadata.sorted_tables:
            rows = session.execute(sa.select(table)).mappings().all()
            numbers = {column.name for column in table.columns if column.foreign_keys}
            own = {"uuid"} if table.name in {"history", "hosts"} else set[str]()
            left_out = by_chance | numbers | own
            if table.name in {"brakes", "history", "hosts", "work", "resource_providers"}:
                left_out |= {"created_at"}
            shown = [{key: row[key] for key in row if key not in left_out} for row in rows]
            found[table.name] = sorted(shown, key=str)
    return found


def read(query: Any) -> list[Any]:
    with db.reader() as session:
        return [tuple(row) for row in session.execute(query)]


def identities() -> list[Any]:
    """What belongs to what, by uuids."""
    deployable, handle, arq = models.Deployable, models.AttachHandle, models.Arq
    given = sa.select(handle.uuid).where(handle.id == arq.attach_handle_id).scalar_subquery()
    wanted = (
        (models.Device.uuid, models.Device.status),
        (deployable.uuid, deployable.name, deployable.rp_uuid),
        (handle.uuid, handle.missing),
        (arq.uuid, arq.state, given),
        (models.ControlPath.uuid,),
    )
    return [sorted(read(sa.select(*each))) for each in wanted]


def held(engine: sa.Engine) -> tuple[set[tuple[str, ...]], set[str]]:
    """Of the old book: each ARQ with its handle, and the handles that are in use."""
    arqs = (
        "SELECT a.uuid, a.state, a.instance_uuid, a.hostname, a.project_id, h.uuid, p.name FROM"
        f" {ARQS} a LEFT JOIN attach_handles h ON h.id = a.attach_handle_id"
        " JOIN device_profiles p ON p.id = a.device_profile_id"
    )
    with engine.connect() as connection:
        found = {tuple(row) for row in connection.execute(sa.text(arqs))}
        used = connection.scalars(sa.text("SELECT uuid FROM attach_handles WHERE in_use"))
        return found, set(used)


def held_here() -> set[tuple[str, ...]]:
    """Here each ARQ that has a handle, as the old book has it."""
    arq, handle = models.Arq, models.AttachHandle
    columns = (
        *(arq.uuid, arq.state, arq.consumer_uuid, arq.hostname, arq.project_id, handle.uuid),
        arq.device_profile_name,
    )
    return set(read(sa.select(*columns).join(handle, handle.id == arq.attach_handle_id)))


def bound_of(engine: sa.Engine) -> set[tuple[str, ...]]:
    return {row for row in held(engine)[0] if row[1] == models.BOUND}


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("old", ["17", "15"], indirect=True)
def test_everything_arrives(old: sa.Engine, conf: cfg.ConfigOpts) -> None:
    report = import_all(old)
    assert report.kinds == {"device profiles": (3, 3), "devices": (4, 4), "ARQs": (12, 12)}

    for name, model in (
        ("device_profiles", models.DeviceProfile),
        ("devices", models.Device),
        ("deployables", models.Deployable),
        ("attributes", models.Attribute),
        ("controlpath_ids", models.ControlPath),
        ("attach_handles", models.AttachHandle),
        (ARQS, models.Arq),
    ):
        there = {row["uuid"] for row in ROWS[name]}
        assert {found for (found,) in read(sa.select(model.uuid))} == there

    deployable, device = models.Deployable, models.Device
    placed = read(sa.select(deployable.name, deployable.rp_uuid, device.status).join(device))
    of_device = {row["id"]: row["status"] for row in ROWS["devices"]}
    assert sorted(placed) == sorted(
        (row["name"], row["rp_uuid"], of_device[row["device_id"]]) for row in ROWS["deployables"]
    )
    assert "maintaining" in {status for *_, status in placed}

    arq = models.Arq
    assert held_here() == bound_of(old)
    states = collections.Counter(state for (state,) in read(sa.select(arq.state)))
    assert states == {"Bound": 8, "Initial": 2, "BindFailed": 1, "Unbound": 1}
    assert ["BindStarted" in note for note in report.findings.notes] == [True]

    # Who had what before, and gave it back, is not known.
    assert history.known_since(conf) == read(sa.select(models.Brake.began_ms))[0][0]

    attribute = models.Attribute
    own = read(sa.select(attribute.key, attribute.value).where(attribute.origin == "admin"))
    assert own == [("rack", "B7")]

    # A second import changes nothing.
    first = dump()
    again = import_all(old)
    assert dump() == first
    assert {new for _, new in again.kinds.values()} == {0}


@pytest.mark.every_database
def test_an_import_that_is_killed_goes_on(old: sa.Engine, database: sa.Engine) -> None:
    import_all(old)
    whole = dump(), identities()
    chance = random.Random(7)
    for _ in range(4):
        with database.begin() as connection:
            for table in reversed(models.Base.metadata.sorted_tables):
                connection.execute(table.delete())
        # It dies again and again on its way.
        for _ in range(3):
            with contextlib.suppress(*KILLED), killed_at(database, chance.randrange(8, 60)):
                import_all(old)
            # Nothing is offered until all is there, since the allocations are those of others.
            arqs, providers = (
                len(read(sa.select(model.id))) for model in (models.Arq, models.ResourceProvider)
            )
            assert providers == 0 or arqs == len(ROWS[ARQS])
        import_all(old)
        assert (dump(), identities()) == whole


def multiply(engine: sa.Engine, count: int) -> None:
    """Add so many bound ARQs, each with an attach handle of its own."""
    tables = sa.MetaData()
    tables.reflect(engine)
    like = next(row for row in ROWS[ARQS] if row["state"] == "Bound")
    held = next(row for row in ROWS["attach_handles"] if row["id"] == like["attach_handle_id"])
    numbers = range(10_000, 10_000 + count)
    handles = [
        held | {"id": number, "uuid": models.new_uuid(), "attach_info": f'{{"bus": "{number}"}}'}
        for number in numbers
    ]
    arqs = [
        like
        | {"id": number, "uuid": models.new_uuid(), "attach_handle_id": number}
        | {"instance_uuid": models.new_uuid()}
        for number in numbers
    ]
    with engine.begin() as connection:
        for name, rows in (("attach_handles", handles), (ARQS, arqs)):
            upstream_rows.insert(connection, tables.tables[name], rows)


@pytest.mark.every_database
def test_of_a_thousand_none_is_lost(old: sa.Engine, database: sa.Engine) -> None:
    multiply(old, 1000)
    for statement in (20, 60, 100):
        with contextlib.suppress(*KILLED), killed_at(database, statement):
            import_all(old)
    start = time.monotonic()
    report = import_all(old)
    assert time.monotonic() - start < 60
    assert report.kinds["ARQs"][0] == 1000 + len(ROWS[ARQS])
    assert held_here() == bound_of(old)
    assert len(held_here()) == 1008


def command(
    conf: cfg.ConfigOpts, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> int:
    """Run ``cyborg-dbsync import`` on the database of ``conf``."""
    file = tmp_path / "cyborg.conf"
    file.write_text(f"[database]\nconnection = {conf.database.connection}\n")
    monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
    return dbsync.main(["--config-file", str(file), "import", *arguments])


@pytest.mark.usefixtures("database")
def test_a_dry_run_reports_and_writes_nothing(old, conf, tmp_path, monkeypatch, capsys) -> None:
    before = dump()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    # The URL may be that of an old file.
    file = tmp_path / "old.conf"
    file.write_text(f"[database]\nconnection = {url_of(old)}\n")
    assert command(conf, tmp_path, monkeypatch, "--from", str(file), "--dry-run") == 0
    assert dump() == before
    said, bars = capsys.readouterr()
    assert f"[{'#' * 40}] 12/12\n" in bars
    assert "upstream's release 17" in said
    assert "|            ARQs |    12 |           12 |" in said
    assert said.endswith("Nothing was written.\n")


BOUND, OTHER, *_ = (row for row in ROWS[ARQS] if row["state"] == "Bound")
NEW = "0a0b0c0d-0000-4000-8000-000000000000"
NAMED = f"ARQ {BOUND['uuid']}"


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (f"{ARQS} SET attach_handle_id = 1 WHERE id = {OTHER['id']}",
         f"is held by several ARQs: {BOUND['uuid']}, {OTHER['uuid']}. Delete the servers"),
        (f"{ARQS} SET attach_handle_id = NULL WHERE id = {BOUND['id']}",
         f"{NAMED} is Bound and has no attach handle. Delete it"),
        (f"{ARQS} SET device_rp_uuid = '{NEW}' WHERE id = {BOUND['id']}",
         f"{NAMED} is Bound to provider {NEW} and has a handle of another"),
        (f"{ARQS} SET instance_uuid = 'x' WHERE id = {BOUND['id']}",
         f"{NAMED} has the instance_uuid 'x'"),
        (f"{ARQS} SET device_profile_group_id = 7 WHERE id = {BOUND['id']}",
         f"{NAMED} is of group 7 of device profile fpga, which has 1"),
        ("device_profiles SET profile_json = '{' WHERE name = 'fpga'",
         "Device profile fpga has groups that cannot be read. Correct its profile_json"),
        ("""device_profiles SET profile_json = '{"groups":[{"resources:FPGA":"-1"}]}'""",
         "Device profile fpga asks for less than nothing of FPGA"),
        (f"deployables SET name = '{T4}' WHERE id = 4",
         f"has the name of {ROWS['deployables'][2]['uuid']}. Delete one"),
        (f"controlpath_ids SET cpid_info = '{T4_PATH['cpid_info']}' WHERE device_id = 4",
         f"has the address 0000:3b:00.0 of {ROWS['devices'][2]['uuid']}. Delete one"),
        ("controlpath_ids SET device_id = 99 WHERE device_id = 1",
         "has no control paths, and ARQs have its handles"),
        ("alembic_version SET version_num = 'x'", "The database to import is at revision x"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(
    old, conf, tmp_path, monkeypatch, capsys, change, sentence
) -> None:
    with old.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {change}")
    before = dump()
    with pytest.raises(SystemExit) as ended:
        command(conf, tmp_path, monkeypatch, "--from", url_of(old))
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert sentence in said.out + said.err
    assert dump() == before


@pytest.mark.usefixtures("database")
def test_what_is_left_out_is_said(old: sa.Engine) -> None:
    handle = ROWS["attach_handles"][5]
    fpga = json.dumps({"groups": [{"resources:FPGA": "1", "accel:function_id": None}]})
    with old.begin() as connection:
        for change in (
            f"UPDATE attach_handles SET in_use = 1 WHERE id = {handle['id']}",
            "DELETE FROM controlpath_ids WHERE device_id = 4",
            f"UPDATE {ARQS} SET state = 'Deleting' WHERE state = 'Unbound'",
            f"UPDATE device_profiles SET profile_json = '{fpga}' WHERE name = 'fpga'",
        ):
            connection.exec_driver_sql(change)
    notes = import_all(old).findings.notes
    assert [
        any(part in note for note in notes)
        for part in ("counted as in use", "has no control paths: it is left out", "is Deleting")
    ] == [True, True, True]
    assert len(read(sa.select(models.Device.id))) == 3
    # A key with a null is none.
    profile = models.DeviceProfile
    groups = read(sa.select(profile.groups).where(profile.name == "fpga"))
    assert groups == [([{"resources:FPGA": "1"}],)]


@pytest.mark.usefixtures("database")
def test_an_import_after_a_change_here_is_refused(old: sa.Engine) -> None:
    import_all(old)
    with db.writer() as session:
        query = sa.select(models.Arq).where(models.Arq.uuid == BOUND["uuid"])
        release.unbind(session, list(session.scalars(query)))
    with source.connect(url_of(old)) as reading:
        (sentence,) = run.check(reading, lambda *_: None).findings.refusals
    assert sentence.startswith(f"ARQ {BOUND['uuid']} has changed since it was imported")


@pytest.mark.usefixtures("database")
@pytest.mark.makes_up_rows
def test_what_runs_or_is_not_upgraded_is_not_imported_into(old: sa.Engine) -> None:
    with db.writer() as session:
        session.add(models.Conductor(name="c", host="control-1", last_seen_ms=db.now_ms()))
    with (
        source.connect(url_of(old)) as reading,
        pytest.raises(errors.Misconfigured, match="A conductor runs on host control-1"),
    ):
        run.check(reading, lambda *_: None)


def devices_of_fake(host: str) -> tuple[base.Device, ...]:
    conf = passes.configured("", ["fake_driver"], host)
    return tuple(fake.FakeDriver(conf).discover(driver_contract.Host(host)))


@pytest.fixture
def gpus(simulate) -> passes.Pass:
    """What the GPU driver finds on compute-2."""
    places = ("0000:3b:00.0", "0000:af:00.0")
    host = simulate({"cards": [{"card": "t4", "address": place} for place in places]})
    (found,) = host.call(passes.run, ["nvidia_gpu_driver"], "", "compute-2")
    assert found.errors == {}
    return found


def make_placement(placement: PlacementServer) -> None:
    """What upstream has in Placement, and what the servers have of it."""
    roots = {name: placement.make_provider(name) for name in ("compute-1.example", "compute-2")}
    for row in ROWS["deployables"]:
        root = roots["compute-2" if row["name"].startswith("compute-2") else "compute-1.example"]
        body = {"name": row["name"], "uuid": row["rp_uuid"], "parent_provider_uuid": root}
        placement.call("POST", "/resource_providers", body)
        attributes = [each for each in ROWS["attributes"] if each["deployable_id"] == row["id"]]
        traits = [each["value"] for each in attributes if each["key"].startswith("trait")]
        (rc,) = (each["value"] for each in attributes if each["key"] == "rc")
        total = row["num_accelerators"]
        placement.set_inventories(row["rp_uuid"], **{rc: {"total": total, "max_unit": total}})
        placement.set_traits(row["rp_uuid"], *(t for t in traits if t.startswith("CUSTOM_")))
    instances = collections.Counter(
        (row["instance_uuid"], row["device_rp_uuid"])
        for row in ROWS[ARQS]
        if row["state"] == "Bound"
    )
    for (instance, provider), amount in instances.items():
        placement.allocate(instance, provider, **{next(iter(placement.offered(provider))): amount})


def report_all(placement: PlacementServer, gpus: passes.Pass) -> None:
    """The first reports of the two agents, and what follows from them."""
    for name, node, found in (
        ("compute-1", "compute-1.example", {"fake_driver": devices_of_fake("compute-1")}),
        (
            "compute-2",
            "compute-2",
            {"fake_driver": devices_of_fake("compute-2"), **gpus.devices},
        ),
    ):
        inventory_report.apply_report(
            rpc.HostReport(
                host=name, node=node, started=1, counter=1, errors={}, devices=found, unread=()
            )
        )
        placement.sync_host(name)
    with db.writer() as session:
        db.delete(session, models.Work, models.Work.kind == work.PLACEMENT)


def test_the_first_reports_meet_what_was_imported(old, database, placement, gpus) -> None:
    make_placement(placement)
    import_all(old)
    before = identities()
    providers = [row["rp_uuid"] for row in ROWS["deployables"]]
    claimed = {provider: _allocations(placement, provider) for provider in providers}

    report_all(placement, gpus)

    assert identities() == before
    assert sorted(read(sa.select(models.Host.name, models.Host.node, models.Host.down))) == [
        ("compute-1", "compute-1.example", False),
        ("compute-2", "compute-2", False),
    ]
    for provider, allocations in claimed.items():
        assert _allocations(placement, provider) == allocations
    offered = {row["name"]: placement.offered(row["rp_uuid"]) for row in ROWS["deployables"]}
    assert offered == {
        "compute-1_FakeDevice": {"FPGA": (16, 0)},
        "compute-2_FakeDevice": {"FPGA": (16, 0)},
        T4: {"PGPU": (1, 0)},
        "compute-2_0000:af:00.0": {"PGPU": (1, 1)},
    }
    assert consistency.withheld() == []


def test_what_no_imported_arq_explains_is_withheld(old, database, placement, gpus) -> None:
    make_placement(placement)
    fakes = ROWS["deployables"][:2]
    guest = models.new_uuid()
    placement.allocate(guest, fakes[0]["rp_uuid"], FPGA=1)
    import_all(old)
    report_all(placement, gpus)
    (sentence,) = (each.sentence for each in consistency.withheld())
    assert guest in sentence
    offered = [placement.offered(row["rp_uuid"])["FPGA"] for row in fakes]
    assert offered == [(16, 16), (16, 0)]


@pytest.mark.usefixtures("database")
def test_another_host_does_not_get_what_was_imported(old: sa.Engine) -> None:
    import_all(old)
    report = rpc.HostReport(
        host="evil", node="compute-1.example", started=1, counter=1, errors={}, devices={}
    )
    with contextlib.suppress(errors.CyborgError):
        inventory_report.apply_report(report)
    device = models.Device
    assert read(
        sa.select(models.Host.name, sa.func.count())
        .join(device, device.host_id == models.Host.id)
        .group_by(models.Host.name)
        .order_by(models.Host.name)
    ) == [("compute-1.example", 1), ("compute-2", 3)]


def _allocations(placement: PlacementServer, provider: str) -> Any:
    return placement.call("GET", f"/resource_providers/{provider}/allocations")["allocations"]


def follow_the_way_back(tmp_path: pathlib.Path, old: sa.Engine, new: sa.engine.URL) -> list[str]:
    """What the blocks of the page print, which a shell runs with the client of the database."""
    client = tmp_path / "mariadb"
    options = tmp_path / "client.cnf"
    options.write_text(
        f"[client]\nhost={new.host}\nport={new.port}\nuser={new.username}\n"
        f"password={new.password}\n"
    )
    client.write_text(f'#!/bin/sh\nexec /usr/bin/mariadb --defaults-extra-file={options} "$@"\n')
    client.chmod(0o700)
    names = {"DB_NAME": str(new.database), "OLD_NAME": str(old.url.database)}
    environ = os.environ | names | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = []
    for block in bare_machine.sections("admin/import")["The way back"]:
        if not block.startswith("export "):
            script = block.replace("/etc/cyborg-way-back", f"{tmp_path}/way-back")
            done = subprocess.run(
                ["bash", "-euc", script], env=environ, capture_output=True, text=True, check=False
            )
            printed.append(done.stdout + done.stderr)
    return printed


@pytest.mark.services
@pytest.mark.usefixtures("database")
@pytest.mark.makes_up_rows
@pytest.mark.parametrize("database_kind", ["mysql"], indirect=True)
@pytest.mark.parametrize("old", ["17", "15"], indirect=True)
def test_the_way_back_writes_what_happened_here(old, database, tmp_path) -> None:
    """Deleted here, on another handle since, and booted here with a profile made here."""
    import_all(old)
    arq, handle = models.Arq, models.AttachHandle
    groups = [{"resources:FPGA": "1", "accel:preferred_trait": "CUSTOM_IT\'S\\\"ODD"}]
    with db.writer() as session:
        bound = session.scalars(sa.select(arq).where(arq.state == "Bound").order_by(arq.id)).all()
        taken = sa.select(arq.attach_handle_id).where(arq.attach_handle_id.is_not(None))
        free = session.scalars(sa.select(handle).where(handle.id.not_in(taken))).all()
        gone, moved, *_ = bound
        moved.attach_handle_id = free[0].id
        moved.hostname = "compute-9"
        new = models.DeviceProfile(name="made-here", groups=groups, description="it's new")
        session.add(new)
        session.add(
            models.Arq(
                project_id="p", state="Bound", device_profile_name="made-here", group=groups[0],
                hostname="compute-1", device_rp_uuid=moved.device_rp_uuid,
                consumer_uuid=models.new_uuid(), attach_handle_id=free[1].id,
            )
        )  # fmt: skip
        session.delete(gone)
    ours = held_here()

    for _ in range(2):
        assert follow_the_way_back(tmp_path, old, database.url) == ["", "", ""]
        assert held(old) == (ours, {row[5] for row in ours})

    with source.connect(url_of(old)) as reading:
        assert run.check(reading, lambda *_: None).findings.refusals == []
        (made,) = (row for page in reading.profiles() for row in page if row["name"] == "made-here")
    assert json.loads(made["profile_json"]) == {"groups": groups}
    assert made["description"] == "it's new"


@pytest.mark.services
@pytest.mark.usefixtures("database")
@pytest.mark.makes_up_rows
@pytest.mark.parametrize("database_kind", ["mysql"], indirect=True)
def test_the_way_back_says_what_the_old_book_does_not_know(old, database, tmp_path) -> None:
    """A device that is new here, and what holds a handle without a server."""
    import_all(old)
    before = held(old)
    with db.writer() as session:
        first, second, *_ = session.scalars(
            sa.select(models.Arq).where(models.Arq.state == "Bound").order_by(models.Arq.id)
        ).all()
        plugged = session.get_one(models.AttachHandle, first.attach_handle_id)
        plugged.uuid = models.new_uuid()
        handle = session.get_one(models.AttachHandle, second.attach_handle_id)
        cleaned = leaving.left(session, handle)
        session.delete(second)

    _, others, error = follow_the_way_back(tmp_path, old, database.url)

    assert cleaned in others
    (line,) = re.findall(r"^ERROR 1452 .* at line (\d+)", error, re.MULTILINE)
    text = (tmp_path / "way-back.sql").read_text().splitlines()
    assert str(first.consumer_uuid) in text[int(line) - 1]
    assert held(old) == before
