# SPDX-License-Identifier: Apache-2.0
"""``cyborg-ironic`` against a real Ironic, and what Cyborg's API shows then."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bare_metal
from bare_metal import Ironic

_BIN = Path(sys.executable).parent
_SECONDS = 120
_FACTS = ("hostname", "address", "type", "vendor", "managed_by")


@pytest.fixture
def ironic(tmp_path: Path) -> Iterator[Ironic]:
    """A running Ironic."""
    folder = tmp_path / "ironic"
    folder.mkdir()
    running = Ironic(folder, _free_port())
    try:
        running.start()
        yield running
    finally:
        running.stop()


class Cyborg:
    """Cyborg's commands and its API on SQLite, without users."""

    def __init__(self, folder: Path, ironic_url: str) -> None:
        self._port = _free_port()
        self._conf = folder / "cyborg.conf"
        self._conf.write_text(
            f"[DEFAULT]\nstate_path = {folder}\ntransport_url = fake://\n"
            f"[api]\nport = {self._port}\nauth_strategy = noauth\n"
            f"[database]\nconnection = sqlite:///{folder}/cyborg.sqlite\n"
            f"[ironic]\nauth_type = none\nendpoint_override = {ironic_url}\n"
        )
        self.run("cyborg-dbsync", "upgrade")
        command = [_BIN / "cyborg-api", "--config-file", str(self._conf)]
        self._api = subprocess.Popen(command)
        bare_metal.wait_for(self._answers)

    def stop(self) -> None:
        """End the API."""
        self._api.kill()
        self._api.wait()

    def run(self, command: str, *arguments: str) -> str:
        """What a command that must succeed prints."""
        done = subprocess.run(
            [_BIN / command, "--config-file", str(self._conf), *arguments],
            stdout=subprocess.PIPE,
            timeout=_SECONDS,
            check=True,
            text=True,
        )
        return done.stdout

    def devices(self) -> list[tuple[Any, ...]]:
        """Facts about every device that the API shows."""
        return [tuple(each[name] for name in _FACTS) for each in self.get("/devices")["devices"]]

    def get(self, path: str) -> Any:
        """The answer of the API."""
        headers = {"OpenStack-API-Version": "accelerator 2.4"}
        url = f"http://127.0.0.1:{self._port}/v2{path}"
        answer = requests.get(url, headers=headers, timeout=_SECONDS)
        assert answer.ok, answer.text
        return answer.json()

    def _answers(self) -> bool:
        assert self._api.poll() is None
        try:
            return requests.get(f"http://127.0.0.1:{self._port}/", timeout=_SECONDS).ok
        except requests.ConnectionError:
            return False


@pytest.fixture
def cyborg(tmp_path: Path, ironic: Ironic) -> Iterator[Cyborg]:
    """A running Cyborg."""
    running = Cyborg(tmp_path, ironic.url)
    yield running
    running.stop()


def test_the_fleet_of_ironic_is_shown(ironic: Ironic, cyborg: Cyborg, tmp_path: Path) -> None:
    full = ironic.enrol("bm-full")
    ironic.inspect(full, bare_metal.FULL)
    ironic.inspect(ironic.enrol("bm-none"), bare_metal.FULL[:1])
    ironic.enrol("bm-new")
    said = cyborg.run("cyborg-ironic", "import")
    assert re.search(r"\| bm-full +\| 4 +\| 4 ", said)
    assert cyborg.devices() == [
        ("bm-full", "0000:3b:00.0", "GPU", "10de", "ironic"),
        ("bm-full", "0000:5e:00.0", "FPGA", "10ee", "ironic"),
        ("bm-full", "0000:6b:00.0", "QAT", "8086", "ironic"),
        ("bm-full", "0000:af:00.0", "GPU", "10de", "ironic"),
    ]
    assert cyborg.get("/deployables")["deployables"] == cyborg.get("/services")["services"] == []
    # Another inspection, without the FPGA and the second GPU.
    uuids = [each["uuid"] for each in cyborg.get("/devices")["devices"]]
    ironic.inspect(full, [*bare_metal.FULL[:4], bare_metal.FULL[6]])
    cyborg.run("cyborg-ironic", "import", "--node", "bm-full")
    assert [each["uuid"] for each in cyborg.get("/devices")["devices"]] == [uuids[0], uuids[2]]
    # What the client of Ironic saves of a node can be read as well.
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(ironic.call("GET", f"/nodes/{full}/inventory")))
    given = ("--from-file", str(saved), "--node", full, "--hostname", "bm-full")
    assert re.search(r"\| bm-full +\| 2 +\| 0 ", cyborg.run("cyborg-ironic", "import", *given))
    ironic.call("DELETE", f"/nodes/{full}")
    assert "Ironic has no such node any more" in cyborg.run("cyborg-ironic", "import")
    assert cyborg.devices() == []


def test_what_the_collector_of_ironics_agent_sends_is_read(
    ironic: Ironic, cyborg: Cyborg
) -> None:
    found = bare_metal.of_this_machine()
    like = bare_metal.pci_device("0000:00:00.0", "8086:1237", "060000")
    assert all(each.keys() == like.keys() for each in found)
    ironic.inspect(ironic.enrol("bm-here"), found)
    said = cyborg.run("cyborg-ironic", "import")
    (row,) = (line for line in said.splitlines() if "bm-here" in line)
    assert "left out" not in row


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
