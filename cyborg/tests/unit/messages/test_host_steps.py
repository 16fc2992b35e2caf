# SPDX-License-Identifier: Apache-2.0
"""Steps of one handle run one at a time, and a repeat joins the step under way."""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyborg import rpc
from cyborg.agent import host_steps, pass_counter
from cyborg.drivers import base, pci
from cyborg.tests.full_payloads import program_step, step

PATIENCE = 60

#: The physical function of a card, and its virtual ones.
CARD, *VFS = "0000:3d:00.0", "0000:3d:01.0", "0000:3d:02.1"
OTHER_CARD = "0000:3e:00.0"


class Driver:
    """Notes each call and takes until ``gate`` opens."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[str, base.HeldHandle]] = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        self.fault: BaseException | None = None

    def discover(self, host: base.Host) -> list[base.Device]:
        return []

    def prepare(self, handle: base.HeldHandle) -> None:
        self._call("prepare", handle)

    def clean(self, handle: base.HeldHandle) -> None:
        self._call("clean", handle)

    def _call(self, action: str, handle: base.HeldHandle) -> None:
        self.calls.put((action, handle))
        self.gate.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault


class Plain:
    def discover(self, host: base.Host) -> list[base.Device]:
        return []


@pytest.fixture
def driver():
    slow = Driver()
    yield slow
    slow.gate.set()


@pytest.fixture
def agent(conf, driver, monkeypatch):
    # There is no conductor to be asked by steps that had to wait.
    monkeypatch.setattr(host_steps, "AT_ONCE", math.inf)
    drivers = {"fake_driver": driver, "plain": Plain()}
    counter = pass_counter.PassCounter(lambda: None)
    return host_steps.StepEndpoint(conf, drivers, step().agent_started, counter)


@pytest.fixture
def ask(agent) -> Callable[..., None]:
    def asking(wait: float = PATIENCE, **changes: Any) -> None:
        agent.host_step({}, dataclasses.replace(step(), **changes).to_wire(), wait)

    return asking


def in_thread(function: Callable[..., None], **arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, kwargs=arguments, daemon=True)
    thread.start()
    return thread


def wait_until_idle(agent: host_steps.StepEndpoint) -> None:
    deadline = time.monotonic() + PATIENCE
    while agent._latest:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_driver_gets_the_handle(ask, driver):
    ask()

    action, handle = driver.calls.get_nowait()
    assert action == "prepare"
    assert handle == base.HeldHandle(
        attach_type=step().attach_type,
        attach_info=step().attach_info,
        uuid=step().attach_handle_uuid,
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=step().cpid_info),
        arq=step().arq_uuid,
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (OSError("no such card"), "^no such card$"),
        (KeyError("card"), "^KeyError: 'card'$"),
        (SystemExit(), "without an answer"),
    ],
)
def test_what_the_driver_raises_is_a_sentence_and_a_step_may_be_asked_for_again(
    ask, driver, fault, sentence
):
    driver.fault = fault
    with pytest.raises(rpc.HostStepFailed, match=sentence):
        ask()
    driver.fault = None
    for _ in range(2):
        ask()
    assert driver.calls.qsize() == 3


def test_a_repeat_joins_the_step_under_way(ask, driver, agent):
    driver.gate.clear()
    # Also one that is asked for later.
    for asked_ms in (1, 1, 2):
        with pytest.raises(rpc.HostStepRunning, match="has not finished to prepare"):
            ask(wait=0, asked_ms=asked_ms)
    driver.calls.get(timeout=PATIENCE)

    driver.gate.set()
    wait_until_idle(agent)

    assert driver.calls.empty()


def test_all_who_joined_learn_the_outcome(ask, driver):
    driver.gate.clear()
    outcomes: queue.Queue[str] = queue.Queue()

    def learn() -> None:
        try:
            ask()
        except rpc.HostStepFailed as exc:
            outcomes.put(str(exc))

    first = in_thread(learn)
    driver.calls.get(timeout=PATIENCE)
    others = [in_thread(learn) for _ in range(3)]
    driver.fault = OSError("out of order")
    driver.gate.set()
    for thread in (first, *others):
        thread.join(PATIENCE)

    assert [outcomes.get_nowait() for _ in range(4)] == ["out of order"] * 4


def test_a_message_that_was_held_up_or_is_for_the_agent_before_is_refused(ask, driver):
    ask(asked_ms=2)
    driver.calls.get_nowait()
    with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
        ask(action="clean", asked_ms=1)
    with pytest.raises(rpc.HostStepRunning, match="has started again"):
        ask(action="clean", asked_ms=3, agent_started=step().agent_started - 1)
    assert driver.calls.empty()

    ask(action="clean", asked_ms=3, agent_started=step().agent_started + 1)
    assert driver.calls.qsize() == 1


def test_steps_of_a_handle_keep_their_order_and_those_of_two_run_side_by_side(ask, driver):
    driver.gate.clear()
    for action in ("prepare", "clean", "clean", "prepare", "clean"):
        with pytest.raises(rpc.HostStepRunning):
            ask(wait=0.1, action=action)
    assert driver.calls.get(timeout=PATIENCE)[0] == "prepare"
    assert driver.calls.empty()
    with pytest.raises(rpc.HostStepRunning):
        ask(wait=0, attach_handle_uuid="two", attach_info={"bus": "two"})
    assert driver.calls.get(timeout=PATIENCE)[1].uuid == "two"

    driver.gate.set()
    ask(action="clean")

    assert [driver.calls.get_nowait()[0] for _ in range(3)] == ["clean", "prepare", "clean"]


def function(address: str) -> pci.Function:
    return pci.Function(
        address=address,
        vendor="8086",
        device="37c9",
        subsystem_vendor="8086",
        subsystem_device="0002",
        class_code="0b4000",
        pf=CARD if address in VFS else None,
    )


def of(address: str, action: str = "clean") -> dict[str, Any]:
    """What makes a step that of a function's handle."""
    place = pci.split(address)
    return {
        "action": action,
        "attach_type": "PCI",
        "attach_handle_uuid": address,
        "attach_info": place,
        "cpid_info": place,
    }


