# SPDX-License-Identifier: Apache-2.0
"""Shares of GPUs as drivers report them, and what containers get of them."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any, NamedTuple

import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import cdi, discovery, host_steps, pass_counter
from cyborg.drivers import base, container_facts, pci, privileged, registry
from cyborg.tests.contract import passes

PATIENCE = 60.0
GPUS = {
    "nvidia_gpu_driver": ("h100", "gpu_devices"),
    "amd_gpu_driver": ("mi210", "amd_gpu_driver"),
}
WANTED = "it is to have shares, and "


def options(group: str, folder: object, *specs: dict[str, object]) -> str:
    listed = "".join(f"device_spec = {json.dumps(each)}\n" for each in specs)
    return f"[agent]\ncdi_dir = {folder}\n[{group}]\n{listed}"


class Used(NamedTuple):
    """Which cards were cleaned, and the files left, after each of some steps."""

    cleaned: list[int]
    files: list[int]


@pytest.mark.parametrize("driver", GPUS)
def test_a_card_with_shares_is_not_offered_whole(
    simulate: Any, tmp_path: pathlib.Path, driver: str
) -> None:
    card, group = GPUS[driver]
    host = simulate({"cards": [card, card, card]})
    specs = [
        {"address": host.card(card, number), "shares": 3, "mix_projects": number == 1}
        for number in (0, 1)
    ]
    text = options(group, tmp_path, *specs, {"address": "*:*:*.*"})

    (found,) = host.call(passes.run, [driver], text)

    parts = [device.deployables[0] for device in found.devices[driver]]
    assert [part.shared for part in parts] == [base.OF_ONE_PROJECT, base.OF_ALL_PROJECTS, None]
    for part in parts[:2]:
        assert (part.resource_class, part.num_accelerators) == ("CUSTOM_GPU_SHARE", 3)
        assert {each.attach_type for each in part.attach_handles} == {base.NODES}
        assert [each.attach_info["share"] for each in part.attach_handles] == ["0", "1", "2"]
    assert parts[2].resource_class == "PGPU"
    assert [each.attach_type for each in parts[2].attach_handles] == ["PCI"]


@pytest.mark.parametrize(
    ("changes", "folder", "reason"),
    [
        ({}, "", f"{WANTED}[agent] cdi_dir is not set"),
        ({"driver": "vfio-pci"}, "/run/cdi", f"{WANTED}no driver of the host has it"),
        ({"card": "h100-slices"}, "/run/cdi", "it is divided: it has MIG instances"),
    ],
)
def test_what_can_have_no_shares_is_not_offered_and_said(
    simulate: Any, changes: dict[str, str], folder: str, reason: str
) -> None:
    host = simulate({"cards": [{"card": "h100", **changes}]})
    text = options("gpu_devices", folder, {"vendor_id": "10de", "shares": 2})
    text = text.replace("cdi_dir = \n", "")
    assert host.call(refusals, text) == [reason]


def refusals(text: str) -> list[str]:
    """Why cards are not offered."""
    conf = passes.configured(text, ["nvidia_gpu_driver"], "host-1")
    drivers = registry.load(conf).drivers
    looking = discovery.Discovery("host-1", drivers, timeout=60)
    assert looking.run().devices == {"nvidia_gpu_driver": ()}
    driver: Any = drivers["nvidia_gpu_driver"]
    functions = pci.scan()
    found = (driver.why_not_offered(each, functions) for each in functions.values())
    return [each.reason for each in found if each is not None]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"shares": 1}, "shares must be a number from 2 to 64"),
        ({"shares": "4"}, "shares must be a number from 2 to 64"),
        ({"shares": 2, "mix_projects": "perhaps"}, "mix_projects must be one of"),
    ],
)
def test_a_wrong_number_is_refused_at_the_start(value: dict[str, object], told: str) -> None:
    text = options("gpu_devices", "/run/cdi", {"vendor_id": "10de", **value})
    conf = passes.configured(text, ["nvidia_gpu_driver"], "host-1")
    assert told in registry.load(conf).errors["nvidia_gpu_driver"]


def share(address: str, number: int, **changes: object) -> base.HeldHandle:
    place = pci.split(address)
    path = base.ControlPath(cpid_type="PCI", cpid_info=place)
    fields: dict[str, Any] = {"uuid": uuid(number), "arq": uuid(number + 8), **changes}
    info = {**place, base.SHARE_KEY: str(number)}
    return base.HeldHandle(
        attach_type=base.NODES, attach_info=info, control_path=path, **fields
    )


def uuid(number: int) -> str:
    return f"{number:08x}-2222-3333-4444-555555555555"


def test_a_share_has_the_nodes_of_its_card_and_mps_where_that_runs_and_projects_mix(
    simulate: Any, tmp_path: pathlib.Path
) -> None:
    host = simulate({"cards": ["h100"]})
    (host.root / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl"):
        (host.root / "dev" / name).touch()
    for is_running, mixed in ((False, True), (True, True), (True, False)):
        if is_running:
            (tmp_path / "control").touch()
        spec = json.dumps({"vendor_id": "10de", "shares": 2, "mix_projects": mixed})
        more = f"mps_dir = {tmp_path}\ndevice_spec = {spec}"
        text = f"[gpu_devices]\n{more}\n[DEFAULT]\nstate_path = {tmp_path}\n"
        found = host.call(edits, text, share(host.card("h100"), 1))
        assert set(found.device_nodes) == {"/dev/nvidia0", "/dev/nvidiactl"}
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)} if is_running and mixed else {}
        assert {key: value for key, value in found.env.items() if "CUDA" in key} == env
        assert [each.host_path for each in found.mounts] == list(env.values())


def edits(text: str, held: base.HeldHandle) -> base.ContainerEdits:
    privileged.programming.set_client_mode(False)
    conf = passes.configured(text, ["nvidia_gpu_driver"], "host-1")
    return container_facts.of(registry.load(conf).drivers["nvidia_gpu_driver"], held)


def asked_of(held: base.HeldHandle, action: str, driver: str) -> rpc.HostStep:
    """A step of a handle, as a conductor asks for it."""
    return rpc.HostStep(
        action=action, driver=driver, attach_handle_uuid=held.uuid,
        attach_type=held.attach_type, attach_info=held.attach_info, cpid_type="PCI",
        cpid_info=held.control_path.cpid_info, asked_ms=1, agent_started=0,
        arq_uuid=held.arq, card_in_use=held.card_in_use,
    )


def used(folder: str, address: str) -> Used:
    """Three shares are given out, and given back one by one; one of them by force."""
    conf = passes.configured(f"[agent]\ncdi_dir = {folder}\n", [], "host-1")
    cleaned: list[int] = []
    driver = _Driver(cleaned)
    given = cdi.Specifications(conf, {"fake": driver})
    handles = [share(address, number) for number in range(3)]
    part = base.Deployable(
        name="host-1_a",
        resource_class=base.SHARE_CLASS,
        num_accelerators=3,
        attach_handles=tuple(handles),
        cleans=True,
    )
    device = base.Device(
        type="GPU", vendor="10de", model="m", control_path=handles[0].control_path,
        deployables=(part,),
    )
    given.noted(discovery.Findings(devices={"fake": (device,)}, errors={}))
    files = []

    def step(action: str, number: int, *, card_in_use: bool = False) -> None:
        asked = asked_of(share(address, number, card_in_use=card_in_use), action, "fake")
        run = given.step(asked, driver.clean if action == "clean" else None)
        assert run is not None
        try:
            run(asked.handle())
        finally:
            files.append(len(list(pathlib.Path(folder).glob("*.json"))))

    for number in range(3):
        step("prepare", number)
    step("clean", 0, card_in_use=True)
    # A conductor that is not asked in time, or that says that another has one, changes that.
    for held in (None, {uuid(2): uuid(10)}, {}):
        rpc.held_handles = lambda *_given, answer=held, **_more: answer
        try:
            step("clean", 1)
        except rpc.HostStepRunning:
            cleaned.append(-1)
    step("clean", 2)
    return Used(cleaned, files)


class _Driver:
    """A driver that counts which handles it has cleaned; it waits at the ``gate``."""

    def __init__(self, cleaned: list[int], gate: threading.Event | None = None) -> None:
        self._cleaned = cleaned
        self._gate = gate
        self.began = threading.Event()

    def discover(self, host: base.Host) -> list[base.Device]:
        del host
        return []

    def container_edits(self, handle: base.HeldHandle) -> base.ContainerEdits:
        assert handle.attach_type == "PCI"
        return base.ContainerEdits(device_nodes=("/dev/null",))

    def prepare(self, handle: base.HeldHandle) -> None:
        self._cleaned.append(-int(handle.attach_info["share"]))

    def clean(self, handle: base.HeldHandle) -> None:
        self.began.set()
        if self._gate is not None:
            assert self._gate.wait(PATIENCE)
        self._cleaned.append(int(handle.attach_info["share"]))


def test_the_card_is_reset_when_nobody_has_a_share(simulate: Any, tmp_path: pathlib.Path) -> None:
    host = simulate({"cards": ["h100"]})
    found = host.call(used, str(tmp_path / "cdi"), host.card("h100"))
    # -1: it is not known who has the third one. Then it is had; then a file alone is left of it.
    assert found.cleaned == [-1, 1, 2]
    assert found.files == [1, 2, 3, 2, 1, 1, 1, 0]


def resets(text: str, held: base.HeldHandle) -> list[str]:
    """The functions that are reset when a share is given back, by each of two agents."""
    conf = passes.configured(text, ["nvidia_gpu_driver"], "host-1")
    drivers = registry.load(conf).drivers
    driver: Any = drivers["nvidia_gpu_driver"]
    found: list[str] = []

    def reset(address: str) -> None:
        found.append(address)

    privileged.reset_function = reset
    looking = discovery.Discovery("host-1", drivers, timeout=60).run()
    (device,) = looking.devices["nvidia_gpu_driver"]
    assert device.unhealthy is None
    given = cdi.Specifications(conf, drivers)
    given.noted(looking)
    # The next agent may have no folder, and the containers go on.
    without = cdi.Specifications(passes.configured("", [], "host-1"), drivers)
    for agent in (given, without):
        run = agent.step(asked_of(held, "clean", "nvidia_gpu_driver"), driver.clean)
        assert run is not None
        run(held)
    return found


@pytest.mark.parametrize("policy", ["on", "required"])
def test_the_driver_resets_the_card_of_the_last_share(
    simulate: Any, tmp_path: pathlib.Path, policy: str
) -> None:
    host = simulate({"cards": ["h100"]})
    cleaning = f"[cleaning]\nclasses = CUSTOM_GPU_SHARE:{policy}\n"
    text = cleaning + options("gpu_devices", tmp_path, {"vendor_id": "10de", "shares": 2})
    card = host.card("h100")
    assert host.call(resets, text, share(card, 1, card_in_use=True)) == []
    assert host.call(resets, text, share(card, 1)) == [card] * 2


def test_nobody_gets_a_share_while_its_card_is_reset(
    conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may have given up waiting for the share that is cleaned."""
    monkeypatch.setattr(pci, "scan", dict)
    gate, done = threading.Event(), list[int]()
    driver: Any = _Driver(done, gate)
    agent = host_steps.StepEndpoint(
        conf, {"fake": driver}, 0, pass_counter.PassCounter(lambda: None)
    )

    def ask(action: str, number: int, wait: float) -> None:
        asked = asked_of(share("0000:3b:00.0", number), action, "fake")
        agent.host_step({}, asked.to_wire(), wait)

    with pytest.raises(rpc.HostStepRunning):
        ask("clean", 1, 0)
    assert driver.began.wait(PATIENCE)
    with pytest.raises(rpc.HostStepRunning):
        ask("prepare", 2, 0.2)
    gate.set()
    ask("prepare", 2, PATIENCE)
    assert done == [1, -2]
