# SPDX-License-Identifier: Apache-2.0
"""Hosting: signals end a real process, and a loop goes on whatever its step does."""

from __future__ import annotations

import logging
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from oslo_config import cfg

from cyborg import process
from cyborg.common import errors

pytestmark = pytest.mark.slow

PATIENCE = 60

PROGRAM = """
import threading
from collections.abc import Callable
from cyborg import process

class Service:
    def __init__(self, name, stuck=False):
        self.name, self.stuck = name, stuck
    def start(self):
        print("start", self.name, flush=True)
    def stop(self):
        print("stop", self.name, flush=True)
        if self.stuck:
            threading.Event().wait()

class Ready:
    def start(self):
        print("ready", flush=True)
    def stop(self):
        pass

process.run([Service("one"), Service("two", stuck={stuck}), Ready()], grace={grace})
print("over", flush=True)
"""


def start(*, stuck: bool, grace: float) -> subprocess.Popen[str]:
    program = PROGRAM.format(stuck=stuck, grace=grace)
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(3)] == ["start one\n", "start two\n", "ready\n"]
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_services_the_last_one_first(number):
    child = start(stuck=False, grace=PATIENCE)

    child.send_signal(number)

    assert child.communicate(timeout=PATIENCE)[0] == "stop two\nstop one\nover\n"
    assert child.returncode == 0


def test_a_service_that_does_not_stop_does_not_keep_the_process():
    child = start(stuck=True, grace=3)

    child.send_signal(signal.SIGTERM)

    assert child.communicate(timeout=PATIENCE)[0] == "stop two\n"
    assert child.returncode == 1


def test_a_second_signal_ends_the_process_at_once():
    child = start(stuck=True, grace=PATIENCE)
    assert child.stdout is not None
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "stop two\n"

    child.send_signal(signal.SIGTERM)

    assert child.wait(PATIENCE) == -signal.SIGTERM


SIGNALLED = """
import signal, sys, threading, time
from cyborg import process

class Part:
    def start(self):
        threading.Thread(target=self.work, daemon=True).start()
    def work(self):
        # By then the main thread sleeps; the kernel could have chosen this thread by itself.
        time.sleep(1)
        signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))
        time.sleep(600)
    def stop(self):
        print("stopped", flush=True)

process.run([Part()])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_stops_the_process(number):
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


class Steps:
    """A step that counts its calls and returns or raises what it is given."""

    def __init__(self, *outcomes: float | Exception) -> None:
        self.outcomes = list(outcomes)
        self.enough = threading.Event()

    def __call__(self) -> float:
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.enough.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_a_loop_goes_on_after_a_fault(caplog):
    steps = Steps(0.0, OSError("first"), 0.0, 1000.0)
    loop = process.Loop("trial", steps, pause=0.01)

    loop.start()

    assert steps.enough.wait(PATIENCE)
    loop.stop()
    assert "trial met a fault and goes on" in caplog.text


def test_a_loop_that_waits_can_be_woken():
    steps = Steps(1000.0, 1000.0)
    loop = process.Loop("trial", steps)
    loop.start()

    while not steps.enough.wait(0.01):
        loop.wake()

    loop.stop()


def test_a_loop_that_is_stopped_makes_no_further_call():
    steps = Steps(1000.0, 1000.0)
    loop = process.Loop("trial", steps)
    loop.start()

    loop.stop(PATIENCE)

    assert len(steps.outcomes) >= 1
    assert "trial" not in {thread.name for thread in threading.enumerate()}


def logged(folder: pathlib.Path, say: Callable[[logging.Logger], None]) -> list[str]:
    """The lines of a service's log after something was said."""
    conf = cfg.ConfigOpts()
    process.register_log(conf)
    file = folder / "log"
    conf(["--log-file", str(file)], default_config_files=[], default_config_dirs=[])
    process.set_up_log(conf)
    say(logging.getLogger("cyborg.test"))
    return file.read_text().splitlines()


def fail(fault: Exception) -> None:
    raise fault


def test_a_line_says_an_exception_once(tmp_path: pathlib.Path) -> None:
    """oslo.log adds what is being handled to each warning, though most of ours say it."""

    def refuse(log: logging.Logger) -> None:
        try:
            fail(errors.Conflict("It is in use."))
        except errors.Conflict as exc:
            log.warning("Cannot do that: %s", exc)
            log.warning("Cannot do that either.")

    first, second = logged(tmp_path, refuse)
    assert first.endswith("Cannot do that: It is in use.")
    # What is said nowhere else is added.
    assert second.endswith("Cannot do that either.: cyborg.common.errors.Conflict: It is in use.")


def test_what_is_said_is_no_line_of_its_own(tmp_path: pathlib.Path) -> None:
    forged = "x\n2026-01-01 ERROR cyborg [-] forged\r\x1b[2J\u2028\ud800"
    lines = logged(tmp_path, lambda log: log.warning("Somebody says %s", forged))
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_a_traceback_keeps_its_lines(tmp_path: pathlib.Path) -> None:
    def say(log: logging.Logger) -> None:
        try:
            fail(OSError("first\nforged\r"))
        except OSError:
            log.exception("It failed")

    first, *others = logged(tmp_path, say)
    assert "It failed" in first
    assert len(others) > 3
    # Each says whose it is.
    assert all("ERROR cyborg.test" in line and line.isprintable() for line in others)
