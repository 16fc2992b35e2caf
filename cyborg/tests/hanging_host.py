# SPDX-License-Identifier: Apache-2.0
"""The host of a random life: steps go through an agent's endpoint, and may hang.

What hangs, and what waits behind it, goes on when the life lets it, and at no other time. If the
agent's process dies instead, nothing of that has any effect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import cards, host_steps, pass_counter
from cyborg.drivers import base
from cyborg.handles import host_steps as conductor_steps
from cyborg.tests import hosts
from cyborg.tests.service import PATIENCE

#: Where steps hang: each before its effect, or a clean after it. So does a reset in the kernel: the
#: guest that comes meanwhile waits for it.
BEFORE, AFTER = "before", "after"


class Effect(Protocol):
    """What a step does to a handle."""

    def __call__(self, action: str, handle: base.HeldHandle, *, late: bool) -> None:
        """``late``: the step has hung before."""


class HangingHost:
    """The agent of host-1, which may die, and its driver, whose steps may hang."""

    def __init__(self, conf: cfg.ConfigOpts, effect: Effect, patch: pytest.MonkeyPatch) -> None:
        #: Where steps hang from now on, if they do.
        self.hangs = ""
        #: When the agent has started, as it reports.
        self.started = 0
        self._conf = conf
        self._effect = effect
        self._gate = threading.Event()
        #: The cards on which a step hangs.
        self._stuck: set[str] = set()
        # Each step that waited asks, however short that was, and learns what is so now.
        patch.setattr(host_steps, "AT_ONCE", -1.0)
        patch.setattr(cards, "card_of", _card)
        patch.setattr(rpc, "held_handles", lambda _conf, host: conductor_steps.held_on(host))
        self._start()

    def _start(self) -> None:
        self.started += 1
        self._driver = _Driver(self._effect, self._hang)
        drivers = {hosts.DRIVER: self._driver}
        counter = pass_counter.PassCounter(lambda: None)
        self._agent = host_steps.StepEndpoint(self._conf, drivers, self.started, counter)

    def _hang(self, where: str, handle: base.HeldHandle) -> bool:
        """Hang here if steps do; whether they did."""
        if self.hangs != where:
            return False
        gate = self._gate
        self._stuck.add(_card(handle))
        gate.wait()
        return True

    def run(self, step: rpc.HostStep) -> None:
        """Run a step as far as it goes.

        :raises HostStepFailed: it has failed
        :raises HostStepRunning: it hangs, or waits for one that does, or for the agent's report
        """
        card, end = _card(step.handle()), time.monotonic() + PATIENCE
        waits = step.attach_handle_uuid in self._agent._latest
        waits = waits or (step.action == "clean" and card in self._stuck)
        waits = waits or step.agent_started < self.started
        while True:
            try:
                self._agent.host_step({}, step.to_wire(), 0 if waits else 0.01)
            except rpc.HostStepRunning:
                if waits or card in self._stuck:
                    raise
                assert time.monotonic() < end
            else:
                return

    def go_on(self) -> None:
        """Let what hangs end, and what waits for it run."""
        self.hangs, end = "", time.monotonic() + PATIENCE
        self._gate.set()
        while self._agent._latest:
            assert time.monotonic() < end
            time.sleep(0.001)
        self._stuck.clear()
        self._gate = threading.Event()

    def die(self) -> None:
        """End the agent's process, with all that hangs or waits, and start another one."""
        self._driver.dead = True
        self.go_on()
        self._start()


class _Driver:
    """The driver in one process of the agent."""

    def __init__(self, effect: Effect, hang: Callable[[str, base.HeldHandle], bool]) -> None:
        self.dead = False
        self._effect = effect
        self._hang = hang

    def discover(self, host: base.Host) -> list[base.Device]:
        """Nothing; tests report."""
        del host
        return []

    def prepare(self, handle: base.HeldHandle) -> None:
        """As an agent calls it."""
        self._act("prepare", handle)

    def clean(self, handle: base.HeldHandle) -> None:
        """Likewise."""
        self._act("clean", handle)
        self._hang(AFTER, handle)

    def _act(self, action: str, handle: base.HeldHandle) -> None:
        late = self._hang(BEFORE, handle)
        if self.dead:
            raise RuntimeError("the process has ended")
        self._effect(action, handle, late=late)


def _card(handle: base.HeldHandle) -> str:
    return str(handle.control_path.cpid_info["address"])
