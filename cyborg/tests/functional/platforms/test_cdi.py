# SPDX-License-Identifier: Apache-2.0
"""What containers are given: files of the Container Device Interface for what is in use."""

from __future__ import annotations

import json
import pathlib
import threading
import uuid
from typing import Any

import pytest
import requests
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import cdi_files
from cyborg.agent import service as agent_service
from cyborg.drivers import base, pci
from cyborg.handles import giving_up
from cyborg.tests import cdi_schema
from cyborg.tests.contract import cdi_rounds, passes
from cyborg.tests.service import Site, until

pytestmark = pytest.mark.slow

KIND = "cyborg.openstack.org/accelerator"


@pytest.fixture
def folder(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "cdi"
    conf.set_override("cdi_dir", str(path), group="agent")
    return path


@pytest.fixture
def start(site: Site) -> Any:
    """Starts a host that looks and reports every second."""
    for name in ("discovery_interval", "report_interval"):
        site.conf.set_override(name, 1, group="agent")

    def starting(**options: object) -> Site:
        groups = [{"resources:FPGA": "1"}]
        site.call("POST", "/device_profiles", [{"name": "p", "groups": groups}])
        site.start(**options)
        return site

    return starting


def ask(site: Site, method: str, path: str = "", body: object = None) -> requests.Response:
    return site.ask(method, f"/allocations{path}", body, "2.4")


def allocate(site: Site) -> dict[str, Any]:
    who = {"uuid": str(uuid.uuid4()), "type": "JOB"}
    answer = ask(site, "POST", "", {"consumer": who, "device_profile_name": "p"})
    assert answer.status_code == 202, answer.text
    found = answer.json()
    return until(lambda: shown(site, found["uuid"]))


def shown(site: Site, consumer: str) -> Any:
    found = ask(site, "GET", f"/{consumer}").json()
    return found if found["state"] == "Active" else None


def devices(folder: pathlib.Path) -> dict[str, Any]:
    """The devices that a container may ask for, with what each gives it."""
    found = {}
    for path in folder.glob("*.json"):
        try:
            specification = cdi_schema.read(path)
        except FileNotFoundError:
            continue  # The agent has removed it meanwhile.
        for device in specification["devices"]:
            found[f"{specification['kind']}={device['name']}"] = device["containerEdits"]
    return found


def named(found: dict[str, Any]) -> set[str]:
    return {each["attach_handle_info"]["cdi_device"] for each in found["accelerators"]}


@pytest.mark.parametrize("host_step", [False, True])
def test_a_consumer_finds_its_device_and_nobody_finds_it_later(start, folder, host_step) -> None:
    site = start(host_step=host_step)
    found = allocate(site)
    (accelerator,) = found["accelerators"]
    info = accelerator["attach_handle_info"]
    assert info["cdi_device"] == f"{KIND}={accelerator['arq_uuid']}"
    edits = devices(folder)[info["cdi_device"]]
    assert edits["deviceNodes"] == [{"path": "/dev/null", "permissions": "rw"}]
    assert edits["mounts"][0]["options"] == ["ro", "nosuid", "nodev", "bind"]
    handle = accelerator["attach_handle_uuid"].replace("-", "_").upper()
    (variable,) = edits["env"]
    name, _, value = variable.partition("=")
    assert name == f"CYBORG_FAKE_{handle}"
    assert json.loads(value) == {key: info[key] for key in info.keys() - {"cdi_device"}}
    (path,) = folder.glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o640
    # What is lost is written again, and a second look changes nothing.
    path.unlink()
    until(path.exists)
    inode = path.stat().st_ino
    site.hurry(site.idle)
    other = allocate(site)
    assert devices(folder).keys() == named(found) | named(other)
    assert path.stat().st_ino == inode

    ask(site, "DELETE", f"/{found['uuid']}")
    until(lambda: devices(folder).keys() == named(other))
    site.hurry(site.idle)
    assert len(site.held()) == 1


def test_what_is_in_use_already_gets_its_file(start, conf, tmp_path) -> None:
    site = start()
    found = allocate(site)
    (accelerator,) = found["accelerators"]
    assert "cdi_device" not in accelerator["attach_handle_info"]
    conf.set_override("cdi_dir", str(tmp_path / "late"), group="agent")
    site.replace(agent_service.Agent)
    until(lambda: devices(tmp_path / "late"))
    assert devices(tmp_path / "late").keys() == named(shown(site, found["uuid"]))


def test_after_a_reboot_nothing_of_before_is_left(start, folder, monkeypatch, tmp_path) -> None:
    site = start()
    found = allocate(site)
    (path,) = folder.glob("*.json")
    path.write_text(path.read_text().replace("/dev/null", "/dev/full"))
    stale = folder / f"cyborg-{uuid.uuid4()}-0123456789ab.json"
    draft = folder / f".cyborg-{uuid.uuid4()}-0123456789ab.json.new"
    others = [folder / "nvidia.json", folder / "cyborg-notes.json"]
    for each in (stale, draft, *others):
        each.write_text("{}")
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(cdi_files, "BOOT_ID", boot)
    site.replace(agent_service.Agent)
    until(lambda: path.exists() and "/dev/null" in path.read_text())
    until(lambda: not stale.exists() and not draft.exists())
    for each in others:
        assert each.read_text() == "{}"
        each.unlink()
    assert devices(folder).keys() == named(found)


@pytest.mark.parametrize("gives_up", [False, True])
def test_an_agent_that_dies_between_file_and_answer(start, folder, monkeypatch, gives_up) -> None:
    site = start(host_step=True)
    site.conf.set_override("host_step_timeout", 1, group="conductor")
    written, write = threading.Event(), cdi_files.Folder.write

    def dying(self: cdi_files.Folder, *given: Any) -> None:
        write(self, *given)
        if not written.is_set():
            written.set()
            threading.Event().wait()

    monkeypatch.setattr(cdi_files.Folder, "write", dying)
    site.conf.set_override("bind_wait", 0, group="api")
    consumer = str(uuid.uuid4())
    body = {"consumer": {"uuid": consumer, "type": "JOB"}, "device_profile_name": "p"}
    assert ask(site, "POST", "", body).status_code == 202
    assert written.wait(60)
    if gives_up:
        ask(site, "DELETE", f"/{consumer}")
    assert len(devices(folder)) == 1
    site.replace(agent_service.Agent)
    if gives_up:
        site.hurry(lambda: not site.held())
        until(lambda: devices(folder) == {})
    else:
        found = site.hurry(lambda: shown(site, consumer))
        assert devices(folder).keys() == named(found)


def test_a_forced_release_leaves_no_file(start, folder, ctx) -> None:
    site = start(host_step=True, handles_per_device=1)
    found = allocate(site)
    (accelerator,) = found["accelerators"]
    giving_up.release_arq(ctx, accelerator["arq_uuid"], force=True)
    until(lambda: devices(folder) == {})
    site.hurry(site.idle)
    other = allocate(site)
    assert named(other).isdisjoint(named(found))
    assert devices(folder).keys() == named(other)


def test_the_next_holder_does_not_wait_for_the_comparison(start, folder, ctx, monkeypatch) -> None:
    monkeypatch.setattr(rpc, "held_handles", lambda *_given: None)
    site = start(handles_per_device=1)
    found = allocate(site)
    (accelerator,) = found["accelerators"]
    giving_up.release_arq(ctx, accelerator["arq_uuid"], force=True)
    site.hurry(site.idle)
    assert devices(folder).keys() == named(found)
    other = allocate(site)
    assert devices(folder).keys() == named(other)


def test_a_comparison_that_was_overtaken_removes_nothing(tmp_path: pathlib.Path) -> None:
    folder = cdi_files.Folder(tmp_path)
    edits = base.ContainerEdits(device_nodes=("/dev/null",))
    handle, former, present = (str(uuid.uuid4()) for _ in range(3))
    folder.write(handle, "0" * 12, former, edits)
    seen = folder.files()
    folder.write(handle, "0" * 12, present, edits)
    folder.remove_unless_held(seen, {})
    assert devices(tmp_path).keys() == {f"{KIND}={present}"}
    folder.remove_unless_held(folder.files(), {handle: present})
    assert devices(tmp_path).keys() == {f"{KIND}={present}"}
    folder.remove_unless_held(folder.files(), {handle: former})
    assert devices(tmp_path) == {}


@pytest.mark.parametrize("bad", ["../../etc/x", "a" * 36, ""])
def test_no_message_names_another_file(tmp_path: pathlib.Path, bad: str) -> None:
    folder = cdi_files.Folder(tmp_path)
    good = str(uuid.uuid4())
    for handle, arq in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match="is not a uuid"):
            folder.write(handle, "0" * 12, arq, base.ContainerEdits())


