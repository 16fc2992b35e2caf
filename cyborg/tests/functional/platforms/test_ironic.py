# SPDX-License-Identifier: Apache-2.0
"""What Ironic knows of nodes becomes devices that are shown, and that nobody is given."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, liveness
from cyborg.audits import consistency, lost_allocations
from cyborg.cmd import ironic as command
from cyborg.common import errors
from cyborg.conductor import gauges
from cyborg.db import models
from cyborg.drivers import base, pci
from cyborg.hosts import draining, flags, removal
from cyborg.importing import store as importing
from cyborg.importing.convert import Whole
from cyborg.inventory import nodes, query
from cyborg.ironic import run, store
from cyborg.ironic.store import Imported
from cyborg.placement import audit
from cyborg.tests import hosts
from cyborg.tests.ironic_server import Ironic
from cyborg.tests.killed_statement import KILLED, killed_at

pytestmark = pytest.mark.usefixtures("database")

T4 = "0000:af:00.0"
#: The devices of bm-1 and, which is the last one, of bm-2.
DEVICES = {
    "0000:3b:00.0": "GPU",
    "0000:5e:00.0": "FPGA",
    "0000:6b:00.0": "QAT",
    T4: "GPU",
    "0000:c1:00.0": "AICHIP",
}
OF_BM_2 = ("bm-2", "0000:c1:00.0")


def import_all(conf: cfg.ConfigOpts, **wish: Any) -> dict[str, Imported]:
    """Import, and return what has become of each host."""
    wanted = run.NodeSelection(**wish)
    outcomes = run.import_some(conf, wanted) if wanted.nodes else run.import_all(conf, wanted)
    return {each.host: each for each in outcomes}


def shown() -> dict[tuple[str, str], models.Device]:
    """Every device, by host and address."""
    places = {each.uuid: (each.node, each.address) for each in query.list_devices()}
    with db.reader() as session:
        rows = session.scalars(sa.select(models.Device).options(orm.joinedload(models.Device.host)))
        return {places[each.uuid]: each for each in rows}


def dump() -> list[Any]:
    """All that an import writes."""
    with db.reader() as session:
        return [
            sorted(
                tuple(str(value) for value in row)
                for row in session.execute(sa.select(model.__table__))
            )
            for model in (models.Host, models.Device, models.ControlPath)
        ]


def contents() -> list[Any]:
    """The same without what is another one in each database."""
    return sorted(
        (host, place, each.type, each.vendor, each.model, each.driver, each.vendor_board_info)
        for (host, place), each in shown().items()
    )


@pytest.mark.every_database
def test_the_inventory_of_a_node_becomes_devices(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    outcomes = import_all(conf)
    assert outcomes["bm-1"] == Imported(
        node=ironic.uuid("bm-1"), host="bm-1", devices=4, new=4, unknown=1
    )
    assert outcomes["bm-2"].devices == 1
    assert outcomes["compute-3"].devices == 0
    found = shown()
    assert {place: each.type for (_, place), each in found.items()} == DEVICES
    gpu = found["bm-1", T4]
    assert (gpu.vendor, gpu.driver, gpu.host.managed_by) == ("10de", "nvidia_gpu_driver", "ironic")
    assert "T4" in gpu.model
    assert json.loads(gpu.vendor_board_info or "") == {"numa_node": 1}
    assert gpu.host.uuid == ironic.uuid("bm-1")
    # The version of a firmware is Ironic's. A time may look like it.
    assert "9.9" not in re.sub(r"\d\d:\d\d:\d\d\.\d+", "", str(dump()))
    assert ironic.versions == {"1.81"}
    # Nothing of it is to be given out by anybody.
    with db.reader() as session:
        for model in (models.Deployable, models.AttachHandle, models.ResourceProvider, models.Work):
            assert session.scalars(sa.select(model)).all() == []


@pytest.mark.every_database
def test_a_second_import_changes_what_has_changed_only(conf, ironic) -> None:
    import_all(conf)
    before, uuids = dump(), {place: each.uuid for place, each in shown().items()}
    assert all(each.new == each.changed == each.gone == 0 for each in import_all(conf).values())
    assert dump() == before
    found = ironic.inventory("bm-1")["plugin_data"]["pci_devices"]
    found.remove(next(each for each in found if each["bus"] == "0000:3b:00.0"))
    next(each for each in found if each["bus"] == T4)["numa_node_id"] = "0"
    assert import_all(conf, dry_run=True)["bm-1"].gone == 1
    assert dump() == before
    outcome = import_all(conf)["bm-1"]
    assert (outcome.devices, outcome.new, outcome.changed, outcome.gone) == (3, 0, 1, 1)
    after = shown()
    assert ("bm-1", "0000:3b:00.0") not in after
    assert {place: each.uuid for place, each in after.items()}.items() <= uuids.items()
    ironic.inventory("bm-1")["plugin_data"]["pci_devices"] = []
    for node in ironic.nodes:
        node["properties"].pop("accelerators", None)
    ironic.delete("bm-2")
    assert import_all(conf, remove_gone=True)["bm-1"].gone == 3
    assert dump() == [[], [], []]


def test_a_node_that_is_gone_loses_its_devices(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    hosts.apply(hosts.card())
    import_all(conf)
    ironic.delete("bm-1")
    assert import_all(conf, nodes=["bm-1"], dry_run=True)["bm-1"].gone == 4
    assert len(shown()) == 6
    assert import_all(conf)["bm-1"].gone == 4
    assert {host for host, _ in shown()} == {"host-1.example", "bm-2"}


@pytest.mark.parametrize(
    ("gone", "empty"), [({"bm-1", "bm-2"}, set()), ({"bm-1"}, {"bm-2"}), (set(), {"bm-1", "bm-2"})]
)
def test_an_ironic_that_has_lost_much_is_not_believed(conf, ironic, gone, empty) -> None:
    """A node that is gone, and one whose inventory is, count alike."""
    import_all(conf)
    before = dump()
    for node in ironic.nodes:
        if node["name"] in empty:
            node["properties"].pop("accelerators", None)
            ironic.answers.pop(f"/nodes/{node['uuid']}/inventory")
    for name in gone:
        ironic.delete(name)
    said = rf"show {len(gone)} any more of 2 known nodes, and no accelerators of {len(empty)}\."
    with pytest.raises(errors.Misconfigured, match=said):
        import_all(conf)
    assert dump() == before
    assert sum(each.gone for each in import_all(conf, remove_gone=True).values()) == 5
    assert shown() == {}


def test_a_node_that_fails_stays_and_hinders_no_other(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    import_all(conf)
    before = contents()
    ironic.status[f"/nodes/{ironic.uuid('bm-1')}/inventory"] = 500
    ironic.nodes[1]["name"] = "no host's name"
    outcomes = import_all(conf)
    assert "Ironic answered 500" in (outcomes["bm-1"].failure or "")
    assert "is not a valid host name" in (outcomes[ironic.nodes[1]["uuid"]].failure or "")
    assert contents() == before
    ironic.status["/nodes"] = 403
    with pytest.raises(errors.Misconfigured, match="Ironic answered 403"):
        import_all(conf)


@pytest.mark.parametrize(
    ("broken", "note"),
    [
        (None, None),
        ("text", None),
        ([None, 7, {"bus": {}}], "2 PCI functions have no address"),
        ([{"bus": "0000:01:00.0", "vendor_id": "10de", "product_id": "20b5"}], "cannot be read"),
        ([{"bus": "../x", "vendor_id": "1", "product_id": "2", "class": "03"}], "cannot be read"),
        ([{"vendor_id": "0x10DE", "product_id": "0x20B5", "class": "X"}], "have no address"),
    ],
)
def test_what_a_ramdisk_sends_need_not_be_well_formed(conf, ironic, broken, note) -> None:
    ironic.inventory("bm-1")["plugin_data"]["pci_devices"] = broken
    outcome = import_all(conf)["bm-1"]
    assert outcome.failure is None
    assert any(note in each for each in outcome.notes) if note else outcome.notes == ()
    # Ironic's own list of accelerators is left.
    assert list(shown()) == [("bm-1", T4), OF_BM_2]
    assert shown()["bm-1", T4].model == "NVIDIA Corporation Tesla T4"


def test_disks_and_networks_count_if_their_driver_is_enabled(conf, ironic) -> None:
    conf.set_override("enabled_drivers", ["intel_nic_driver", "pci_driver"], group="agent")
    spec = [json.dumps({"vendor_id": "144d", "resource_class": "CUSTOM_SSD", "type": "SSD"})]
    conf.set_override("device_spec", spec, group="pci")
    import_all(conf)
    more = {place: each.type for (_, place), each in shown().items() if place not in DEVICES}
    assert more == {"0000:17:00.0": "NIC", "0000:81:00.0": "SSD"}


@pytest.mark.every_database
def test_an_import_that_is_killed_is_run_again(conf, database, ironic) -> None:
    import_all(conf)
    whole = contents()
    for statement in range(1, 14, 3):
        store.forget(list(store.known_hosts()), dry_run=False)
        with contextlib.suppress(*KILLED), killed_at(database, statement):
            import_all(conf)
        assert consistency.violations() == []
        import_all(conf)
        assert contents() == whole


@pytest.mark.every_database
def test_the_agent_of_a_host_takes_its_devices_over(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    """It is that of a node by its own name, or by the one that the node names."""
    ironic.nodes[1]["extra"]["cyborg_host"] = "host-1.example"
    import_all(conf)
    before = shown()
    for name, address in (("bm-1", T4), ("host-1", OF_BM_2[1])):
        place = base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address))
        new = hosts.deployable(f"{name}_x")
        hosts.apply(hosts.device("x", new, control_path=place, type="GPU"), host=name)
    after = {
        place: (each.uuid, each.host.name, each.host.managed_by) for place, each in shown().items()
    }
    assert after == {
        ("bm-1.example", T4): (before["bm-1", T4].uuid, "bm-1", "agent"),
        ("host-1.example", OF_BM_2[1]): (
            before["host-1.example", OF_BM_2[1]].uuid, "host-1", "agent"
        ),
    }
    assert {row.name for row in hosts.deployables()} == {"bm-1_x", "host-1_x"}
    assert {each.host for each in liveness.list_services()} == {"bm-1", "host-1"}
    # From now on it is the agents that say what the hosts have.
    assert {each.host for each in import_all(conf).values() if each.has_agent} == {
        "bm-1", "host-1.example"
    }
    assert len(shown()) == 2
    assert store.known_hosts() == {}


def test_a_host_that_gets_the_node_of_another_ends_what_ironic_knows_of_it(conf, ironic) -> None:
    ironic.delete("bm-2")
    hosts.apply(hosts.card())
    with db.writer() as session:
        db.update(session, models.Host, node="before")
    ironic.nodes[0]["extra"]["cyborg_host"] = "host-1.example"
    import_all(conf)
    hosts.apply(hosts.card(unhealthy="Now it is hot."))
    assert [host for host, _ in shown()] == ["host-1.example"]
    assert import_all(conf)["host-1.example"].has_agent


def test_a_node_with_the_name_of_an_agents_host_is_left_to_it(conf, ironic) -> None:
    import_all(conf)
    hosts.apply(hosts.card())
    ironic.nodes[0]["name"] = "host-1"
    outcome = import_all(conf)["host-1"]
    assert (outcome.has_agent, outcome.gone) == (True, 4)
    assert {host for host, _ in shown()} == {"host-1.example", "bm-2"}
    ironic.nodes[1]["name"] = ironic.nodes[0]["name"] = "twin"
    outcomes = list(run.import_all(conf, run.NodeSelection()))
    assert [each.failure for each in outcomes][:2] == [
        None,
        f"the node {ironic.uuid('twin')} is host twin already",
    ]


def test_a_node_takes_no_names_from_an_agents_host(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    # Of an agent's host it would: the names of its deployables begin so.
    ironic.nodes[0]["name"] = "host-1_a"
    import_all(conf)
    hosts.apply(hosts.device("x", hosts.deployable("host-1_a_x")))
    assert [row.name for row in hosts.deployables()] == ["host-1_a_x"]


def test_nothing_is_expected_of_a_host_without_agent(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    ironic.delete("bm-2")
    hosts.apply(hosts.card())
    import_all(conf)
    with db.writer() as session:
        db.delete(session, models.Work)
    conf.set_override("auth_type", "none", group="placement")
    conf.set_override("auth_type", "none", group="nova")
    with db.writer() as session:
        db.update(session, models.Host, audited_ms=0, allocations_ms=0)
    liveness.mark_hosts_down(conf)
    audit.take_turns(conf)
    audit.take_turns(conf)
    lost_allocations.take_turns(conf)
    with db.reader() as session:
        rows = {host.name: host for host in session.scalars(sa.select(models.Host))}
        asked = {row.key for row in session.scalars(sa.select(models.Work))}
    assert not rows["bm-1"].down
    assert rows["host-1"].audited_ms > rows["bm-1"].audited_ms == 0
    assert rows["host-1"].allocations_ms > rows["bm-1"].allocations_ms == 0
    assert asked == {"host-1"}
    assert [each.host for each in liveness.list_services()] == ["host-1"]
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges.Gauges(conf).collect()
        for sample in family.samples
    }
    assert (samples["cyborg_hosts", "up"], samples["cyborg_hosts", "down"]) == (1, 0)
    assert samples["cyborg_devices", "GPU", "ironic"] == 2
    assert samples["cyborg_devices", "GPU", "enabled"] == 0
    assert samples["cyborg_devices", "FPGA", "enabled"] == 1
    # Of one host alone nobody thinks that all hosts cannot be heard.
    assert hosts_down_after_a_silence(conf) == {"host-1": True, "bm-1": False}


def hosts_down_after_a_silence(conf: cfg.ConfigOpts) -> dict[str, bool]:
    """Whether each host is down after no host has reported for long enough."""
    seconds, now = conf.conductor.host_down_time, 0.0
    with db.writer() as session:
        ago = (seconds + 1) * 1000
        db.update(session, models.Host, last_seen_ms=models.Host.last_seen_ms - ago)
    watch = liveness.Watch(lambda: now)
    for _ in range(5):
        watch.mark_hosts_down(conf)
        now += seconds / 4
    with db.reader() as session:
        return dict(list(session.execute(sa.select(models.Host.name, models.Host.down))))


def test_what_is_for_hosts_with_an_agent_is_refused(conf: cfg.ConfigOpts, ironic: Ironic) -> None:
    import_all(conf)
    device = shown()["bm-1", T4]
    for change in (
        lambda: flags.disable_device(device.uuid),
        lambda: flags.enable_device(device.uuid),
        lambda: flags.taint_device(device.uuid),
        lambda: flags.untaint_device(device.uuid),
        lambda: removal.remove_device(device.uuid, force=True),
    ):
        with pytest.raises(errors.Conflict, match="host bm-1, which has no agent"):
            change()
    for ask in (draining.drain, draining.taint):
        with pytest.raises(errors.NotFound, match="bm-1 has no agent"):
            ask("bm-1", None, 10)
    with pytest.raises(errors.NotFound):
        removal.remove_host(device.host.uuid, force=True)
    with pytest.raises(errors.NotFound):
        nodes.rename_host("bm-1", "bm-9")
    old = [Whole(hostname=name, values={}, path={}, parts=[]) for name in ("bm-1", "host-1")]
    with db.reader() as session:
        assert session.scalars(sa.select(models.Work)).all() == []
        # Nor is anything of an old database imported to it.
        (sentence,) = importing.conflicts_of_devices(session, old)
    assert sentence.endswith("Run `cyborg-ironic forget bm-1` first.")


@pytest.mark.makes_up_rows
def test_a_check_finds_what_a_host_without_agent_must_not_have(conf, ironic) -> None:
    import_all(conf)
    assert consistency.violations() == []
    with db.writer() as session:
        db.update(session, models.Host, drained=True)
    assert "bm-1 has no agent" in consistency.violations()[0].sentence


def test_the_api_says_whose_facts_they_are(conf, site, ctx, ironic) -> None:
    del ctx
    hosts.apply(hosts.card())
    import_all(conf)
    found = site.call("GET", "/devices", version="2.4")["devices"]
    assert {(each["hostname"], each["managed_by"]) for each in found} == {
        ("host-1.example", "agent"),
        ("bm-1", "ironic"),
        ("bm-2", "ironic"),
    }
    mine = site.call("GET", "/devices?managed_by=ironic", version="2.4")["devices"]
    assert {each["address"]: each["type"] for each in mine} == DEVICES
    old = site.call("GET", "/devices", version="2.3")["devices"]
    assert len(old) == 6
    assert not any("managed_by" in each for each in old)
    (deployable,) = site.call("GET", "/deployables", version="2.4")["deployables"]
    assert deployable["name"] == "host-1_a"


@pytest.fixture
def run_command(conf, tmp_path, monkeypatch) -> Callable[..., int]:
    """Run ``cyborg-ironic`` as the configuration says."""
    file = tmp_path / "cyborg.conf"

    def run(*arguments: str) -> int:
        text = f"[database]\nconnection = {conf.database.connection}\n"
        if conf.ironic.auth_type:
            url = conf.ironic.endpoint_override
            text += f"[ironic]\nauth_type = none\nendpoint_override = {url}\n"
        file.write_text(text)
        monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
        return command.main(["--config-file", str(file), *arguments])

    return run


def test_the_command_says_what_has_become_of_each_node(run_command, ironic, capsys) -> None:
    assert run_command("import", "--dry-run") == 0
    assert "Nothing was written." in capsys.readouterr().out
    assert shown() == {}
    assert run_command("import") == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "bm-1" in line)
    assert row.replace(" ", "") == "|bm-1|4|4|0|0|1||"
    ironic.status[f"/nodes/{ironic.uuid('bm-1')}/inventory"] = 500
    assert run_command("import", "--node", "bm-1") == 1
    assert "failed: Ironic answered 500" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run_command("import", "--node", "nobody")
    assert "Ironic knows no node nobody." in capsys.readouterr().err
    assert run_command("forget", "bm-1") == 0
    assert capsys.readouterr().out == "Forgot 1 hosts with 4 devices.\n"
    assert list(shown()) == [OF_BM_2]
    assert run_command("forget", "--all") == 0
    assert shown() == {}


def test_an_inventory_may_come_from_a_file(conf, ironic, tmp_path, run_command, capsys) -> None:
    saved, bare, node = tmp_path / "saved.json", tmp_path / "bare.json", str(uuid.uuid4())
    saved.write_text(json.dumps(ironic.inventory("bm-1")))
    bare.write_text("[]")
    conf.set_override("auth_type", None, group="ironic")
    given = ("import", "--from-file", str(saved))
    assert run_command(*given, "--node", node, "--hostname", "rack-7") == 0
    assert {host for host, _ in shown()} == {"rack-7"}
    assert {place for _, place in shown()} == DEVICES.keys() - {OF_BM_2[1]}
    for arguments, sentence in (
        (("import",), "[ironic] auth_type is not set"),
        (given, "with one --node"),
        ((*given, "--node", "rack-7"), "must be the UUID"),
        (("import", "--hostname", "x"), "with --from-file only"),
        (("forget", "rack-8"), "Not known from Ironic: rack-8."),
        (("import", "--from-file", str(bare), "--node", node), "has no inventory"),
    ):
        with pytest.raises(SystemExit):
            run_command(*arguments)
        assert sentence in capsys.readouterr().err