def test_one_handle_of_a_card_is_cleaned_at_a_time(ask, driver, monkeypatch):
    bus = pci.Snapshot(map(function, [CARD, *VFS, OTHER_CARD]))
    monkeypatch.setattr(pci, "scan", lambda: bus)
    driver.gate.clear()

    with pytest.raises(rpc.HostStepRunning, match="has not finished to clean"):
        ask(wait=0.1, **of(VFS[0]))
    assert driver.calls.get(timeout=PATIENCE)[1].uuid == VFS[0]
    for address in [CARD, VFS[1]]:
        with pytest.raises(rpc.HostStepRunning, match=f"until attach handle {VFS[0]} of the same"):
            ask(wait=0.1, **of(address))
    assert driver.calls.empty()

    # Another card does not wait, and nobody who is to get a handle.
    for step_of in (of(OTHER_CARD), of("0000:3d:02.2", "prepare")):
        with pytest.raises(rpc.HostStepRunning):
            ask(wait=0, **step_of)
        assert driver.calls.get(timeout=PATIENCE)[1].uuid == step_of["attach_handle_uuid"]
    assert driver.calls.empty()

    driver.gate.set()
    for address in (VFS[1], CARD):
        ask(**of(address))
    assert {handle.uuid for _, handle in driver.calls.queue} == {CARD, VFS[1]}


