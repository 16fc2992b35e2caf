# SPDX-License-Identifier: Apache-2.0
"""Host steps: a driver prepares or cleans one attach handle, one step of a handle at a time."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from oslo_context import context as oslo_context

from cyborg import metrics, rpc
from cyborg.drivers import base

LOG = logging.getLogger(__name__)


class Endpoint:
    """Runs the steps that conductors ask for.

    A conductor that got no answer asks again. So a step that is already wanted is joined, not
    repeated, and a different step of the same handle waits for the one before it. A message that
    was held up while newer ones arrived is refused: it could undo what they have done. So is one
    for the agent that was here before, whose newer ones are not known any more; what is still
    wanted is asked for again when a conductor has the first report of this one.
    """

    def __init__(self, drivers: Mapping[str, base.Driver], started: int) -> None:
        self._drivers = drivers
        self._started = started
        self._lock = threading.Lock()
        self._latest: dict[str, _Run] = {}
        self._newest_ms: dict[str, int] = {}

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> None:
        """Carry out a step, or join it, and wait at most ``wait`` seconds for its end.

        :raises HostStepFailed: the driver refused, or there is no such driver, ability or step
        :raises HostStepRunning: the step goes on
        """
        del context
        try:
            asked = rpc.HostStep.from_wire(step)
            handle = asked.handle()
        except (KeyError, TypeError, ValueError) as exc:
            raise rpc.HostStepFailed(f"This is no host step: {exc!r}") from exc
        if asked.agent_started < self._started:
            raise rpc.HostStepRunning("The agent has started again since; it reports first")
        method = self._ability(asked)
        run = self._join_or_start(asked, lambda: method(handle))
        if not run.done.wait(wait):
            raise rpc.HostStepRunning(
                f"Driver {asked.driver} has not finished to {asked.action} the handle"
            )
        if run.failure is not None:
            raise rpc.HostStepFailed(run.failure)

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        """Load a bitstream into a deployable.

        :raises ProgramFailed: it is not loaded
        """
        del context, wait
        sentence = f"Driver {step.get('driver')} cannot program a deployable"
        raise rpc.ProgramFailed(sentence, written=False)

    def _ability(self, step: rpc.HostStep) -> Callable[[base.HeldHandle], None]:
        driver = self._drivers.get(step.driver)
        if driver is None:
            raise rpc.HostStepFailed(f"Driver {step.driver} is not loaded on this host")
        if step.action == "prepare" and isinstance(driver, base.Preparable):
            return driver.prepare
        if step.action == "clean" and isinstance(driver, base.Cleanable):
            return driver.clean
        raise rpc.HostStepFailed(f"Driver {step.driver} cannot {step.action} a handle")

    def _join_or_start(self, step: rpc.HostStep, work: Callable[[], None]) -> _Run:
        key = step.attach_handle_uuid
        with self._lock:
            if step.asked_ms < self._newest_ms.get(key, step.asked_ms):
                raise rpc.HostStepRunning("Another step of the handle was asked for meanwhile")
            self._newest_ms[key] = step.asked_ms
            latest = self._latest.get(key)
            if latest is not None and latest.joins(step):
                return latest
            run = self._latest[key] = _Run(step, work, after=latest, forget=self._forget)
        run.start()
        return run

    def _forget(self, run: _Run) -> None:
        with self._lock:
            if self._latest.get(run.step.attach_handle_uuid) is run:
                del self._latest[run.step.attach_handle_uuid]


class _Run:
    """One run of a step in a daemon thread; the driver may take as long as it likes."""

    def __init__(
        self,
        step: rpc.HostStep,
        work: Callable[[], None],
        *,
        after: _Run | None,
        forget: Callable[[_Run], None],
    ) -> None:
        self.step = step
        self.done = threading.Event()
        self.failure: str | None = "The driver ended without an answer"
        self._work = work
        self._after = after
        self._forget = forget
        self._context = oslo_context.get_current()

    def joins(self, step: rpc.HostStep) -> bool:
        """Whether the step, which was asked for later, is what this run does."""
        return not self.done.is_set() and self.step == dataclasses.replace(
            step, asked_ms=self.step.asked_ms, agent_started=self.step.agent_started
        )

    def start(self) -> None:
        """Begin, after the run before it has ended."""
        threading.Thread(
            target=self._run, name=f"host-step-{self.step.action}", daemon=True
        ).start()

    def _run(self) -> None:
        if self._context is not None:
            self._context.update_store()
        if self._after is not None:
            self._after.done.wait()
            self._after = None
        LOG.info("%s handle %s", self.step.action.capitalize(), self.step.attach_handle_uuid)
        labels = {"driver": self.step.driver, "action": self.step.action, "outcome": "failed"}
        try:
            with metrics.observed(metrics.DRIVER_STEP_SECONDS, **labels) as seen:
                self._work()
                seen["outcome"] = "done"
            self.failure = None
        except Exception as exc:
            LOG.exception("Cannot %s %s", self.step.action, self.step.attach_handle_uuid)
            self.failure = f"{type(exc).__name__}: {exc}"
        finally:
            self._forget(self)
            self.done.set()