def test_a_folder_that_cannot_be_used_is_said(start: Any, folder: pathlib.Path) -> None:
    folder.write_text("I am a file.")
    site = start()
    services = site.call("GET", "/services", version="2.4")["services"]
    (said,) = [each["driver_errors"]["cdi"] for each in services if each.get("driver_errors")]
    assert "[agent] cdi_dir cannot be used" in said
    who = {"uuid": str(uuid.uuid4()), "type": "JOB"}
    refused = ask(site, "POST", "", {"consumer": who, "device_profile_name": "p"})
    assert refused.status_code == 409
    assert "The host could not prepare the handle" in refused.text
    # Whether a file is left cannot be known, so the handle is not free.
    assert len(site.held()) == 1
    folder.unlink()
    site.hurry(site.idle)
    assert site.held() == {}
    allocate(site)
    assert len(devices(folder)) == 1


# What the kernel says of a simulated host.

_QAT = '[pci]\ndevice_spec = {"vendor_id": "8086", "product_id": "37c8"}\n'
UUID = "11111111-2222-3333-4444-555555555555"
ENDING = UUID.replace("-", "_")


def edits(host: Any, address: str, driver: str = "pci_driver", **mdev: str) -> base.ContainerEdits:
    place = pci.split(address)
    handle = base.HeldHandle(
        attach_type="MDEV" if mdev else "PCI",
        attach_info=mdev or place,
        uuid=UUID,
        arq="a",
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=place),
    )
    found: base.ContainerEdits = host.call(passes.container_edits, driver, "", handle)
    return found


