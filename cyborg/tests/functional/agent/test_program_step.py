# SPDX-License-Identifier: Apache-2.0
"""The agent loads bitstreams of the real Glance into the fake FPGA, one step at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import host_steps, pass_counter, write_results
from cyborg.common import errors
from cyborg.drivers import base, fake
from cyborg.tests import full_payloads, hosts, messages
from cyborg.tests.contract import driver as contract
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import until

PATIENCE = 60


class Plain:
    def discover(self, host: base.Host) -> list[base.Device]:
        return []


class Layouts(Plain):
    def __init__(self) -> None:
        self.set: list[str | None] = []

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        self.set.append(target.function)
        return base.Programmed(function=target.function, verified_by="this test")


class Host:
    """An endpoint with the fake driver, whose device has two regions."""

    def __init__(self, conf: cfg.ConfigOpts, images: GlanceServer, folder: pathlib.Path) -> None:
        conf.set_override("cache_path", str(folder / "bitstreams"), group="programming")
        conf.set_override("state_dir", str(folder / "loaded"), group="fake_driver")
        conf.set_override("program_mode", "dynamic", group="fake_driver")
        conf.set_override("regions", 2, group="fake_driver")
        conf.set_override("handles_per_device", 4, group="fake_driver")
        conf.set_override("host_step_control", str(folder / "control"), group="fake_driver")
        self.looks: list[int] = []
        self._counter = pass_counter.PassCounter(lambda: self.looks.append(self._counter.value))
        self._conf = conf
        self._images = images
        self._control = folder / "control"
        self._began = 0
        self.restart()
        self.begin_pass = self._counter.begin

    def restart(self) -> None:
        self._driver = fake.FakeDriver(self._conf)
        drivers: dict[str, base.Driver] = {"fake_driver": self._driver, "plain": Plain()}
        drivers["layouts"] = self.layouts = Layouts()
        self.endpoint = host_steps.StepEndpoint(self._conf, drivers, 5, self._counter)

    def control(self, **sections: Any) -> None:
        """Let the driver do this from now on."""
        self._control.write_text(json.dumps(sections))

    def step(self, function: str | None, region: int = 0, **changes: Any) -> rpc.ProgramStep:
        """The order to load the function, which a new image has; None: an image that is none."""
        data = json.dumps({"function": function} if function else {}).encode()
        target = contract.program_targets(self._driver.discover(contract.Host()))[region]
        step = dataclasses.replace(
            full_payloads.program_step(),
            driver="fake_driver",
            deployable=target.deployable,
            deployable_uuid=f"uuid of {target.deployable}",
            cpid_type=target.control_path.cpid_type,
            cpid_info=target.control_path.cpid_info,
            attach_handles=target.attach_handles,
            image_uuid=self._images.upload("image", data),
            size=len(data),
            hash_algo="sha512",
            hash_value=hashlib.sha512(data).hexdigest(),
            function_id=function,
            signature={},
            operation_uuid=f"operation for {function}",
            write=1,
            asked_ms=1000,
            agent_started=5,
        )
        return dataclasses.replace(step, **changes)

    def handle_step(self, region: int = 0, **changes: Any) -> rpc.HostStep:
        """The order to prepare the first handle of a region."""
        target = contract.program_targets(self._driver.discover(contract.Host()))[region]
        step = dataclasses.replace(
            full_payloads.step(),
            attach_handle_uuid=f"handle of {target.deployable}",
            attach_info=target.attach_handles[0].attach_info,
            cpid_info=target.control_path.cpid_info,
            asked_ms=1000,
            agent_started=5,
        )
        return dataclasses.replace(step, **changes)

    def report(self) -> rpc.HostReport:
        counter = self.begin_pass()
        devices = tuple(self._driver.discover(contract.Host()))
        return hosts.report(by_driver={"fake_driver": devices}, order=(5, counter))

    def program(self, step: rpc.ProgramStep, wait: float = PATIENCE) -> rpc.ProgramAnswer:
        """Ask for it as a conductor does."""
        return self.endpoint.program({}, json.loads(json.dumps(step.to_wire())), wait)

    def prepare(self, step: rpc.HostStep, wait: float = PATIENCE) -> None:
        self.endpoint.host_step({}, step.to_wire(), wait)

    def loaded(self) -> list[str | None]:
        (device,) = self._driver.discover(contract.Host())
        return [part.function for part in device.deployables if part.program_mode]

    def await_loaded(self, *functions: str) -> None:
        until(lambda: self.loaded() == list(functions))


@pytest.fixture
def conductor(run_conductor):
    """Permits every write."""
    return run_conductor()


@pytest.fixture
def host(conf, images, tmp_path, conductor) -> Iterator[Host]:
    running = Host(conf, images, tmp_path)
    yield running
    running.control()


def test_no_layout_is_changed_while_virtual_functions_are_made(host):
    step = host.step("sym", driver="layouts", image_uuid="", size=0)

    with host.endpoint.layout_changes:
        with pytest.raises(rpc.HostStepRunning):
            host.program(step, 0.1)
        assert host.layouts.set == []

    assert host.program(dataclasses.replace(step, asked_ms=1001)).function == "sym"
    assert host.layouts.set == ["sym"]


def test_a_conductor_that_asks_again_joins_and_another_order_waits(host, caplog):
    caplog.set_level("INFO")
    host.control(program={"hang": True})
    step = host.step("aes")
    for each in (
        step,
        dataclasses.replace(step, asked_ms=1001),
        host.step("des", asked_ms=1002),
    ):
        with pytest.raises(rpc.HostStepRunning, match="has not finished to program"):
            host.program(each, 0.1)

    host.control()

    host.await_loaded("des", "")
    assert host.program(host.step("sha", asked_ms=1003)).function == "sha"
    assert caplog.text.count("Fake program of") == 3
    assert host.looks == [0, 0, 0]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_write_that_ends_between_two_questions_is_not_made_again(host, caplog, restarts):
    caplog.set_level("INFO")
    step = host.step("aes")
    # Its conductor goes, and it ends before that asks again.
    host.control(program={"hang": True})
    with pytest.raises(rpc.HostStepRunning):
        host.program(step, 0.1)
    host.control()
    host.await_loaded("aes", "")
    until(lambda: "is kept" in caplog.text)
    if restarts:
        host.restart()
    host.begin_pass()

    answers = [host.program(dataclasses.replace(step, asked_ms=ms)) for ms in (1001, 1002)]

    assert caplog.text.count("Fake program of") == 1
    # Reports of what was seen before the answer may be older than the write.
    assert answers == 2 * [
        rpc.ProgramAnswer(function="aes", verified_by="the fake card's memory", report_counter=1)
    ]


def test_a_write_whose_failure_was_not_heard_is_not_made_again(host, caplog):
    caplog.set_level("INFO")
    host.begin_pass()
    host.control(program={"fail": "out of order"})
    step = host.step("aes")
    for asked_ms in (1000, 1001):
        with pytest.raises(rpc.ProgramFailed, match=r"^out of order$") as caught:
            host.program(dataclasses.replace(step, asked_ms=asked_ms))
        # It may have written, and is looked at.
        assert (caught.value.written, caught.value.report_counter) == (True, 1)
        host.control()
    assert host.looks[0] == 1
    assert caplog.text.count("Fake program of") == 1

    again = host.program(dataclasses.replace(step, write=2, asked_ms=1002))

    assert (again.function, caplog.text.count("Fake program of")) == ("aes", 2)


@pytest.mark.parametrize(
    ("changes", "kept", "writes"),
    [
        ({"operation_uuid": "another"}, None, 2),
        ({"write": 2}, None, 2),
        # The host was booted.
        ({}, "boot", 2),
        # What is kept cannot be read.
        *(({}, content, 2) for content in ("", "{", "null")),
        # There is no room on the disk: an agent remembers by itself.
        ({}, "full", 1),
    ],
)
def test_what_another_order_asks_for_or_is_not_known_to_be_written_is_written(
    conf, host, caplog, tmp_path, monkeypatch, changes, kept, writes
):
    caplog.set_level("INFO")
    folder = pathlib.Path(conf.state_path, "writes")
    if kept == "full":
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.touch()
    step = host.step("aes")
    host.program(step)
    if kept == "boot":
        (tmp_path / "boot").write_text("another\n")
        monkeypatch.setattr(write_results, "_BOOT", tmp_path / "boot")
    elif kept is not None and kept != "full":
        next(folder.iterdir()).write_text(kept)
    if kept is not None and kept != "full":
        host.restart()

    host.program(dataclasses.replace(step, asked_ms=1001, **changes))

    assert caplog.text.count("Fake program of") == writes


def test_leave_is_asked_for_right_before_the_first_byte(conf, host, conductor):
    step = host.step("aes")
    host.control(prepare={"hang": True})
    with pytest.raises(rpc.HostStepRunning):
        host.prepare(host.handle_step(asked_ms=999), 0.1)
    with pytest.raises(rpc.HostStepRunning):
        host.program(step, 0.1)
    cache = pathlib.Path(conf.programming.cache_path)
    until(lambda: [path for path in cache.glob("*.sha512.*") if path.suffix != ".part"])
    assert conductor.requests == []
    host.control()

    host.program(dataclasses.replace(step, asked_ms=1001))

    assert conductor.requests == [
        rpc.WriteRequest(
            host="host-1",
            deployable_uuid=step.deployable_uuid,
            operation_uuid="operation for aes",
            write=1,
        )
    ]


ENDED = rpc.WritePermit(seconds=0, refused="It has ended.")
DOWN = errors.ServiceUnavailable("Host host-1 is down, and must report first.")


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (ENDED, rpc.ProgramFailed, r"^Nothing is written: It has ended\.$"),
        # Its term is over.
        (
            rpc.WritePermit(seconds=0, refused=None),
            rpc.HostStepRunning,
            "expired before anything was written",
        ),
        (DOWN, rpc.HostStepRunning, "without a permit: Host host-1 is down"),
    ],
    ids=["refused", "late", "no answer"],
)
def test_without_leave_nothing_is_written(host, conductor, answer, error, sentence):
    host.program(host.step("old", asked_ms=1))
    step, permit = host.step("aes"), conductor.permit
    setattr(conductor, "fault" if answer is DOWN else "permit", answer)

    with pytest.raises(error, match=sentence) as caught:
        host.program(step)

    assert host.loaded() == ["old", ""]
    if error is rpc.ProgramFailed:
        assert not caught.value.written
        return
    conductor.permit, conductor.fault = permit, None
    assert host.program(dataclasses.replace(step, asked_ms=1001)).function == "aes"


@pytest.mark.parametrize(
    ("old", "reason"), [({}, "It has ended"), ({"hash_value": "0"}, "This is not an image")]
)
def test_a_refusal_does_not_replace_the_result_that_a_later_order_waits_for(
    host, conductor, caplog, old, reason
):
    """The record of the host was removed by force, and the deployable has another one."""
    caplog.set_level("INFO")
    given_up = dataclasses.replace(host.step("old"), deployable_uuid="its former row", **old)
    step = host.step("aes")
    host.program(step)
    conductor.permit = ENDED
    with pytest.raises(rpc.ProgramFailed, match=reason):
        host.program(given_up)

    host.program(dataclasses.replace(step, asked_ms=1001))

    assert caplog.text.count("Fake program of") == 1


def test_a_report_says_which_devices_were_written_since(host, conductor):
    report = host.report()
    told: list[bool] = []

    def is_marked() -> bool:
        (device,) = host.endpoint.writes.marked(report).devices["fake_driver"]
        return bool(device.being_written)

    assert not is_marked()
    conductor.while_asked = lambda: told.append(is_marked())
    conductor.permit = ENDED
    with pytest.raises(rpc.ProgramFailed):
        host.program(host.step("des"))
    # As if nobody had ever asked.
    assert not is_marked()
    conductor.permit = rpc.WritePermit(seconds=PATIENCE, refused=None)

    host.program(host.step("aes", asked_ms=1001))

    # An answer may be on its way, and what it permits is not known to any report that is.
    assert told == [True, True]
    assert is_marked()
    report = host.report()
    assert not is_marked()


def test_a_message_that_was_held_up_or_is_for_another_agent_is_not_obeyed(host):
    late = host.step("aes")
    host.program(host.step("des", asked_ms=1001))

    with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
        host.program(late)
    with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
        host.prepare(host.handle_step(asked_ms=1000))
    host.prepare(host.handle_step(asked_ms=1002))
    with pytest.raises(rpc.HostStepRunning, match="asked for meanwhile"):
        host.program(host.step("sha", asked_ms=1001))
    # It was for the agent before this one.
    with pytest.raises(rpc.HostStepRunning, match="started again"):
        host.program(host.step("sha", asked_ms=1003, agent_started=4))

    assert host.loaded() == ["des", ""]


def test_a_deployable_is_programmed_after_the_steps_of_its_handles(host, caplog):
    caplog.set_level("INFO")
    host.control(prepare={"hang": True})
    with pytest.raises(rpc.HostStepRunning):
        host.prepare(host.handle_step(), 0.1)
    until(lambda: "Fake prepare" in caplog.text)

    with pytest.raises(rpc.HostStepRunning):
        host.program(host.step("aes", asked_ms=1001), 1)
    # Nothing has been erased, and another region need not wait.
    assert host.program(host.step("des", region=1)).function == "des"
    assert host.loaded() == ["", "des"]
    host.control()

    host.await_loaded("aes", "des")


def test_the_handles_of_a_deployable_wait_until_it_is_programmed(host):
    host.program(host.step("old"))
    host.control(program={"hang": True})
    with pytest.raises(rpc.HostStepRunning):
        host.program(host.step("aes", asked_ms=1001), 0.1)
    host.await_loaded("", "")

    with pytest.raises(rpc.HostStepRunning):
        host.prepare(host.handle_step(asked_ms=1002), 0.5)
    host.prepare(host.handle_step(region=1, asked_ms=1002))
    host.control()

    host.prepare(host.handle_step(asked_ms=1003))
    assert host.loaded() == ["aes", ""]


def test_two_regions_of_a_card_are_not_programmed_at_once(host):
    for region in (0, 1):
        host.program(host.step("old", region=region))
    host.control(program={"hang": True})
    for region in (0, 1):
        with pytest.raises(rpc.HostStepRunning):
            host.program(host.step("aes", region=region, asked_ms=1001), 0.5)
        host.await_loaded("", "old")

    host.control()

    host.await_loaded("aes", "aes")


@pytest.mark.parametrize(
    ("function", "changes", "sentence"),
    [
        ("aes", {"driver": "missing"}, "not loaded on this host"),
        ("aes", {"driver": "plain"}, "cannot program"),
        ("aes", {"size": 1}, "does not have the size"),
        ("aes", {"hash_value": "0"}, "This is not an image"),
        ("aes", {"image_uuid": "2a4a1a0c-8f5a-4c70-9b64-5fb5d3f1f3a2"}, "Glance has no image"),
        ("aes", {"cpid_type": ""}, "no such step"),
        (None, {}, "not a bitstream of the fake FPGA"),
    ],
)
def test_what_is_refused_has_written_nothing(host, function, changes, sentence):
    host.begin_pass()
    host.program(host.step("old", asked_ms=1))

    with pytest.raises(rpc.ProgramFailed, match=sentence) as caught:
        host.program(host.step(function, **changes))

    assert not caught.value.written
    assert host.loaded() == ["old", ""]
    # It tells what may have been seen before: what nobody heard the end of may be another's.
    if sentence != "no such step":
        assert (caught.value.report_counter, host.looks) == (1, [1, 1])


def test_while_glance_is_down_the_conductor_asks_again(conf, host, images):
    wire = messages.Wire(images.url)
    conf.set_override("endpoint_override", wire.url, group="glance")
    step = host.step("aes")
    with pytest.raises(rpc.HostStepRunning, match="cannot be fetched now"):
        host.program(step)

    wire.join()

    assert host.program(dataclasses.replace(step, asked_ms=1001)).function == "aes"
    wire.cut()


def test_another_function_than_was_asked_for_is_a_failure(host):
    with pytest.raises(rpc.ProgramFailed, match=r"^Function aes is loaded, not des$") as caught:
        host.program(host.step("aes", function_id="des"))

    assert caught.value.written
    assert host.program(host.step("a-e-s", function_id="AES", asked_ms=1001)).function == "a-e-s"


def test_a_pass_that_began_before_is_known_by_its_number(
    conf, host, conductor, run_agent, caplog
):
    caplog.set_level("DEBUG")
    step = host.step("aes", agent_started=2**62)
    host.control(discover={"hang": True})
    caplog.clear()
    run_agent()
    until(lambda: "Fake discover" in caplog.text)

    answer = rpc.run_program(conf, "host-1", step, PATIENCE)
    host.control()

    shown: dict[int, str | None] = {}
    while len(shown) < 2:
        report = conductor.reports.get(timeout=PATIENCE)
        (device,) = report.devices["fake_driver"]
        shown[report.counter] = device.deployables[1].function
    assert answer.report_counter == 1
    assert shown == {1: "", 2: "aes"}
