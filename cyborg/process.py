# SPDX-License-Identifier: Apache-2.0
"""Hosting a service in a process: options, signals, repeating threads, a bounded stop."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as cyborg_conf
from cyborg import version

LOG = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RELOAD_SIGNAL = signal.SIGHUP
#: Seconds after which a thread that waits for signals looks whether there is one.
_LONGEST_SLEEP = 1.0


def configure(conf: cfg.ConfigOpts, arguments: Sequence[str]) -> None:
    """Read a service's options from its command line and the files it names, and open its log."""
    read_options(conf, arguments)
    open_log(conf)


def read_options(conf: cfg.ConfigOpts, arguments: Sequence[str]) -> None:
    """Read options from a command line and the files it names."""
    _register(conf)
    conf(list(arguments), project="cyborg", version=version.VERSION)


def open_log(conf: cfg.ConfigOpts) -> None:
    """Log where the options say, and first of all what they say in vain."""
    log.setup(conf, "cyborg")
    tell_what_means_nothing(conf)


def _register(conf: cfg.ConfigOpts) -> None:
    cyborg_conf.register(conf)
    log.register_options(conf)


def tell_what_means_nothing(conf: cfg.ConfigOpts) -> None:
    """Log each option that is set and has no meaning any more."""
    for sentence in cyborg_conf.meaningless(conf):
        LOG.warning("%s", sentence)


class Service(Protocol):
    """A part of a process. Both methods return soon; ``stop`` follows every ``start``."""

    def start(self) -> None:
        """Begin to work, in threads of its own."""

    def stop(self) -> None:
        """Begin nothing new, and finish or give back what is under way."""


def run(
    services: Sequence[Service], *, conf: cfg.ConfigOpts | None = None, grace: float = 30.0
) -> None:
    """Run services until SIGTERM or SIGINT, then stop them, the last one first.

    SIGHUP has the options of ``conf`` read again that can change while a process runs. A second
    signal to stop, or ``grace`` seconds, ends the process as it stands: everything that matters
    is in the database.
    """
    # Putting into this queue is the one way to wake a thread that is safe in a signal handler.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (*STOP_SIGNALS, RELOAD_SIGNAL):
        signal.signal(number, lambda received, _frame: signals.put(received))
    started: list[Service] = []
    try:
        for service in services:
            service.start()
            started.append(service)
        while (received := _next(signals)) == RELOAD_SIGNAL:
            if conf is not None:
                _read_again(conf)
        LOG.info("Stopping on %s", signal.Signals(received).name)
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _leave_after(grace)
        for service in reversed(started):
            service.stop()


def _next(signals: queue.SimpleQueue[int]) -> int:
    """Wait for a signal.

    One that comes just before this thread falls asleep, or in another thread, does not wake it.
    """
    while True:
        with contextlib.suppress(queue.Empty):
            return signals.get(timeout=_LONGEST_SLEEP)


def _read_again(conf: cfg.ConfigOpts) -> None:
    """Take over what changed in the configuration files, or nothing where they are wrong."""
    try:
        _check_files(conf)
        conf.mutate_config_files()
    except cfg.Error as exc:
        LOG.error("The configuration stays as it is, for it cannot be read again: %s", exc)  # noqa: TRY400
    except Exception:
        LOG.exception("The configuration was read again, but not all of it is followed")
    else:
        LOG.info("The configuration was read again")


def _check_files(conf: cfg.ConfigOpts) -> None:
    """Read every option from the files: oslo.config would take over a value of a wrong kind.

    :raises cfg.Error: something in them is wrong
    """
    trial = cfg.ConfigOpts()
    _register(trial)
    trial(args=[], default_config_files=conf.config_file, default_config_dirs=conf.config_dir)
    for group in trial.values():
        if isinstance(group, cfg.ConfigOpts.GroupAttr):
            dict(group)


def _leave_after(grace: float) -> None:
    """See to it that the process ends: libraries join their threads at exit without a limit."""

    def leave() -> None:
        LOG.warning("Not everything has stopped in %s seconds; leaving all the same", grace)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(1)

    timer = threading.Timer(grace, leave)
    timer.daemon = True
    timer.start()


class Loop:
    """A thread that calls ``step`` again and again.

    ``step`` returns the seconds to wait before the next call; :meth:`wake` ends the wait. What it
    raises is logged, and it is called again after ``pause`` seconds.
    """

    def __init__(self, name: str, step: Callable[[], float], *, pause: float = 1.0) -> None:
        self._step = step
        self._pause = pause
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Make the first call now."""
        self._thread.start()

    def wake(self) -> None:
        """Make the next call now."""
        self._woken.set()

    def stop(self, grace: float = 5.0) -> None:
        """Make no further call, and wait for the one under way for ``grace`` seconds at most."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(grace)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the call: who wakes us during it means one more.
            self._woken.clear()
            try:
                delay = self._step()
            except Exception:
                LOG.exception("%s met a fault and goes on", self._thread.name)
                delay = self._pause
            if not self._stopping.is_set():
                self._woken.wait(delay)
