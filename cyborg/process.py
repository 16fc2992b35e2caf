# SPDX-License-Identifier: Apache-2.0
"""Run a service in a process: options, signals, repeating threads, a stop in bounded time."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import logging
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import sdnotify
from oslo_config import cfg
from oslo_log import formatters, log

from cyborg import conf as cyborg_conf
from cyborg.common import errors, needs, version
from cyborg.conf import command_help

LOG = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RELOAD_SIGNAL = signal.SIGHUP
#: New objects after which the garbage collector looks for some to free; the default is 700.
_GARBAGE_THRESHOLD = 20_000
#: Seconds after which the thread that waits for signals checks for one.
_LONGEST_SLEEP = 1.0


@contextlib.contextmanager
def one_sentence(name: str, status: int = 1) -> Iterator[None]:
    """End the process with a status and a sentence if an operator has to mend its configuration."""
    try:
        yield
    except (errors.Misconfigured, cfg.Error, log.LogConfigError, ImportError, OSError) as exc:
        print(f"{name}: {exc}", file=sys.stderr)  # noqa: T201 - there may be no log
        raise SystemExit(status) from None


def configure(conf: cfg.ConfigOpts, arguments: Sequence[str], description: str = "") -> None:
    """Read a service's options from its command line and files, and open its log."""
    read_options(conf, arguments, description)
    open_log(conf)


def read_options(conf: cfg.ConfigOpts, arguments: Sequence[str], description: str = "") -> None:
    """Read options from a command line and the files that it names; ``description`` is its help."""
    _register(conf)
    conf(
        list(arguments), project="cyborg", version=version.VERSION, description=description or None
    )


def log_beside_output(conf: cfg.ConfigOpts) -> None:
    """Open the log; on standard error if no file is named, as standard output is for results."""
    if not (conf.log_file or conf.log_dir):
        conf.set_default("use_stderr", True)
    set_up_log(conf)


def open_log(conf: cfg.ConfigOpts) -> None:
    """Open the log that the options name, and warn about options without a meaning."""
    set_up_log(conf)
    warn_about_meaningless(conf)


def set_up_log(conf: cfg.ConfigOpts) -> None:
    """Open the log that the options name."""
    needs.check(conf)
    log.setup(conf, "cyborg")
    for handler in logging.getLogger().handlers:
        old = handler.formatter
        # Not a subclass, nor that of JSON, which has a field of its own for it.
        if type(old) is formatters.ContextFormatter:
            handler.setFormatter(
                _SaysOnce(
                    project=old.project, version=old.version, config=old.conf, datefmt=old.datefmt
                )
            )


#: What no line may have, and no part of several.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class _SaysOnce(formatters.ContextFormatter):
    """Does not add an exception to a line that says it already.

    oslo.log adds the exception that is being handled to each warning and error, whether or not it
    is given to the logger. Nor is what others say ever a line of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        head = copy.copy(record)
        head.exc_info = head.exc_text = None
        said = [self._head(head)]
        if record.exc_info:
            # Each line of it begins with the name of the logger.
            said += self.formatException(record.exc_info, record=head).split("\n")
        return "\n".join(_CONTROL.sub(_escaped, each) for each in said)

    def _head(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        added = getattr(record, "error_summary", "")
        said = added.partition(": ")[2]
        if not said or said not in record.getMessage():
            return line
        return line.removesuffix(f": {added}")


def register_log(conf: cfg.ConfigOpts) -> None:
    """Register the options of the log, with defaults that let a quiet system be quiet.

    ``--help`` shows them last.
    """
    quiet = ("alembic=WARN", "placement.requestlog=WARN")
    log.set_defaults(default_log_levels=[*log.get_default_log_levels(), *quiet])
    log.register_options(conf)
    command_help.register(conf)


def _register(conf: cfg.ConfigOpts) -> None:
    cyborg_conf.register(conf)
    register_log(conf)


def warn_about_meaningless(conf: cfg.ConfigOpts) -> None:
    """Log each option that is set but has no meaning any more, and each file that is not read."""
    for sentence in (*cyborg_conf.meaningless(conf), *cyborg_conf.passed_over(conf)):
        LOG.warning("%s", sentence)


class Service(Protocol):
    """A part of a process. Both methods return soon; ``stop`` follows every ``start``."""

    def start(self) -> None:
        """Begin to work in own threads."""

    def stop(self) -> None:
        """Begin nothing new, and finish or hand back the current work."""


def collect_less_garbage() -> None:
    """Let the garbage collector look seldom, and never at what has been loaded so far.

    Call it when everything is loaded; before a fork, so that processes share those pages. A list
    of a thousand rows makes more objects than the default threshold, so each one would be walked
    through several times with all modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD, 10, 10)