def test_a_function_of_another_driver_has_the_nodes_of_that(simulate: Any) -> None:
    """And not those of a function behind it, or before it."""
    host = simulate({"cards": ["mi210", {"card": "mi210", "vfs": 2}, "nvme-pm1733"]})
    for number in range(2):
        found = edits(host, host.card("mi210", number))
        assert found.device_nodes == (f"/dev/dri/card{number}",)
    (first, _second) = host.vfs(host.card("mi210", 1))
    assert "/dev/dri/card1" not in edits(host, first).device_nodes
    found = edits(host, host.card("nvme-pm1733"))
    assert found.device_nodes[:2] == ("/dev/nvme0", "/dev/nvme0n1")
    # What is not there is given to nobody.
    with pytest.raises(FileNotFoundError):
        edits(host, "0000:ff:00.0")
    with pytest.raises(FileNotFoundError):
        edits(host, host.card("mi210"), asked_type="x", vgpu_mark="x_0")


#: Cards, and the nodes of the whole host that they need, by where the kernel shows those.
BESIDE = [
    ("mi210", {"devices/virtual/kfd/kfd": "kfd"}),
    ("connectx6", {"devices/virtual/misc/rdma_cm": "infiniband/rdma_cm"}),
    (
        "ascend310",
        {f"class/{name}/{name}": name for name in ("davinci_manager", "devmm_svm", "hisi_hdc")},
    ),
]


@pytest.mark.parametrize(("card", "shown_at"), BESIDE)
def test_nodes_of_the_whole_host_are_given_with_what_needs_them(simulate, card, shown_at) -> None:
    host = simulate({"cards": [card, "nvme-pm1733"]})
    address, other = host.card(card), host.card("nvme-pm1733")
    if card == "connectx6":
        host.files.directory(f"{host.path(address)}/infiniband/mlx5_0")
    for place, name in shown_at.items():
        assert f"/dev/{name}" not in edits(host, address).device_nodes
        host.files.put(f"{place}/uevent", f"MAJOR=239\nMINOR=0\nDEVNAME={name}\n")

        assert f"/dev/{name}" in edits(host, address).device_nodes
        assert f"/dev/{name}" not in edits(host, other).device_nodes


