# SPDX-License-Identifier: Apache-2.0
"""What a host says that no database stores as text or number is refused, and stops nobody.

Each message is true but for one value, and goes to a real conductor. The answer is a sentence about
it, and what the host says next is taken.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc
from cyborg.db import models
from cyborg.tests import full_payloads, hosts, signed
from cyborg.tests import messages as transports

pytestmark = [pytest.mark.every_database, pytest.mark.usefixtures("database")]

#: What is put in the place of a text, of a number, and of anything.
TEXTS = ("\0", "a\0b", "\ud800", "a" * 300)
NUMBERS = (2**31, 2**63, -(2**70), 1e300)
ANYTHING: tuple[Any, ...] = (None, True, [], {}, [{}])
#: An agent that started after all numbers that could be the time of that.
LATER = 2**31 + 1
Path = tuple[Any, ...]
_counter = itertools.count(1)


@pytest.fixture(autouse=True)
def _conductor(conf: cfg.ConfigOpts) -> Iterator[None]:
    with transports.transport(conf, "memory"), signed.serving(conf):
        yield


def places(data: Any, place: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every text and number in the data, and where it is."""
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places(data[key], (*place, key))
    elif isinstance(data, str | int):
        yield place, data


def odd(wire: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The data with one odd value, or one odd key, at a time."""
    keys = set()
    for place, value in places(wire):
        for instead in (*(TEXTS if isinstance(value, str) else NUMBERS), *ANYTHING):
            yield _changed(wire, place, instead)
        for depth, key in enumerate(place):
            if isinstance(key, str) and place[: depth + 1] not in keys:
                keys.add(place[: depth + 1])
                for text in TEXTS:
                    yield _changed(wire, place[: depth + 1], text, is_key=True)


def _changed(
    wire: dict[str, Any], place: Path, instead: Any, *, is_key: bool = False
) -> tuple[str, dict[str, Any]]:
    fresh = copy.deepcopy(wire)
    inner = fresh
    for key in place[:-1]:
        inner = inner[key]
    if is_key:
        inner[instead] = inner.pop(place[-1])
    else:
        inner[place[-1]] = instead
    return f"{place}: {instead!r:.20}", fresh


def true_report(started: int = 1) -> rpc.HostReport:
    full = full_payloads.report()
    return dataclasses.replace(full, started=started, counter=next(_counter))


def ask(conf: cfg.ConfigOpts, what: str, method: str, **body: dict[str, Any]) -> dict[str, Any]:
    answer = signed.ask(conf, method, body)
    assert "the log of the service" not in answer.get("failed", ""), f"{what}: {answer}"
    return answer


def test_reports(conf: cfg.ConfigOpts) -> None:
    for what, wire in odd(true_report().to_wire()):
        ask(conf, what, "report", report=wire)
    rpc.report(conf, true_report(LATER))
    (found,) = hosts.deployables()
    assert found.name == "host-1_0000:0c:00.1"
    assert found.device.driver == "pci_driver"


def test_a_report_has_so_many_bytes(conf: cfg.ConfigOpts) -> None:
    conf.set_override("max_report_bytes", 5000, group="conductor")
    rpc.report(conf, true_report())
    large = dataclasses.replace(true_report(), errors={"slow_driver": "x" * 5000})
    with pytest.raises(rpc.ReportFailed, match="max_report_bytes, which is 5000"):
        rpc.report(conf, large)
    assert "max_report_bytes" in hosts.errors_of("host-1")["refused-messages"]


def test_digests(conf: cfg.ConfigOpts) -> None:
    rpc.report(conf, true_report())
    for what, wire in odd(true_report().unchanged().to_wire()):
        ask(conf, what, "report_unchanged", report=wire)
    assert rpc.report_unchanged(conf, true_report(LATER).unchanged())


def test_requests_to_write(conf: cfg.ConfigOpts) -> None:
    for what, wire in odd(full_payloads.write_request().to_wire()):
        ask(conf, what, "permit_write", request=wire)
    with pytest.raises(rpc.WriteRefused, match="has ended"):
        rpc.permit_write(conf, full_payloads.write_request())


def answers() -> Iterator[tuple[str, dict[str, Any]]]:
    failed = {"failed": "no", "written": True, "report_counter": 7}
    for wire in (full_payloads.program_answer().to_wire(), failed, {"running": "it goes on"}):
        yield from odd(wire)


def test_answers_of_agents(conf: cfg.ConfigOpts) -> None:
    with signed.answering(conf, "host-2") as agent:
        for what, answer in answers():
            agent.answer = answer
            counter, written = None, True
            with contextlib.suppress(rpc.HostStepFailed, rpc.HostStepRunning):
                rpc.run_host_step(conf, "host-2", full_payloads.step(), signed.PATIENCE)
            step = full_payloads.program_step()
            try:
                counter = rpc.run_program(conf, "host-2", step, signed.PATIENCE).report_counter
            except rpc.ProgramFailed as exc:
                counter, written = exc.report_counter, exc.written
            except rpc.HostStepRunning:
                continue
            assert written is (answer.get("written") is not False), what
            hosts.apply(hosts.card("a"))
            with db.writer() as session:
                # As a conductor does with it.
                db.update(session, models.Host, report_counter=counter or 0)


def test_an_id_of_a_request(conf: cfg.ConfigOpts) -> None:
    true = "req-4b27a5a2-1d8c-4a6e-8f10-93f4be3e2a47"
    for number, request_id in enumerate((true, *TEXTS, "req-\n", "req-" + "a" * 100, 7, [])):
        wire = true_report().to_wire() | {"errors": {"slow_driver": f"attempt {number}"}}
        answer = signed.ask(conf, "report", {"report": wire}, request_id=request_id)
        assert "failed" not in answer
        with db.writer() as session:
            found = session.scalars(sa.select(models.Work.request_id)).all()
            db.delete(session, models.Work)
        assert (found == [request_id]) is (request_id == true)
