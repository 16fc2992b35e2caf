# SPDX-License-Identifier: Apache-2.0
"""Host steps: what drivers do to attach handles and deployables when a conductor asks for it.

Each step runs in a thread of its own, one at a time for each handle and each device. Of the handles
of one card, one at a time is cleaned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg import metrics, rpc
from cyborg.agent import bitstream_cache, cards, cdi, pass_counter, write_results, writes
from cyborg.common import errors
from cyborg.drivers import base, value_checks

LOG = logging.getLogger(__name__)

#: The most handles and deployables whose newest request is remembered.
REMEMBERED_MAX = 10_000

#: Seconds within which a clean step begins without a question whether it is still wanted.
AT_ONCE = 1.0

#: A layout that was given is looked at again if its operation still waits after so many passes.
_PASSES_OF_A_LAYOUT = 2

_Write = Callable[[base.ProgramTarget], base.Programmed]


class StepEndpoint:
    """Runs the steps that conductors ask for.

    A conductor that got no answer asks again: the step that still runs is joined, not repeated, and
    a write that has ended is not made again, but for a layout that was lost since. A different step
    of the same handle waits for the one before it. A message that arrives after newer ones is
    refused, as it could undo what they have done. A message to an agent that has since restarted is
    refused too, as newer messages are not known any more; conductors ask again
    for steps that are still needed when they have the first report of the new agent.

    While a deployable is programmed, no step of its handles runs and no other deployable of its
    device is programmed.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        drivers: Mapping[str, base.Driver],
        started: int,
        counter: pass_counter.PassCounter,
    ) -> None:
        self._conf = conf
        self._drivers = drivers
        self._started = started
        self._counter = counter
        self._bitstreams = bitstream_cache.Cache(conf)
        self.writes = writes.Writes(conf, counter)
        self.specifications = cdi.Specifications(conf, drivers)
        #: Held while a layout is changed, for which virtual functions may be made anew.
        self.layout_changes = threading.Lock()
        self._results = write_results.Results(conf)
        self._locks = _Locks()
        #: The handle of each card that is being cleaned, and when the last clean of a card ended.
        self._cleaning: dict[str, str] = {}
        self._cleaned_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._latest: dict[str, _StepRun] = {}
        self._newest = _NewestRequests()

    def host_step(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> str | None:
        """Run a step, or join it, and wait at most ``wait`` seconds for its end.

        What is returned is the secret of a handle that is prepared, if it has one.

        :raises HostStepFailed: the driver refused, or there is no such driver, ability or step
        :raises HostStepRunning: the step goes on
        """
        try:
            asked = rpc.HostStep.from_wire(step)
            value_checks.seconds("wait", wait)
        except (rpc.Unreadable, ValueError) as exc:
            raise rpc.HostStepFailed(f"This is no host step: {exc}") from exc
        handle = asked.handle()
        self._refuse_old(asked)
        method, key, received = self._ability(asked), _handle_key(handle), time.monotonic()

        def work() -> str | None:
            if asked.action == "clean":
                self._clean(method, asked, received)
                return None
            with self._locks.held([key, *_shared_with(handle)]):
                self._refuse_other_card(asked)
                method(handle)
                driver = self._drivers[asked.driver]
                return driver.access_key(handle) if isinstance(driver, base.Keyed) else None

        run = self._join_or_start(
            _StepRun(
                asked,
                work,
                key=asked.attach_handle_uuid,
                action=asked.action,
                failed=rpc.HostStepFailed,
            ),
            [key],
        )
        run.wait(wait, lambda: self._unfinished(run, asked))
        secret: str | None = run.answer
        return secret

    def _clean(self, method: cdi.Step, asked: rpc.HostStep, received: float) -> None:
        """Clean a handle while no other one of its card is cleaned."""
        handle = asked.handle()
        card = cards.card_of(handle)
        with self._locks.held([_handle_key(handle), _card_key(card)]):
            # A function that was not on the bus may have come, and be of another card than it said.
            if cards.card_of(handle) != card:
                sentence = "The functions of the card have just changed"
                raise rpc.HostStepRunning(sentence, seconds=0)
            if time.monotonic() > received + AT_ONCE:
                self._refuse_if_held(asked)
            self._cleaning[card] = asked.attach_handle_uuid
            try:
                self._refuse_other_card(asked)
                method(handle)
            finally:
                self._cleaned_at[card] = time.monotonic()
                del self._cleaning[card]

    def _refuse_other_card(
        self,
        step: rpc.HostStep | rpc.ProgramStep,
        failed: Callable[[str], Exception] = rpc.HostStepFailed,
    ) -> None:
        path = base.ControlPath(cpid_type=step.cpid_type, cpid_info=step.cpid_info)
        why = cards.why_other(self._drivers[step.driver], path, step.card)
        if why is not None:
            raise failed(f"Nothing is done: {why}")

    def _refuse_if_held(self, step: rpc.HostStep) -> None:
        """Ask a conductor whether a guest has the handle that was to be cleaned a while ago.

        An administrator may have given up waiting, so that it was bound again.
        """
        held = rpc.held_handles(self._conf, self._conf.host)
        if held is None:
            sentence = "No conductor says whether the handle is in use by now"
            raise rpc.HostStepRunning(sentence, seconds=0)
        if step.attach_handle_uuid in held:
            arq = held[step.attach_handle_uuid]
            raise rpc.HostStepFailed(f"The handle is not cleaned: ARQ {arq} has it by now")

    def _unfinished(self, run: _StepRun, step: rpc.HostStep) -> rpc.HostStepRunning:
        """That a step goes on, and since when: from when no other one of its card was cleaned."""
        since = run.made_at
        if step.action == "clean":
            card = cards.card_of(step.handle())
            other = self._cleaning.get(card)
            if other is not None and other != step.attach_handle_uuid:
                sentence = f"It waits until attach handle {other} of the same card is clean"
                return rpc.HostStepRunning(sentence, seconds=0)
            since = max(since, self._cleaned_at.get(card, since))
        sentence = f"Driver {step.driver} has not finished to {step.action} the handle"
        return rpc.HostStepRunning(sentence, seconds=round(time.monotonic() - since))

    def reconcile(self) -> None:
        """Take back what is given to ARQs that have it no more, as after a forced release.

        It is asked who has what only where there is something to take back.
        """
        self.specifications.reconcile()
        given = [
            (driver, handle, arq)
            for driver in self._drivers.values()
            if isinstance(driver, base.Revocable)
            for handle, arq in driver.given().items()
        ]
        # Asked for afterwards: what is given meanwhile need not be in the answer.
        held = rpc.held_handles(self._conf, self._conf.host) if given else None
        if held is None:
            return
        for driver, handle, arq in given:
            if held.get(handle) != arq:
                _revoke(driver, handle, arq)

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        """Load a bitstream into a deployable, or join that; wait at most ``wait`` seconds.

        :raises ProgramFailed: it is not loaded
        :raises HostStepRunning: it goes on
        """
        try:
            return self._program(step, wait)
        except rpc.ProgramFailed as exc:
            if exc.report_counter is None:
                # An earlier request may have written it, and its conductor may not know.
                exc.report_counter = self._current_pass()
            raise

    def _program(self, step: dict[str, Any], wait: float) -> rpc.ProgramAnswer:
        try:
            asked = rpc.ProgramStep.from_wire(step)
            value_checks.seconds("wait", wait)
        except (rpc.Unreadable, ValueError) as exc:
            raise rpc.ProgramFailed(f"This is no such step: {exc}", written=False) from exc
        self._refuse_old(asked)
        driver = self._drivers.get(asked.driver)
        if driver is None:
            sentence = f"Driver {asked.driver} is not loaded on this host"
            raise rpc.ProgramFailed(sentence, written=False)
        if not asked.image_uuid and not isinstance(driver, base.Reconfigurable):
            sentence = f"Driver {asked.driver} cannot change a layout"
            raise rpc.ProgramFailed(sentence, written=False)
        if asked.image_uuid and not isinstance(driver, base.Programmable):
            sentence = f"Driver {asked.driver} cannot program a deployable"
            raise rpc.ProgramFailed(sentence, written=False)
        run = self._join_or_start(
            _StepRun(
                asked,
                lambda: self._write_once(asked),
                key=asked.deployable_uuid,
                action="program",
                failed=_failed_after_write,
            ),
            map(_handle_key, asked.target().attach_handles),
        )
        unfinished = f"Driver {asked.driver} has not finished to program the deployable"
        run.wait(wait, lambda: rpc.HostStepRunning(unfinished))
        answer: rpc.ProgramAnswer = run.answer
        return answer

    def _write_once(self, step: rpc.ProgramStep) -> rpc.ProgramAnswer:
        """Write, unless this very write has been made; keep what becomes of it."""
        known = self._results.find(step)
        if known is not None and not self._may_be_lost(step, known):
            # Counted by this agent, and now.
            return dataclasses.replace(known, report_counter=self._current_pass())
        # What is kept may be the result of a later operation, which nobody has yet. An order that
        # ends before it may write does not replace it.
        try:
            answer = self._fetch_and_write(step)
        except writes.NotWritten:
            raise
        except bitstream_cache.NoBitstream as exc:
            raise rpc.ProgramFailed(str(exc), written=False) from exc
        except rpc.ProgramFailed as exc:
            self._results.keep_failure(step, exc)
            raise
        self._results.keep_answer(step, answer)
        return answer

    def _may_be_lost(self, step: rpc.ProgramStep, known: rpc.ProgramAnswer) -> bool:
        """True if it is time to look again at a layout whose operation waits for a report.

        A pass that goes on meanwhile does not count, so there is one between two looks.
        """
        passes = self._counter.value - known.report_counter
        return not step.image_uuid and not 0 <= passes < _PASSES_OF_A_LAYOUT

    def _fetch_and_write(self, step: rpc.ProgramStep) -> rpc.ProgramAnswer:
        target = step.target()
        handles = map(_handle_key, target.attach_handles)
        try:
            with (
                self._ready(step) as write,
                self._locks.held([*handles, _device_key(target.control_path)]),
                contextlib.nullcontext() if step.image_uuid else self.layout_changes,
            ):
                self._refuse_other_card(step, base.NothingWritten)
                return self._write(write, step, target)
        except (bitstream_cache.NotNow, base.BeingWritten, base.NotPermitted) as exc:
            # The conductor takes the step as running, and asks again.
            raise rpc.HostStepRunning(str(exc)) from exc
        except base.NothingWritten as exc:
            raise rpc.ProgramFailed(str(exc), written=False) from exc

    @contextlib.contextmanager
    def _ready(self, step: rpc.ProgramStep) -> Iterator[_Write]:
        """The writer of the step's image, which is there, or of its layout, which takes none."""
        driver = self._drivers[step.driver]
        if isinstance(driver, base.Reconfigurable) and not step.image_uuid:
            yield driver.set_layout
        elif isinstance(driver, base.Programmable):
            with self._bitstreams.fetched(step) as bitstream:
                program = driver.program
                yield lambda target: program(target, bitstream)

    def _write(
        self, write: _Write, step: rpc.ProgramStep, target: base.ProgramTarget
    ) -> rpc.ProgramAnswer:
        try:
            with self.writes.permitted(step, target) as permitted:
                done = write(permitted)
        except (base.NothingWritten, base.BeingWritten, rpc.HostStepFailed, rpc.HostStepRunning):
            raise
        except Exception as exc:
            LOG.exception("Cannot program deployable %s", target.deployable)
            raise _failed_after_write(errors.told(exc)) from exc
        if not value_checks.is_same_function(step.function_id, done.function):
            raise _failed_after_write(
                f"Function {done.function} is loaded, not {step.function_id}"
            )
        return rpc.ProgramAnswer(
            function=done.function,
            verified_by=done.verified_by,
            report_counter=self._current_pass(),
        )

    def _current_pass(self) -> int:
        """The last pass that may not show what has just changed; the next one begins soon."""
        counter = self._counter.value
        self._counter.look_now()
        return counter

    def _refuse_old(self, step: rpc.HostStep | rpc.ProgramStep) -> None:
        if step.agent_started < self._started:
            sentence = "The agent has started again since; it reports first"
            raise rpc.HostStepRunning(sentence, seconds=0)

    def _ability(self, step: rpc.HostStep) -> cdi.Step:
        driver = self._drivers.get(step.driver)
        if driver is None:
            raise rpc.HostStepFailed(f"Driver {step.driver} is not loaded on this host")
        own: cdi.Step | None = None
        if step.action == "prepare" and isinstance(driver, base.Preparable):
            own = driver.prepare
        if step.action == "clean" and isinstance(driver, base.Cleanable):
            own = driver.clean
        whole = None
        if step.action in {"prepare", "clean"}:
            whole = self.specifications.step(step, own)
        if whole is None:
            raise rpc.HostStepFailed(f"Driver {step.driver} cannot {step.action} a handle")
        return whole

    def _join_or_start(self, run: _StepRun, handles: Iterable[str]) -> _StepRun:
        """Start the run or return the one it joins. Older requests for its keys are refused now."""
        asked_ms = run.step.asked_ms
        with self._lock:
            keys = [run.key, *handles]
            if self._newest.is_newer(keys, asked_ms):
                raise rpc.HostStepRunning("Another step of the handle was asked for meanwhile")
            self._newest.note(keys, asked_ms)
            latest = self._latest.get(run.key)
            if latest is not None and latest.joins(run):
                return latest
            self._latest[run.key] = run
        run.start(after=latest, forget=self._forget)
        return run

    def _forget(self, run: _StepRun) -> None:
        with self._lock:
            if self._latest.get(run.key) is run:
                del self._latest[run.key]


class _Locks:
    """Locks by key, each held by one run at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[str] = set()

    @contextlib.contextmanager
    def held(self, keys: Iterable[str]) -> Iterator[None]:
        """Wait until all of the keys are free, and hold them."""
        wanted = set(keys)
        with self._changed:
            self._changed.wait_for(lambda: not wanted & self._held)
            self._held |= wanted
        try:
            yield
        finally:
            with self._changed:
                self._held -= wanted
                self._changed.notify_all()


class _NewestRequests:
    """When the newest step of each key was asked for, by the database's clock.

    Of keys that were forgotten, only the newest of their times is known. No message is as late as
    :data:`cyborg.rpc.AGE_MAX`: one that looks older than that is new, and the clock was set back.
    """

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._forgotten_ms = 0

    def is_newer(self, keys: Iterable[str], asked_ms: int) -> bool:
        """True if a newer step of any of the keys was asked for, or may have been."""
        known = (self._asked.get(key, self._forgotten_ms) for key in keys)
        return any(0 < newest - asked_ms <= rpc.AGE_MAX for newest in known)

    def note(self, keys: Iterable[str], asked_ms: int) -> None:
        """Store the time of a request that is the newest for all of the keys."""
        self._asked |= dict.fromkeys(keys, asked_ms)
        if len(self._asked) > REMEMBERED_MAX:
            by_age = sorted(self._asked.items(), key=lambda item: item[1])
            old, kept = by_age[: -REMEMBERED_MAX // 2], by_age[-REMEMBERED_MAX // 2 :]
            self._asked, self._forgotten_ms = dict(kept), old[-1][1]


class _StepRun:
    """One run of a step in a daemon thread; the driver may take as long as it needs.

    ``answer`` is what ``work`` returned. ``failed`` makes an error from the message of any other.
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
        self.made_at = time.monotonic()
        self.answer: Any = None
        self._action = action
        self.done = threading.Event()
        self._failure: errors.CyborgError | None = failed("The driver ended without an answer")
        self._failed = failed
        self._work = work
        self._context = oslo_context.get_current()

    def joins(self, other: _StepRun) -> bool:
        """True if the other run, which was asked for later, does the same as this one."""
        return not self.done.is_set() and self.step == dataclasses.replace(
            other.step, asked_ms=self.step.asked_ms, agent_started=self.step.agent_started
        )

    def start(self, *, after: _StepRun | None, forget: Callable[[_StepRun], None]) -> None:
        """Start as soon as the run ``after`` has ended; call ``forget`` at the end."""
        threading.Thread(
            target=self._run, args=(after, forget), name=f"host-step-{self._action}", daemon=True
        ).start()

    def wait(self, seconds: float, running: Callable[[], rpc.HostStepRunning]) -> None:
        """Wait until the run has succeeded.

        :raises HostStepRunning: it has not ended in time, as ``running`` says; or it has ended,
            and must be asked for again
        :raises HostStepFailed: it has failed
        """
        if not self.done.wait(seconds):
            raise running()
        if self._failure is not None:
            raise self._failure

    def _run(self, after: _StepRun | None, forget: Callable[[_StepRun], None]) -> None:
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
            self._failure = self._failed(errors.told(exc))
        finally:
            forget(self)
            self.done.set()


def _revoke(driver: base.Revocable, handle: str, arq: str) -> None:
    LOG.warning("ARQ %s loses its access to attach handle %s", arq or "-", handle)
    try:
        driver.revoke(handle, arq)
    except Exception:
        # It is tried again after the next report.
        LOG.exception("Cannot take back what was given of attach handle %s", handle)


def _handle_key(handle: base.AttachHandle) -> str:
    return base.canonical_json([handle.attach_type, dict(handle.attach_info)])


def _shared_with(handle: base.HeldHandle) -> list[str]:
    """The card of a share: who gets one while another is cleaned would lose it by the reset."""
    return [_card_key(cards.card_of(handle))] if base.SHARE_KEY in handle.attach_info else []


def _device_key(path: base.ControlPath) -> str:
    return base.canonical_json([path.cpid_type, None, dict(path.cpid_info)])


def _card_key(card: str) -> str:
    return base.canonical_json(["card", card])


def _failed_after_write(sentence: str) -> rpc.ProgramFailed:
    return rpc.ProgramFailed(sentence, written=True)
