# SPDX-License-Identifier: Apache-2.0
"""Orders that have ended by the time when their host could begin, or that nobody can stop then.

Real Glance, real Placement, the API, a conductor and an agent, which was away for a while.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from cyborg import db, rpc
from cyborg.agent import service as agent_service
from cyborg.db import models
from cyborg.tests.fpga import Card
from cyborg.tests.service import NAME, PATIENCE, until

AES, ZIP = "aes-128", "zip-9"


class Host:
    """The site's host, whose agent reports only when it is told to."""

    def __init__(self, card: Card, folder: pathlib.Path) -> None:
        self.card = card
        self.site = card.site
        (self._agent,) = (
            each for each in self.site._services if isinstance(each, agent_service.Agent)
        )
        self._folder = folder

    def loaded(self) -> str:
        """What the hardware runs."""
        return (self._folder / f"{NAME}.function").read_text()

    @db.retry
    def go_down(self) -> None:
        """Be silent for so long that a conductor takes notice."""
        with db.writer() as session:
            db.update(session, models.Host, down=True)

    def remove_record(self) -> None:
        """Have the host's record removed by force, and wait until all is done about that."""
        self.go_down()
        operation = self.card.operation()["uuid"]
        listed = self.site.call("GET", "/services?binary=cyborg-agent", version="2.4")
        (agent,) = listed["services"]
        path = f"/services/{agent['uuid']}?force=true"
        given_up = self.site.call("DELETE", path, version="2.4")["given_up"]
        (told,) = given_up["not_excluded"]
        assert told.startswith(f"Host host-1 may be writing deployable {NAME} for operation ")
        assert self.card.ended(operation)["state"] == "failed"
        self.site.hurry(self.site.idle)
        assert self.deployables() == []

    def deployables(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.site.call("GET", "/deployables")["deployables"]
        return listed

    def errors(self) -> dict[str, str]:
        """What the host's last report says of its drivers."""
        path = "/services?binary=cyborg-agent"
        (shown,) = self.site.call("GET", path, version="2.4")["services"]
        return dict(shown["driver_errors"])

    def report(self) -> None:
        """Let the agent look and report again, and wait until the conductor knows."""
        with db.reader() as session:
            before = session.query(models.Host.report_counter).scalar() or 0
        self._agent._look_now()

        def is_known() -> bool:
            with db.reader() as session:
                return (session.query(models.Host.report_counter).scalar() or 0) > before

        until(is_known)


@pytest.fixture
def host(start_card, conf, tmp_path) -> Host:
    """A host whose card runs AES."""
    for name in ("discovery_interval", "report_interval"):
        conf.set_override(name, 86400, group="agent")
    conf.set_override("step_timeout", 1, group="programming")
    card = start_card("dynamic")
    card.run(card.image(AES))
    return Host(card, tmp_path / "loaded")


def test_an_order_that_was_long_in_a_queue_is_not_obeyed(host, conf) -> None:
    held: list[rpc.ProgramStep] = []

    def hold(_conf: object, host: str, step: rpc.ProgramStep, _wait: float) -> None:
        held.append(step)
        raise rpc.HostUnreachable(f"the agent of host {host} does not answer")

    with pytest.MonkeyPatch.context() as broker:
        broker.setattr(rpc, "run_program", hold)
        host.card.program(image_uuid=host.card.image(ZIP))
        until(lambda: held)
        host.remove_record()
    # It reports again, as a host that nobody knows, and has a guest.
    host.report()
    host.card.uuid = until(host.deployables)[0]["uuid"]
    assert host.card.offered() > 0
    arq = host.card.bind(function_id=AES)
    host.card.bound(arq)

    with pytest.raises(rpc.ProgramFailed, match="has ended, or its deployable was removed") as told:
        rpc.run_program(conf, "host-1", held[0], PATIENCE)

    assert not told.value.written
    assert host.loaded() == AES
    assert host.card.state(arq) == "Bound"


def test_what_is_in_the_middle_of_a_write_is_not_new(host: Host) -> None:
    """It had leave to write, and nobody can stop it any more."""
    host.site.hang("program")
    host.card.program(image_uuid=host.card.image(ZIP))
    until(lambda: host.loaded() == "")
    host.remove_record()

    host.report()

    assert host.deployables() == []
    said = f"deployable {NAME} is left out: its device may be in the middle of a write"
    assert host.errors() == {"fake_driver": said}
    host.site.obey()
    host.card.uuid = until(host.deployables)[0]["uuid"]
    assert host.loaded() == ZIP
    assert host.card.runs()["function_id"] == ZIP
    until(lambda: host.errors() == {})
