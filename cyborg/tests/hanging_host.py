# SPDX-License-Identifier: Apache-2.0
"""The host of a random life: steps go through an agent's endpoint, and a clean may hang.

What waits behind it goes on when the life lets it, and at no other time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import cards, host_steps, pass_counter
from cyborg.arqs import host_steps as conductor_steps
from cyborg.drivers import base
from cyborg.tests import hosts
from cyborg.tests.service import PATIENCE

#: What a step does to a handle: its action, and which handle.
Effect = Callable[[str, base.HeldHandle], None]


class HangingHost:
    """The agent of host-1, and a driver whose cleans hang after their effect while ``hangs``.

    So does a reset in the kernel: the guest that comes meanwhile waits for it.
    """

    def __init__(self, conf: cfg.ConfigOpts, effect: Effect, patch: pytest.MonkeyPatch) -> None:
        self.hangs = False
        self._effect = effect
        self._gate = threading.Event()
        #: The cards on which a clean hangs.
        self._stuck: set[str] = set()
        # Each step that waited asks, however short that was, and learns what is so now.
        patch.setattr(host_steps, "AT_ONCE", -1.0)
        patch.setattr(cards, "card_of", _card)
        patch.setattr(rpc, "held_handles", lambda _conf, host: conductor_steps.held_on(host))
        counter = pass_counter.PassCounter(lambda: None)
        self._agent = host_steps.Endpoint(conf, {hosts.DRIVER: self}, 1, counter)

    def discover(self, host: base.Host) -> list[base.Device]:
        """Nothing; tests report."""
        del host
        return []

    def prepare(self, handle: base.HeldHandle) -> None:
        """As an agent calls it."""
        self._effect("prepare", handle)

    def clean(self, handle: base.HeldHandle) -> None:
        """Likewise."""
        self._effect("clean", handle)
        if self.hangs:
            self._stuck.add(_card(handle))
            self._gate.wait()

    def run(self, step: rpc.HostStep) -> None:
        """Run a step as far as it goes.

        :raises HostStepFailed: it has failed
        :raises HostStepRunning: it hangs, or waits for one that does
        """
        card, end = _card(step.handle()), time.monotonic() + PATIENCE
        waits = step.attach_handle_uuid in self._agent._latest
        waits = waits or (step.action == "clean" and card in self._stuck)
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
        self.hangs, end = False, time.monotonic() + PATIENCE
        self._gate.set()
        while self._agent._latest:
            assert time.monotonic() < end
            time.sleep(0.001)
        self._stuck.clear()
        self._gate = threading.Event()


def _card(handle: base.HeldHandle) -> str:
    return str(handle.control_path.cpid_info["address"])
