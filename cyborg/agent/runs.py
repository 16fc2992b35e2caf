# SPDX-License-Identifier: Apache-2.0
"""Runs of host steps in threads of their own, and what must not be touched by two at once."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from oslo_context import context as oslo_context

from cyborg import errors, metrics, rpc
from cyborg.drivers import base

LOG = logging.getLogger(__name__)

#: Places whose steps are remembered.
MOST_PLACES = 10_000


def place_of(handle: base.AttachHandle) -> str:
    """The name of an attach handle among places."""
    return base.canonical_json([handle.attach_type, dict(handle.attach_info)])


def place_of_device(path: base.ControlPath) -> str:
    """The name of a device among places."""
    return base.canonical_json([path.cpid_type, None, dict(path.cpid_info)])


class Places:
    """What is being worked at, each by one run at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[str] = set()

    @contextlib.contextmanager
    def held(self, places: Iterable[str]) -> Iterator[None]:
        """Wait until nobody has any of the places, and have all of them."""
        wanted = set(places)
        with self._changed:
            self._changed.wait_for(lambda: not wanted & self._held)
            self._held |= wanted
        try:
            yield
        finally:
            with self._changed:
                self._held -= wanted
                self._changed.notify_all()


class Newest:
    """When the newest step of each place was asked for.

    Of the places of which that is longest ago only the latest of those times is kept.
    """

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._forgotten_ms = 0

    def outdates(self, places: Iterable[str], asked_ms: int) -> bool:
        """Whether a newer step of any of the places was asked for, or may have been."""
        return any(asked_ms < self._asked.get(place, self._forgotten_ms) for place in places)

    def note(self, places: Iterable[str], asked_ms: int) -> None:
        """Note that nothing newer was asked for."""
        self._asked |= dict.fromkeys(places, asked_ms)
        if len(self._asked) > MOST_PLACES:
            by_age = sorted(self._asked.items(), key=lambda item: item[1])
            old, kept = by_age[: -MOST_PLACES // 2], by_age[-MOST_PLACES // 2 :]
            self._asked, self._forgotten_ms = dict(kept), old[-1][1]


class Run:
    """One run of a step in a daemon thread; the driver may take as long as it likes.

    ``answer`` is what ``work`` returned. ``failed`` makes the error of what it raised.
    """

    def __init__(
        self,
        step: rpc.HostStep | rpc.ProgramStep,
        work: Callable[[], Any],
        *,
        key: str,
        action: str,
        failed: Callable[[str], errors.CyborgError],
    ) -> None:
        self.step = step
        self.key = key
        self.answer: Any = None
        self._action = action
        self.done = threading.Event()
        self._failure: errors.CyborgError | None = failed("The driver ended without an answer")
        self._failed = failed
        self._work = work
        self._context = oslo_context.get_current()

    def joins(self, other: Run) -> bool:
        """Whether the other run, which was asked for later, is what this one does."""
        return not self.done.is_set() and self.step == dataclasses.replace(
            other.step, asked_ms=self.step.asked_ms, agent_started=self.step.agent_started
        )

    def start(self, *, after: Run | None, forget: Callable[[Run], None]) -> None:
        """Begin, when the run ``after`` which this one comes has ended."""
        threading.Thread(
            target=self._run, args=(after, forget), name=f"host-step-{self._action}", daemon=True
        ).start()

    def wait(self, seconds: float, running: str) -> None:
        """Return when the run has ended well.

        :raises HostStepRunning: it has not ended in time; the sentence is ``running``. Or it has
            ended, and should be asked for again
        :raises HostStepFailed: it has failed
        """
        if not self.done.wait(seconds):
            raise rpc.HostStepRunning(running)
        if self._failure is not None:
            raise self._failure

    def _run(self, after: Run | None, forget: Callable[[Run], None]) -> None:
        if self._context is not None:
            self._context.update_store()
        if after is not None:
            after.done.wait()
            del after
        LOG.info("%s %s", self._action.capitalize(), self.key)
        labels = {"driver": self.step.driver, "action": self._action, "outcome": "failed"}
        try:
            with metrics.observed(metrics.DRIVER_STEP_SECONDS, **labels) as seen:
                self.answer = self._work()
                seen["outcome"] = "done"
            self._failure = None
        except (rpc.HostStepFailed, rpc.HostStepRunning) as exc:
            LOG.warning("Cannot %s %s: %s", self._action, self.key, exc)
            self._failure = exc
        except Exception as exc:
            LOG.exception("Cannot %s %s", self._action, self.key)
            self._failure = self._failed(f"{type(exc).__name__}: {exc}")
        finally:
            forget(self)
            self.done.set()
