# SPDX-License-Identifier: Apache-2.0
"""How long the watcher pauses while events cannot be received."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import pyudev

from cyborg import process
from cyborg.agent import hotplug


class Loop:
    """A loop that makes no step by itself."""

    def __init__(self, _name: str, step: Callable[[], float]) -> None:
        self.step = step

    def start(self) -> None:
        pass


class Monitor:
    """A monitor that fails at the first event."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)

    def filter_by(self, _subsystem: str) -> None:
        pass

    def start(self) -> None:
        pass

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self, _timeout: float) -> None:
        self._socket.close()
        raise OSError("the socket is broken")


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> hotplug.EventWatcher:
    monkeypatch.setattr(process, "Loop", Loop)
    return hotplug.EventWatcher(lambda: None)


def no_monitor(*_arguments: object, **_options: object) -> pyudev.Monitor:
    raise OSError("there is no netlink")


def test_each_pause_doubles_until_a_monitor_has_worked(monkeypatch, watcher):
    monkeypatch.setattr(pyudev.Monitor, "from_netlink", no_monitor)
    watcher.start()
    pauses = [watcher._loop.step() for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]

    monkeypatch.setattr(pyudev.Monitor, "from_netlink", lambda *_, **__: Monitor())
    assert watcher._loop.step() == 1
    monkeypatch.setattr(pyudev.Monitor, "from_netlink", no_monitor)
    assert [watcher._loop.step() for _ in range(2)] == [2, 4]