class Clock:
    """The agent's clock, which stands still but for the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_a_clean_goes_on_since_nothing_else_of_its_card_was_cleaned(ask, driver, monkeypatch):
    bus = pci.Snapshot(map(function, [CARD, *VFS]))
    clock = Clock()
    monkeypatch.setattr(pci, "scan", lambda: bus)
    monkeypatch.setattr(host_steps, "time", clock)

    def seconds(address: str) -> int | None:
        with pytest.raises(rpc.HostStepRunning) as running:
            ask(wait=0.1, **of(address))
        return running.value.seconds

    first, second = VFS
    driver.gate.clear()
    assert seconds(first) == 0
    driver.calls.get(timeout=PATIENCE)
    clock.now += 290
    assert (seconds(first), seconds(second)) == (290, 0)
    clock.now += 300
    assert (seconds(first), seconds(second)) == (590, 0)

    ended, driver.gate = driver.gate, threading.Event()
    ended.set()
    assert driver.calls.get(timeout=PATIENCE)[1].uuid == second
    clock.now += 70
    assert seconds(second) == 70


def test_a_function_whose_card_was_not_known_is_not_cleaned(ask, driver, monkeypatch):
    buses = [pci.Snapshot([]), pci.Snapshot(map(function, [CARD, *VFS]))]
    monkeypatch.setattr(pci, "scan", lambda: buses.pop(0) if len(buses) > 1 else buses[0])

    with pytest.raises(rpc.HostStepRunning, match="have just changed"):
        ask(**of(VFS[0]))
    assert driver.calls.empty()

    ask(**of(VFS[0]))
    assert driver.calls.qsize() == 1


def test_without_pci_one_handle_of_a_device_is_cleaned_at_a_time(ask, driver, monkeypatch):
    def no_bus() -> pci.Snapshot:
        raise OSError("sysfs is not mounted")

    monkeypatch.setattr(pci, "scan", no_bus)
    driver.gate.clear()
    for name, device in (("one", "a"), ("two", "a"), ("three", "b")):
        path = {"cpid_type": "MDEV", "cpid_info": {"parent": device}}
        with pytest.raises(rpc.HostStepRunning):
            ask(
                wait=0.1,
                action="clean",
                attach_handle_uuid=name,
                attach_info={"vgpu_mark": name},
                **path,
            )

    called = [driver.calls.get(timeout=PATIENCE)[1].uuid for _ in range(2)]
    assert called == ["one", "three"]
    assert driver.calls.empty()


@pytest.mark.parametrize("jump", [2**62, 10**12, 86_400_000, rpc.AGE_MAX + 1])
def test_a_step_is_taken_after_one_of_a_clock_that_was_ahead(ask, driver, jump):
    now = 1_800_000_000_000
    ask(action="prepare", asked_ms=now + jump)
    ask(action="clean", asked_ms=now)
    ask(action="prepare", asked_ms=now + 1)
    assert [driver.calls.get_nowait()[0] for _ in range(3)] == ["prepare", "clean", "prepare"]

    # What was asked for before, by the clock that is right again, is old as ever.
    for age in (1, 60_000, rpc.AGE_MAX - 1):
        with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
            ask(action="clean", asked_ms=now + 1 - age)
    assert driver.calls.empty()


def test_a_clock_that_was_a_little_ahead_blocks_for_no_longer_than_that(ask, driver):
    now, ahead = 1_800_000_000_000, 60_000
    ask(action="prepare", asked_ms=now + ahead)
    with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
        ask(action="clean", asked_ms=now + ahead - 1)
    ask(action="clean", asked_ms=now + ahead)


@pytest.mark.parametrize("wait", [None, "1", [], {}, True, -1, float("nan"), 1e300, 2**70])
def test_a_time_to_wait_that_is_none_is_refused(agent, driver, wait):
    wire = step().to_wire()
    with pytest.raises(rpc.HostStepFailed, match="wait must be seconds"):
        agent.host_step({}, wire, wait)
    with pytest.raises(rpc.ProgramFailed, match="wait must be seconds") as caught:
        agent.program({}, program_step().to_wire(), wait)
    assert not caught.value.written
    assert driver.calls.empty()


@pytest.fixture
def ask_of(ask, monkeypatch) -> Callable[..., None]:
    """Asks for a step of the handle of that name; few handles are remembered."""
    monkeypatch.setattr(host_steps, "REMEMBERED_MAX", 10)

    def asking(name: str, asked_ms: int, action: str = "prepare") -> None:
        info = {"bus": name}
        ask(asked_ms=asked_ms, attach_handle_uuid=name, attach_info=info, action=action)

    return asking


def test_of_many_handles_an_agent_remembers_enough(ask_of, driver):
    for asked_ms in range(10, 30):
        ask_of(f"{asked_ms}", asked_ms)
        driver.calls.get_nowait()

    # What was asked of the first handle is forgotten, and so may be what this message would undo.
    with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
        ask_of("10", 9, "clean")
    assert driver.calls.empty()
    ask_of("10", 31, "clean")
    ask_of("new", 30)


def test_a_clock_that_was_ahead_blocks_no_handle_that_is_not_remembered(ask_of):
    for number in range(20):
        ask_of(f"{number}", 2**62 + number)
    for asked_ms in (1000, 2000):
        ask_of("new", asked_ms)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"driver": "nvidia"}, "Driver nvidia is not loaded on this host"),
        ({"driver": "plain"}, "Driver plain cannot prepare a handle"),
        ({"driver": "plain", "action": "clean"}, "Driver plain cannot clean a handle"),
        ({"action": "explode"}, "Driver fake_driver cannot explode a handle"),
        ({"action": "discover"}, "Driver fake_driver cannot discover a handle"),
        ({"attach_type": "WHEEL"}, "This is no host step"),
    ],
)
def test_what_cannot_be_done_is_said(ask, driver, changes, sentence):
    with pytest.raises(rpc.HostStepFailed, match=sentence):
        ask(**changes)

    assert driver.calls.empty()