def free_memory() -> None:
    """Give back the memory that a large piece of work has left; that takes some milliseconds.

    Rows that were loaded refer to each other, so that they are garbage which is found seldom, see
    above; and glibc keeps what is freed between other memory. The next such work would take as
    much again, and the process keep that.
    """
    # Not the oldest generation: it is large, and garbage of just now is not in it.
    gc.collect(1)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def run(
    services: Sequence[Service], *, conf: cfg.ConfigOpts | None = None, grace: float = 30.0
) -> None:
    """Run services until SIGTERM or SIGINT, then stop them, the last one first.

    On SIGHUP, the options of ``conf`` that can change at run time are read again. A second signal
    to stop, or ``grace`` seconds, ends the process at once: all that matters is in the database.
    If systemd has started the process, it is told when the services have started and when they
    stop, and meanwhile about every second that the process is alive (see sd_notify(3)).
    """
    manager = sdnotify.SystemdNotifier()
    # A SimpleQueue is the only means to wake a thread that is safe in a signal handler.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (*STOP_SIGNALS, RELOAD_SIGNAL):
        signal.signal(number, lambda received, _frame: signals.put(received))
    started: list[Service] = []
    collect_less_garbage()
    try:
        for service in services:
            service.start()
            started.append(service)
        manager.notify("READY=1")
        while (received := _next(signals, manager)) == RELOAD_SIGNAL:
            if conf is not None:
                _read_again(conf)
        LOG.info("Stopping on %s", signal.Signals(received).name)
    finally:
        manager.notify("STOPPING=1")
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _leave_after(grace)
        for service in reversed(started):
            service.stop()


def _next(signals: queue.SimpleQueue[int], manager: sdnotify.SystemdNotifier) -> int:
    """Wait for a signal, and meanwhile keep the watchdog of systemd quiet.

    A signal just before this thread sleeps, or in another thread, does not wake it: so poll.
    """
    while True:
        manager.notify("WATCHDOG=1")
        with contextlib.suppress(queue.Empty):
            return signals.get(timeout=_LONGEST_SLEEP)


def _read_again(conf: cfg.ConfigOpts) -> None:
    """Apply what has changed in the configuration files, or nothing if they have an error."""
    try:
        _check_files(conf)
        # Twice: while files are read, other threads put old values into oslo.config's cache, which
        # would stay there. The second time they find the new ones.
        conf.mutate_config_files()
        conf.mutate_config_files()
    except cfg.Error as exc:
        LOG.error("The configuration stays as it is because it cannot be read again: %s", exc)  # noqa: TRY400
    except Exception:
        LOG.exception("The configuration was read again, but not all of it was applied")
    else:
        LOG.info("The configuration was read again")


def _check_files(conf: cfg.ConfigOpts) -> None:
    """Read every option from the files: oslo.config itself would apply an invalid value.

    :raises cfg.Error: a file or a value is invalid
    """
    trial = cfg.ConfigOpts()
    _register(trial)
    trial(args=[], default_config_files=conf.config_file, default_config_dirs=conf.config_dir)
    for group in trial.values():
        if isinstance(group, cfg.ConfigOpts.GroupAttr):
            dict(group)


def _leave_after(grace: float) -> None:
    """End the process after ``grace`` seconds: libraries join their threads without a limit."""

    def leave() -> None:
        LOG.warning("Not everything has stopped after %s seconds; exiting anyway", grace)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(1)

    timer = threading.Timer(grace, leave)
    timer.daemon = True
    timer.start()


class Loop:
    """A thread that calls ``step`` again and again.

    ``step`` returns the seconds to wait before the next call; :meth:`wake` ends the wait. If it
    raises, the exception is logged, unless the log has it already, and the next call follows
    after ``pause`` seconds.
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
        """Make no further call, and wait up to ``grace`` seconds for the current one."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(grace)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the call: a wake-up during the call asks for another one.
            self._woken.clear()
            try:
                delay = self._step()
            except errors.DatabaseUnreachable:
                LOG.debug("%s goes on without the database", self._thread.name)
                delay = self._pause
            except Exception:
                LOG.exception("%s met a fault and goes on", self._thread.name)
                delay = self._pause
            if not self._stopping.is_set():
                self._woken.wait(delay)
