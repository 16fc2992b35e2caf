# SPDX-License-Identifier: Apache-2.0
"""The agent as a whole: it reports, keeps trying, and carries out host steps."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from cyborg import rpc
from cyborg.agent import service, writes
from cyborg.tests import full_payloads, messages
from cyborg.tests.heard_reports import PATIENCE
from cyborg.tests.service import until


def test_the_first_report_is_made_at_once_and_then_only_the_digest(run_conductor, run_agent):
    conductor = run_conductor()

    run_agent(report_interval=1, resource_provider_name="host-1.example")

    first = conductor.reports.get(timeout=PATIENCE)
    assert (first.host, first.node, first.counter) == ("host-1", "host-1.example", 1)
    assert first.errors == {}
    (device,) = first.devices["fake_driver"]
    assert device.deployables[0].name == "host-1_FakeDevice"
    second = conductor.reports.get(timeout=PATIENCE)
    assert second.counter == 2
    assert first.started == second.started
    assert first.digest() == second.digest()
    assert conductor.whole == 1

    # A conductor that has stored something else gets the whole report.
    conductor.stored = None
    until(lambda: conductor.whole == 2)
    assert conductor.stored.devices.keys() == {"fake_driver"}

    # An agent that starts again is told from the one before.
    run_agent()
    until(lambda: conductor.reports.get(timeout=PATIENCE).started > first.started)


def test_a_report_of_what_was_just_written_is_followed_by_a_whole_one(
    run_conductor, run_agent, monkeypatch
):
    """Its digest is not that of the next one, which finds the same."""
    conductor = run_conductor()

    def marked(self: writes.Writes, report: rpc.HostReport) -> rpc.HostReport:
        monkeypatch.undo()
        (device,) = report.devices["fake_driver"]
        doubtful = dataclasses.replace(device, being_written=True)
        return dataclasses.replace(report, devices={"fake_driver": (doubtful,)})

    monkeypatch.setattr(writes.Writes, "marked", marked)
    run_agent(report_interval=1)

    seen = [conductor.reports.get(timeout=PATIENCE) for _ in range(3)]
    marks = [report.devices["fake_driver"][0].being_written for report in seen]
    assert marks == [True, False, False]
    assert conductor.whole == 2


def test_a_change_is_reported_at_once_and_nothing_else_between_signs_of_life(
    conf, tmp_path, caplog, run_conductor, run_agent
):
    caplog.set_level("DEBUG")
    control = tmp_path / "control.json"
    conf.set_override("host_step_control", str(control), group="fake_driver")
    conductor = run_conductor()
    run_agent(discovery_interval=1, report_interval=86400)
    conductor.reports.get(timeout=PATIENCE)
    until(lambda: caplog.text.count("Fake discover") > 3)

    draft = tmp_path / "draft"
    for sentence in ("It is on fire.", "It is ash."):
        draft.write_text(json.dumps({"unhealthy": {"0": sentence}}))
        draft.replace(control)

        report = conductor.reports.get(timeout=PATIENCE)
        assert report.counter > 2
        assert [each.unhealthy for each in report.devices["fake_driver"]] == [sentence]


def test_who_asks_for_a_pass_as_another_begins_gets_a_report_of_a_later_one(
    conf, run_conductor
):
    class Asked(service.Agent):
        """Is asked when it has just found that nobody asks."""

        def _next_pass(self) -> float:
            if self._last_report < 0:
                self._look_now()
            return super()._next_pass()

    conductor = run_conductor()
    conf.set_override("discovery_interval", 86400, group="agent")
    conf.set_override("report_interval", 86400, group="agent")
    agent = Asked(conf)

    agent.start()

    try:
        assert [conductor.reports.get(timeout=PATIENCE).counter for _ in range(2)] == [1, 2]
    finally:
        agent.stop()


def test_a_sign_of_life_is_not_put_off_to_the_next_pass(conf, monkeypatch, run_conductor):
    class Clock:
        now = 1000.0
        time_ns = staticmethod(time.time_ns)

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    conductor = run_conductor()
    conf.set_override("discovery_interval", 50, group="agent")
    conf.set_override("report_interval", 60, group="agent")
    agent = service.Agent(conf)

    waits = []
    for now in (1000.0, 1050.0, 1060.0):
        clock.now = now
        waits.append(agent._step())

    assert waits == [50, 10, 50]
    assert [conductor.reports.get(timeout=PATIENCE).counter for _ in range(2)] == [1, 3]
    assert conductor.reports.empty()


def test_what_a_list_names_and_the_host_lacks_is_in_the_report(conf, run_conductor, run_agent):
    conf.set_override("device_spec", ['{"vendor_id": "ffee"}'], group="pci")
    conductor = run_conductor()
    run_agent(enabled_drivers=["pci_driver", "unheard_of"])

    report = conductor.reports.get(timeout=PATIENCE)

    absent = report.errors["unheard_of"]
    assert absent.startswith("No driver of this name is installed; installed are ")
    assert report.errors == {
        "pci_driver": "Object 1 of [pci] device_spec matches nothing on this host",
        "unheard_of": absent,
    }
    assert report.devices == {"pci_driver": ()}
    assert bool(report.not_offered_reasons) is bool(report.not_offered)


def is_done(conf, step: rpc.HostStep) -> bool:
    """Have the agent carry out a step; it may report before it can be reached."""
    try:
        rpc.run_host_step(conf, "host-1", step, PATIENCE)
    except rpc.HostUnreachable:
        return False
    return True


@pytest.mark.parametrize("broker", messages.TRANSPORTS, indirect=True)
def test_reports_and_host_steps_cross_every_transport(conf, tmp_path, run_conductor, run_agent):
    control = tmp_path / "control.json"
    control.write_text(json.dumps({"prepare": {"fail": "out of order"}}))
    conf.set_override("host_step_control", str(control), group="fake_driver")
    run_agent(report_interval=1)
    conductor = run_conductor(refusals=1)
    report = conductor.reports.get(timeout=PATIENCE)
    step = dataclasses.replace(full_payloads.step(), agent_started=report.started)

    with pytest.raises(rpc.HostStepFailed, match=r"^out of order$"):
        until(lambda: is_done(conf, step))
    control.unlink()
    until(lambda: is_done(conf, step))

    conductor.reports.get(timeout=PATIENCE)
