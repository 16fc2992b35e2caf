# SPDX-License-Identifier: Apache-2.0
"""A function that a program has open is not given out, unless a request has it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, rpc
from cyborg.agent import discovery, opened
from cyborg.db import models
from cyborg.drivers import base, open_nodes, pci, privileged, registry
from cyborg.drivers.pci import host_use
from cyborg.handles import host_steps
from cyborg.tests import hosts
from cyborg.tests.contract import driver as contract
from cyborg.tests.contract import passes

FREE, OPEN = "0000:5e:00.0", "0000:5f:00.0"


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """The folder of device nodes; each is a plain file, which only its path tells."""
    for name in ("vfio/devices", "infiniband"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(opened, "DEV", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def program(path, *arguments):
    path.touch()
    wait = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", wait, str(path), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    yield process.pid
    process.communicate(timeout=60)


def function(address, **facts):
    common = {"vendor": "144d", "device": "a824", "class_code": "010802", "driver": "vfio-pci"}
    return pci.Function(
        address=address, subsystem_vendor="144d", subsystem_device="a801", **{**common, **facts}
    )


def look(conf, functions, files=None, *, asks=True):
    snapshot = contract.snapshot(functions, contract.Files(files or {}))
    return opened.Opened(conf, asks=asks).look(snapshot, list(snapshot))


NODE_OF_ITS_OWN = {OPEN: {"vfio-dev/vfio3": ""}}
GROUPS = [function(FREE, iommu_group="7"), function(OPEN, iommu_group="8")]


@pytest.fixture
def held(conf, tmp_path, monkeypatch):
    """What a conductor says that requests have: None if none answers."""
    conf.set_override("state_path", str(tmp_path))
    said: dict[str, Any] = {"now": [], "times": 0, "guest": ""}

    def answer(_conf, _host, *, by_place):
        assert by_place
        said["times"] += 1
        if said["now"] is None:
            return None
        infos = [json.dumps(pci.split(each) | {"trusted": "true"}) for each in said["now"]]
        return dict.fromkeys(infos, said["guest"])

    monkeypatch.setattr(rpc, "held_handles", answer)
    return said


@pytest.mark.parametrize("node", ["vfio/8", "vfio/noiommu-8", "vfio/devices/vfio3"])
def test_what_a_program_has_open_is_used_by_the_host(conf, nodes, held, node):
    with program(nodes / node) as pid:
        held["now"] = None
        unknown = look(conf, GROUPS, NODE_OF_ITS_OWN)
        held["now"] = []
        uses = look(conf, GROUPS, NODE_OF_ITS_OWN)

    assert uses.of(FREE) is None
    assert f"process {pid} (" in uses.of(OPEN)
    assert str(nodes / node) in uses.of(OPEN)
    assert look(conf, GROUPS, NODE_OF_ITS_OWN).of(OPEN) is None
    # While no conductor answers nothing is said of what is open.
    assert unknown.of(FREE) is None
    with pytest.raises(OSError, match="no conductor says"):
        unknown.of(OPEN)


def test_rdma_without_an_address_is_a_use_too(conf, nodes, held):
    cards = [function(each, class_code="020700", driver="mlx5_core") for each in (FREE, OPEN)]
    files = {FREE: {"infiniband_verbs/uverbs0": ""}, OPEN: {"infiniband_verbs/uverbs1": ""}}
    files[""] = {f"/sys/class/infiniband_verbs/uverbs{number}": "" for number in range(2)}
    with program(nodes / "infiniband/uverbs1"):
        uses = look(conf, cards, files)

    assert uses.of(FREE) is None
    assert "uverbs1" in uses.of(OPEN)


def test_what_a_request_has_stays_until_it_is_closed(conf, nodes, held):
    """A guest is released, and ends its process meanwhile; or the agent starts anew."""
    held["now"] = [OPEN]
    with program(nodes / "vfio/8"):
        # Where nobody can be asked, what the agent knows counts.
        assert "no request" in look(conf, GROUPS, asks=False).of(OPEN)
        assert look(conf, GROUPS).of(OPEN) is None
        assert look(conf, GROUPS, asks=False).of(OPEN) is None
        held["now"] = []
        assert look(conf, GROUPS).of(OPEN) is None
        assert "no request has it" in look(conf, GROUPS).of(OPEN)
        # So does what a request has another function of the group of.
        held["now"] = [FREE]
        in_one_group = [function(each, iommu_group="8") for each in (FREE, OPEN)]
        assert look(conf, in_one_group).of(OPEN) is None


def test_it_is_asked_only_for_what_is_newly_open(conf, nodes, held):
    held["now"] = [OPEN]
    snapshot = contract.snapshot(GROUPS)
    watch = opened.Opened(conf, asks=True)
    watch.look(snapshot, [FREE, OPEN])
    assert held["times"] == 0
    with program(nodes / "vfio/8"):
        for _ in range(3):
            watch.look(snapshot, [FREE, OPEN])
    assert held["times"] == 1


def test_only_functions_that_may_be_open_cause_a_look(conf, nodes, held, monkeypatch):
    def fail(*_arguments):
        raise OSError("it was looked")

    monkeypatch.setattr(open_nodes, "holders", fail)
    files = {OPEN: {"enable": "0"}}
    idle = [function(OPEN, iommu_group="8"), function(FREE, driver="nvme", iommu_group="7")]

    assert look(conf, idle, files).of(OPEN) is None
    # Who may look and cannot has no answer, which is none.
    with pytest.raises(OSError, match="it was looked"):
        look(conf, idle, {OPEN: {"enable": "1"}}).of(OPEN)


def test_the_look_has_an_end(nodes, monkeypatch):
    monkeypatch.setattr(open_nodes, "_PATIENCE", -1)
    with pytest.raises(OSError, match="take too long"):
        open_nodes.holders([str(nodes / "vfio/8")])


def test_likely_processes_are_looked_at_first(nodes, monkeypatch):
    with program(nodes / "vfio/8") as pid:
        seen = []
        sound = open_nodes._open_files

        def note(number):
            seen.append(number)
            return sound(number)

        monkeypatch.setattr(open_nodes, "_open_files", note)
        found = open_nodes.holders([str(nodes / "vfio/8")], [pid])
        privileged.watching.set_client_mode(False)
        # The helper looks as the agent would.
        assert privileged.node_holders([str(nodes / "vfio/8")], [pid]) == found
    assert seen == [pid, pid]
    assert found[str(nodes / "vfio/8")][0] == pid


CARDS = [{"card": "nvme-pm1733", "driver": "vfio-pci", "name": name} for name in "abc"]
NVME = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'


def a_pass(used, unknown):
    """What a pass offers, what it says nothing of, and what was looked at, each time."""
    looks = []

    def look(_functions, claimed):
        looks.append(sorted(claimed))
        return host_use.Uses(used={used: "a program has it"}, unknown={unknown: "who knows"})

    names = ["nvme_driver", "nvidia_gpu_driver", "pci_driver"]
    drivers = registry.load(passes.configured(NVME, names, "host-1")).drivers
    found = discovery.Discovery("host-1", drivers, timeout=60, look=look).run()
    offered = {device.control_path.place[4:] for device in found.devices["nvme_driver"]}
    return offered, found.unread, looks


def test_what_is_open_is_not_offered_and_what_is_not_known_stays_as_it_is(simulate):
    simulated = simulate({"cards": [*CARDS, "connectx6"]})
    used, unknown, free = sorted(map(simulated.card, "abc"))

    offered, unread, looks = simulated.call(a_pass, used, unknown)

    assert offered == {free}
    assert unread == {unknown}
    # Nothing that no driver claims.
    assert looks == [[used, unknown, free]]


GUEST = "6c0e2f0a-0000-4000-8000-000000000001"


def noted(watch, functions, *addresses):
    """What is wrong with a device of these functions, after a pass."""
    handles = [base.AttachHandle(attach_type="PCI", attach_info=pci.split(x)) for x in addresses]
    part = base.Deployable(
        name="host-1_a",
        resource_class="PGPU",
        num_accelerators=len(handles),
        attach_handles=tuple(handles),
    )
    path = base.ControlPath(cpid_type="PCI", cpid_info=pci.split(addresses[0]))
    device = base.Device(
        type="GPU", vendor="10de", model="m", control_path=path, deployables=(part,)
    )
    found = discovery.Findings(devices={"d": (device,)}, errors={}, functions=functions)
    (only,) = watch.noted(found).devices["d"]
    return only.unhealthy


@pytest.fixture
def after_boot(conf, nodes, held, monkeypatch):
    """An agent that knew, before its host started anew, what a guest has; and its functions."""
    monkeypatch.setattr(opened, "_BETWEEN_CHECKS", -1)
    held["now"], held["guest"] = [OPEN], GUEST
    with program(nodes / "vfio/8"):
        look(conf, GROUPS)
    return opened.Opened(conf, asks=True), contract.snapshot(GROUPS)


def test_a_guest_that_runs_without_its_function_is_told(after_boot, nodes, caplog):
    watch, functions = after_boot
    with program(nodes / "vfio/7", "-uuid", GUEST):
        # It may just be starting.
        assert noted(watch, functions, OPEN) is None
        assert f"guest {GUEST} runs without PCI function {OPEN}" in noted(watch, functions, OPEN)
        # The rest of the card is sound.
        assert noted(watch, functions, OPEN, FREE) is None
    assert caplog.text.count("runs without") == 1
    with program(nodes / "vfio/8", "-uuid", GUEST):
        assert noted(watch, functions, OPEN) is None


@pytest.mark.parametrize(
    ("node", "guest", "now"),
    [
        ("vfio/8", GUEST, [OPEN]),
        ("vfio/devices/vfio3", GUEST, [OPEN]),
        ("vfio/7", GUEST, []),
        ("vfio/7", GUEST, None),
        ("vfio/7", GUEST[:-1] + "2", [OPEN]),
    ],
    ids=["has it", "has its own node", "given back", "not known", "another guest"],
)
def test_a_guest_that_lacks_nothing_is_sound(after_boot, nodes, held, node, guest, now):
    watch, _ = after_boot
    functions = contract.snapshot(GROUPS, contract.Files(NODE_OF_ITS_OWN))
    held["now"] = now
    with program(nodes / node, "-uuid", guest):
        assert [noted(watch, functions, OPEN) for _ in range(3)] == [None] * 3


MDEV = base.AttachHandle(
    attach_type="MDEV",
    attach_info={**pci.split(OPEN), "asked_type": "nvidia-558", "vgpu_mark": "0"},
)


@pytest.mark.usefixtures("database")
@pytest.mark.makes_up_rows
@pytest.mark.parametrize("handles", [None, (MDEV,)], ids=["function", "mediated device"])
def test_a_conductor_says_by_place_what_guests_have(handles):
    """The guest of a mediated device has that one's own group open, never that of the parent."""
    given = {"attach_handles": handles} if handles else {}
    hosts.apply(hosts.device("a", hosts.deployable("host-1_a", **given)))
    host = hosts.report().host
    assert host_steps.held_on(host, by_place=True) == {}
    with db.writer() as session:
        handle = session.scalars(sa.select(models.AttachHandle).limit(1)).one()
        info, guest = handle.attach_info, models.new_uuid()
        session.add(
            models.Arq(
                project_id="p",
                state=models.BOUND,
                device_profile_name="dp",
                group={},
                consumer_uuid=guest,
                attach_handle_id=handle.id,
            )
        )

    assert len(host_steps.held_on(host)) == 1
    assert host_steps.held_on(host, by_place=True) == ({} if handles else {info: guest})


def test_one_that_is_closed_during_the_look_hides_no_other(nodes, monkeypatch):
    with program(nodes / "vfio/8") as pid:
        listed = os.listdir

        def with_a_closed_one(path):
            names = listed(path)
            return ["99999", *names] if path == f"/proc/{pid}/fd" else names

        monkeypatch.setattr(os, "listdir", with_a_closed_one)
        assert open_nodes.holders([str(nodes / "vfio/8")])
