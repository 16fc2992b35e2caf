# SPDX-License-Identifier: Apache-2.0
"""A conductor's heartbeat, by which operators see which conductors are up."""

from __future__ import annotations

import logging

from cyborg import liveness, process
from cyborg.common import errors
from cyborg.db import models

LOG = logging.getLogger(__name__)

#: Seconds that a heartbeat in progress may delay the stop.
_STOP_GRACE = 2.0


class Heartbeat:
    """Records a heartbeat every few seconds, and removes the conductor's record at its stop."""

    def __init__(self, name: str, host: str) -> None:
        self._uuid = models.new_uuid()
        self._name = name
        self._host = host
        self._loop = process.Loop("heartbeat", self._beat)

    def start(self) -> None:
        """Record the first heartbeat now."""
        self._loop.start()

    def stop(self) -> None:
        """Remove the record. A conductor that is killed is shown as down, and removed later."""
        self._loop.stop(_STOP_GRACE)
        try:
            liveness.remove_conductor(self._uuid)
        except errors.CyborgError as exc:
            LOG.log(exc.level, "Cannot remove this conductor's record: %s", exc)

    def _beat(self) -> float:
        try:
            liveness.record_heartbeat(self._uuid, self._name, self._host)
        except errors.CyborgError as exc:
            LOG.log(exc.level, "Cannot record a heartbeat: %s", exc)
        return liveness.HEARTBEAT_INTERVAL
