# SPDX-License-Identifier: Apache-2.0
"""The kernel's own events, in a network namespace of the test's own, make the agent look again."""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import multiprocessing
import os
import pathlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyborg.agent import hotplug
from cyborg.tests import watched_agent
from cyborg.tests.simulated import preload, uevents

PATIENCE = 60
_CLONE_NEWNET = 0x40000000


@pytest.fixture(scope="module")
def kernel() -> Iterator[Callable[..., Any]]:
    """Call a function where nobody else hears the events that it makes up."""
    if os.geteuid() != 0:
        preload.missing("only root may make up events of the kernel")
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=spawn, initializer=leave_the_network
    ) as child:
        yield lambda function: child.submit(function).result(2 * PATIENCE)


def leave_the_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def event(number: int = 0, subsystem: str = "pci") -> None:
    path = f"/devices/made-up/{number}"
    uevents.to_namespace({"ACTION": "add", "DEVPATH": path, "SUBSYSTEM": subsystem})


class Looks:
    """Counts the looks of a watcher that runs for the length of the block."""

    def __init__(self) -> None:
        self.times: queue.Queue[float] = queue.Queue()
        self.watcher = hotplug.EventWatcher(lambda: self.times.put(time.monotonic()))

    def __enter__(self) -> Looks:
        self.watcher.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.watcher.stop()

    def wait(self) -> float:
        return self.times.get(timeout=PATIENCE)


def one_event() -> None:
    with Looks() as looks:
        event()
        looks.wait()
        event(subsystem="mdev")
        looks.wait()


def many_events() -> None:
    """Many make few looks, and the last one is not missed."""
    with Looks() as looks:
        begin = time.monotonic()
        for number in range(999):
            event(number)
        # There is a look after this, since one event is left.
        sent = time.monotonic()
        event(999)
        while (last := looks.wait()) < sent:
            pass
        assert looks.times.qsize() + 1 <= (last - begin) / hotplug.DELAY + 1


def endless_events() -> None:
    """A storm does not put the look off."""
    with Looks() as looks:
        stop = threading.Event()

        def storm() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                event(number)

        thread = threading.Thread(target=storm)
        thread.start()
        for _ in range(3):
            looks.wait()
        stop.set()
        thread.join()


def foreign_events() -> None:
    """No accelerator's events make no look."""
    with Looks() as looks:
        event(subsystem="net")
        event(subsystem="block")
        time.sleep(3 * hotplug.DELAY)
        begin = time.monotonic()
        event()
        assert looks.wait() >= begin


def broken_monitor() -> None:
    """A monitor that fails is made anew, and nothing is lost."""
    with Looks() as looks:
        monitor = looks.watcher._monitor
        assert monitor is not None
        with pathlib.Path(os.devnull).open() as other:
            os.dup2(other.fileno(), monitor.fileno())
        # The first look is for what nobody heard meanwhile.
        event()
        looks.wait()
        event()
        looks.wait()


@pytest.mark.parametrize(
    "look", [one_event, many_events, endless_events, foreign_events, broken_monitor]
)
def test_events_make_looks(kernel, look):
    kernel(look)


def test_a_card_that_comes_or_goes_is_reported_long_before_the_next_pass(simulate_live, tmp_path):
    host = simulate_live({"cards": ["t4", "qat-4xxx"]})
    options = '[pci]\ndevice_spec = {"vendor_id": "10de"}\n'
    with watched_agent.reports(host, tmp_path, options) as reports:
        assert next(reports) == [f"host-1_{host.card('t4')}"]

        # Of what happens a first report may have one half.
        host.change("pull", host.card("t4"))
        assert any(names == [] for names in reports)
        host.change("add", "t4")
        assert any(len(names) == 1 for names in reports)
