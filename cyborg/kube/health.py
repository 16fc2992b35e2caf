# SPDX-License-Identifier: Apache-2.0
"""The health of the devices, for the kubelet, which shows it in the status of pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cyborg.kube import inventory, messages, slices
from cyborg.kube.inventory import NodeInventory, OfferedPart

#: Passes after which what was seen last is not believed any more.
_MISSED = 3
#: Characters of a message that the kubelet keeps.
_LONGEST = 1024


class DeviceHealth:
    """The health of the devices as seen last; any number of streams tell it on."""

    def __init__(self, pool: str, interval: Callable[[], float]) -> None:
        self._pool = pool
        self._interval = interval
        self._changed = threading.Condition()
        self._seen: NodeInventory | None = None
        self._seen_at = 0.0
        self._passes = 0
        self._stopped = False

    def note(self, seen: NodeInventory) -> None:
        """Take what a pass has found."""
        with self._changed:
            self._seen, self._seen_at = seen, time.time()
            self._wake()

    def note_failure(self) -> None:
        """A pass has found out nothing."""
        with self._changed:
            self._wake()

    def stop(self) -> None:
        """End the streams."""
        with self._changed:
            self._stopped = True
            self._wake()

    def _wake(self) -> None:
        self._passes += 1
        self._changed.notify_all()

    def watch(self, is_heard: Callable[[], bool]) -> Iterator[Any]:
        """The messages for a kubelet: one after each pass, while it listens."""
        said = -1
        while is_heard():
            with self._changed:
                if said == self._passes:
                    # By then it may be that nobody listens any more.
                    self._changed.wait(timeout=1.0)
                if self._stopped:
                    return
                if said == self._passes:
                    continue
                said = self._passes
                answer = self._answer()
            if answer is not None:
                yield answer

    def _answer(self) -> Any:
        if self._seen is None:
            return None
        timeout = _MISSED * self._interval()
        is_old = time.time() - self._seen_at > timeout
        answer = messages.HEALTH["NodeWatchResourcesResponse"]()
        for part in self._seen.parts:
            state, why = state_of(part)
            if is_old:
                state, why = messages.UNKNOWN, "Cyborg does not say how it is."
            for name in slices.names(part):
                device = answer.devices.add(
                    health=state,
                    last_updated_time=int(self._seen_at),
                    health_check_timeout_seconds=int(timeout),
                    message=why[:_LONGEST],
                )
                device.device.pool_name, device.device.device_name = self._pool, name
        return answer


def state_of(part: OfferedPart) -> tuple[int, str]:
    """The health of a part, in the numbers of the kubelet's messages, and why."""
    for what in (inventory.UNHEALTHY, inventory.MISSING):
        if what in part.closed:
            return messages.UNHEALTHY, part.closed[what]
    if inventory.HOST_DOWN in part.closed:
        return messages.UNKNOWN, part.closed[inventory.HOST_DOWN]
    return messages.HEALTHY, ""
