# SPDX-License-Identifier: Apache-2.0
"""A state directory with the cyborg-standalone processes that serve it, one after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, TypeVar

import requests

from cyborg.cmd import standalone
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import cuts
from cyborg.tests.ports import free_port

HOST = "host-1"
RP = provider_uuid(f"{HOST}_FakeDevice")
PROFILE = "dp"
#: Seconds for anything to happen; it takes fractions of one, and 30 where much else runs.
TIMEOUT = 180.0

T = TypeVar("T")


def forks() -> ForkServerContext:
    """Starts processes as forks of one that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([cuts.__name__, "placement.deploy", "pytest"])
    return context


def wait_for(what: str, condition: Callable[[], T]) -> T:
    """Ask until the answer is true."""
    deadline = time.monotonic() + TIMEOUT
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not in {TIMEOUT} seconds"
        time.sleep(0.02)
    return result


class Site:
    """A state directory. Its processes listen on one port and read one configuration."""

    def __init__(self, state: pathlib.Path, config: str = "") -> None:
        self._state = state
        state.mkdir(exist_ok=True)
        self._config = state / "cyborg.conf"
        self._config.write_text(config)
        self._port = free_port()
        self._processes: list[ForkServerProcess] = []
        self.url = f"http://127.0.0.1:{self._port}"
        self.database_url = f"sqlite:///{state / standalone.DATABASE}"
        #: What the processes wrote down of the points they reached.
        self.journal = state / "journal"

    @property
    def process(self) -> ForkServerProcess:
        """The last process."""
        return self._processes[-1]

    @contextlib.contextmanager
    def serve(self, kill_at: int = 0) -> Iterator[None]:
        """Serve for the length of the block, or until the process kills itself at that point."""
        output = self._state / f"output-{len(self._processes)}"
        arguments = (self.arguments, output, self.journal, kill_at)
        process = forks().Process(target=cuts.main, args=arguments)
        self._processes.append(process)
        process.start()
        try:
            wait_for("the start", lambda: self._is_ready(output))
            yield
        finally:
            process.kill()
            process.join()

    @property
    def arguments(self) -> Sequence[str]:
        """The command line of a process."""
        state = ["--state-dir", str(self._state), "--config-file", str(self._config)]
        return ["--port", str(self._port), "--host", HOST, *state]

    def _is_ready(self, output: pathlib.Path) -> bool:
        text = output.read_text() if output.exists() else ""
        assert self.process.is_alive(), text
        return "Cyborg is ready" in text

    def stop(self) -> int | None:
        """Ask the process to end, and return its exit status."""
        self.process.terminate()
        self.process.join(TIMEOUT)
        return self.process.exitcode

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Send a request, to Placement where the path says so; the decoded answer."""
        headers |= {"X-Auth-Token": "admin"}
        answer = requests.request(
            method, self.url + path, json=body, headers=headers, timeout=TIMEOUT
        )
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def arqs(self, instance: str | None = None) -> list[dict[str, Any]]:
        """The requests of an instance, or all."""
        query = f"?instance={instance}" if instance else ""
        found: list[dict[str, Any]] = self.ask("GET", f"/v2/accelerator_requests{query}")["arqs"]
        return found

    def is_at_rest(self) -> bool:
        """Whether nothing is left to be done."""
        with contextlib.closing(sqlite3.connect(self._state / standalone.DATABASE)) as connection:
            # What is looked at in ten minutes is no work that is left.
            query = "SELECT count(*) FROM work WHERE kind != 'late-claim'"
            return connection.execute(query).fetchone() == (0,)

    def prepare(self) -> None:
        """Make the profile, and see the fake device offered."""
        groups = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]
        self.ask("POST", "/v2/device_profiles", [{"name": PROFILE, "groups": groups}])
        wait_for("the device", lambda: self.ask("GET", "/v2/devices")["devices"])
        wait_for("Placement", self.is_at_rest)


class Instance:
    """An instance with two new accelerator requests."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.uuid = str(uuid.uuid4())
        body = {"device_profile_name": PROFILE}
        made = site.ask("POST", "/v2/accelerator_requests", body)["arqs"]
        self.arqs = [arq["uuid"] for arq in made]
        #: Whether a PATCH was answered.
        self.answered = False

    def bind(self, **headers: str) -> None:
        """Ask for all to be bound; no answer comes where the process dies first."""
        values = {"hostname": HOST, "device_rp_uuid": RP, "instance_uuid": self.uuid}
        patch = [{"op": "add", "path": f"/{key}", "value": value} for key, value in values.items()]
        with contextlib.suppress(requests.ConnectionError):
            body = dict.fromkeys(self.arqs, patch)
            self._site.ask("PATCH", "/v2/accelerator_requests", body, **headers)
            self.answered = True

    def states(self) -> set[str]:
        """The states of the requests that were recorded as the instance's."""
        return {arq["state"] for arq in self._site.arqs(self.uuid)}
