# SPDX-License-Identifier: Apache-2.0
"""Host steps: what drivers do to attach handles and deployables, one step of each at a time."""

from __future__ import annotations

import logging
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_config import cfg

from cyborg import errors, rpc
from cyborg.agent import bitstreams, passes, runs
from cyborg.drivers import base, checks

LOG = logging.getLogger(__name__)


class Endpoint:
    """Runs the steps that conductors ask for.

    A conductor that got no answer asks again. So a step that is already wanted is joined, not
    repeated, and a different step of the same handle waits for the one before it. A message that
    was held up while newer ones arrived is refused: it could undo what they have done. So is one
    for the agent that was here before, whose newer ones are not known any more; what is still
    wanted is asked for again when a conductor has the first report of this one.

    A deployable is programmed while no step of its handles runs, nor is another one of its device.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        drivers: Mapping[str, base.Driver],
        started: int,
        counter: passes.Counter,
    ) -> None:
        self._drivers = drivers
        self._started = started
        self._counter = counter
        self._bitstreams = bitstreams.Cache(conf)
        self._places = runs.Places()
        self._lock = threading.Lock()
        self._latest: dict[str, runs.Run] = {}
        self._newest = runs.Newest()

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
        self._refuse_old(asked)
        method, place = self._ability(asked), runs.place_of(handle)

        def work() -> None:
            with self._places.held([place]):
                method(handle)

        run = self._join_or_start(
            runs.Run(
                asked,
                work,
                key=asked.attach_handle_uuid,
                action=asked.action,
                failed=rpc.HostStepFailed,
            ),
            [place],
        )
        run.wait(wait, f"Driver {asked.driver} has not finished to {asked.action} the handle")

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        """Load a bitstream into a deployable, or join that; wait at most ``wait`` seconds.

        :raises ProgramFailed: it is not loaded
        :raises HostStepRunning: it goes on
        """
        del context
        try:
            return self._programmed(step, wait)
        except rpc.ProgramFailed as exc:
            if exc.report_counter is None:
                # Somebody else may have had it written before, and not have heard so.
                exc.report_counter = self._seen()
            raise

    def _programmed(self, step: dict[str, Any], wait: float) -> rpc.ProgramAnswer:
        try:
            asked = rpc.ProgramStep.from_wire(step)
            target = asked.target()
        except (KeyError, TypeError, ValueError) as exc:
            raise rpc.ProgramFailed(f"This is no such step: {exc!r}", written=False) from exc
        self._refuse_old(asked)
        driver = self._drivers.get(asked.driver)
        if driver is None:
            sentence = f"Driver {asked.driver} is not loaded on this host"
            raise rpc.ProgramFailed(sentence, written=False)
        if not isinstance(driver, base.Programmable):
            sentence = f"Driver {asked.driver} cannot program a deployable"
            raise rpc.ProgramFailed(sentence, written=False)
        handles = [runs.place_of(handle) for handle in target.attach_handles]
        run = self._join_or_start(
            runs.Run(
                asked,
                lambda: self._program(driver, asked, target, handles),
                key=asked.deployable_uuid,
                action="program",
                failed=_written,
            ),
            handles,
        )
        run.wait(wait, f"Driver {asked.driver} has not finished to program the deployable")
        answer: rpc.ProgramAnswer = run.answer
        return answer

    def _program(
        self,
        driver: base.Programmable,
        step: rpc.ProgramStep,
        target: base.ProgramTarget,
        handles: Iterable[str],
    ) -> rpc.ProgramAnswer:
        try:
            with (
                self._bitstreams.fetched(step) as bitstream,
                self._places.held([*handles, runs.place_of_device(target.control_path)]),
            ):
                return self._write(driver, step, target, bitstream)
        except (bitstreams.Refused, base.NothingWritten) as exc:
            raise rpc.ProgramFailed(str(exc), written=False) from exc
        except (bitstreams.NotNow, base.BeingWritten) as exc:
            # To the conductor it goes on: it asks again.
            raise rpc.HostStepRunning(str(exc)) from exc

    def _write(
        self,
        driver: base.Programmable,
        step: rpc.ProgramStep,
        target: base.ProgramTarget,
        bitstream: pathlib.Path,
    ) -> rpc.ProgramAnswer:
        try:
            done = driver.program(target, bitstream)
        except (base.NothingWritten, base.BeingWritten):
            raise
        except Exception as exc:
            LOG.exception("Cannot program deployable %s", target.deployable)
            sentence = f"{type(exc).__name__}: {exc}"
            raise rpc.ProgramFailed(sentence, written=True) from exc
        if not checks.is_function(step.function_id, done.function):
            sentence = f"Function {done.function} is loaded, not {step.function_id}"
            raise rpc.ProgramFailed(sentence, written=True)
        return rpc.ProgramAnswer(
            function=done.function, verified_by=done.verified_by, report_counter=self._seen()
        )

    def _seen(self) -> int:
        """The last pass that may not have seen what has just changed; the next comes soon."""
        counter = self._counter.value
        self._counter.look_now()
        return counter

    def _refuse_old(self, step: rpc.HostStep | rpc.ProgramStep) -> None:
        if step.agent_started < self._started:
            raise rpc.HostStepRunning("The agent has started again since; it reports first")

    def _ability(self, step: rpc.HostStep) -> Callable[[base.HeldHandle], None]:
        driver = self._drivers.get(step.driver)
        if driver is None:
            raise rpc.HostStepFailed(f"Driver {step.driver} is not loaded on this host")
        if step.action == "prepare" and isinstance(driver, base.Preparable):
            return driver.prepare
        if step.action == "clean" and isinstance(driver, base.Cleanable):
            return driver.clean
        raise rpc.HostStepFailed(f"Driver {step.driver} cannot {step.action} a handle")

    def _join_or_start(self, wanted: runs.Run, places: Iterable[str]) -> runs.Run:
        """Start the run, unless it is joined; what was asked before of its places is old now."""
        asked_ms = wanted.step.asked_ms
        with self._lock:
            keys = [wanted.key, *places]
            if self._newest.outdates(keys, asked_ms):
                raise rpc.HostStepRunning("Another step of the handle was asked for meanwhile")
            self._newest.note(keys, asked_ms)
            latest = self._latest.get(wanted.key)
            if latest is not None and latest.joins(wanted):
                return latest
            self._latest[wanted.key] = wanted
        wanted.start(after=latest, forget=self._forget)
        return wanted

    def _forget(self, run: runs.Run) -> None:
        with self._lock:
            if self._latest.get(run.key) is run:
                del self._latest[run.key]


def _written(sentence: str) -> errors.CyborgError:
    return rpc.ProgramFailed(sentence, written=True)