@pytest.mark.parametrize("is_told", [True, False])
def test_partitions_of_a_gpu_are_given_with_it(simulate: Any, *, is_told: bool) -> None:
    host = simulate({"cards": ["mi300x", *(["mi210"] if is_told else [])]})
    address = host.card("mi300x")
    _domain, bus, _rest = address.split(":")
    # Kernels write the names in two ways.
    for number, name in enumerate(("amdgpu_xcp.1", "amdgpu_xcp_2", "amdgpu_xcp_3"), 1):
        place = f"devices/platform/{name}/drm/renderD{128 + number}"
        host.files.put(f"{place}/uevent", f"DEVNAME=dri/renderD{128 + number}\n")
    # The last is another card's.
    locations = (int(bus, 16) << 8, 2 << 28 | int(bus, 16) << 8, 9 << 13)
    for number, location in enumerate(locations if is_told else (), 1):
        host.files.put(
            f"devices/virtual/kfd/kfd/topology/nodes/{number}/properties",
            f"simd_count 40\nlocation_id {location}\ndomain 0\ndrm_render_minor {128 + number}\n",
        )

    found = edits(host, address).device_nodes

    more = [f"/dev/dri/renderD{128 + number}" for number in range(1, 3 if is_told else 4)]
    assert found == ("/dev/dri/card0", *more)


def test_a_function_that_vfio_has_is_reached_by_its_group_if_there_is_one(simulate: Any) -> None:
    host = simulate({"cards": [{"card": "mi210", "driver": "vfio-pci", "count": 2}]})
    address = host.card("mi210", 1)
    group = host.files.target(f"{host.path(address)}/iommu_group").rpartition("/")[2]
    of_group = ("/dev/vfio/vfio", f"/dev/vfio/{group}")
    found = edits(host, address)
    assert found.device_nodes == of_group
    both = {f"CYBORG_PCI_{ENDING}": address, f"CYBORG_VFIO_GROUP_{ENDING}": group}
    assert found.env == both

    # It has a node of its own, too.
    own = f"{host.path(address)}/vfio-dev/vfio3"
    host.files.put(f"{own}/uevent", "MAJOR=511\nMINOR=3\nDEVNAME=vfio/devices/vfio3\n")
    host.files.put("devices/virtual/misc/iommu/uevent", "DEVNAME=iommu\n")
    found = edits(host, address)
    assert found.device_nodes == ("/dev/iommu", "/dev/vfio/devices/vfio3")
    assert found.env == {f"CYBORG_PCI_{ENDING}": address}
    host.files.directory(f"devices/virtual/vfio/{group}")
    found = edits(host, address)
    assert found.device_nodes == (*of_group, "/dev/iommu", "/dev/vfio/devices/vfio3")
    assert found.env == both


def test_a_mediated_device_is_reached_by_its_group(simulate: Any) -> None:
    host = simulate({"cards": [{"card": "t4"}]})
    address = host.card("t4")
    place = host.path(address)
    host.write(f"{place}/mdev_supported_types/nvidia-222/create", UUID)
    host.files.link(f"{place}/{UUID}/iommu_group", "kernel/iommu_groups/77")
    found = edits(host, address, asked_type="nvidia-222", vgpu_mark="nvidia-222_0")
    assert found.device_nodes == ("/dev/vfio/vfio", "/dev/vfio/77")
    assert found.env[f"CYBORG_MDEV_{ENDING}"] == UUID


@pytest.mark.parametrize("resets", [False, True])
def test_only_what_the_driver_itself_needs_is_done_beside(simulate_live, tmp_path, resets) -> None:
    bare = {"driver": "vfio-pci", "sriov": None, "module": None}
    host = simulate_live({"cards": [{"card": "qat-c62x", "reset_method": "flr", **bare}]})
    policy = "on" if resets else "off"
    text = f"{_QAT}[cleaning]\ndefault = {policy}\n"
    done = host.call(cdi_rounds.go, "pci_driver", text, str(tmp_path / "cdi"))
    assert "(cat) of a container still has the device" in done.refused
    assert [text for _path, text in host.writes()] == ["1"] * resets
    assert (done.before.prepares, done.before.cleans) == (True, True)
    ready = [part.prepared for part in (done.before, done.used, done.after)]
    assert ready == [(), (cdi_rounds.HANDLE,), ()]
    assert done.before.attributes["cdi_kind"] == KIND
    (device,) = done.file["devices"]
    assert device["name"] == cdi_rounds.ARQ
    assert device["containerEdits"]["deviceNodes"][0]["path"] == "/dev/vfio/vfio"
    cdi_schema.check(done.file)
