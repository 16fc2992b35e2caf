# SPDX-License-Identifier: Apache-2.0
"""The signs of life that a conductor gives, so that operators see which ones there are."""

from __future__ import annotations

import logging

from cyborg import errors, process, services
from cyborg.db import models

LOG = logging.getLogger(__name__)

#: Seconds for which the last sign, and taking leave, may hold up the stop.
_STOP_GRACE = 2.0


class Life:
    """Signs while the conductor works, and takes leave when it stops."""

    def __init__(self, name: str, host: str) -> None:
        self._uuid = models.new_uuid()
        self._name = name
        self._host = host
        self._loop = process.Loop("signs-of-life", self._sign)

    def start(self) -> None:
        """Sign now, and every few seconds."""
        self._loop.start()

    def stop(self) -> None:
        """Be forgotten. Whoever is killed instead is down, and forgotten later."""
        self._loop.stop(_STOP_GRACE)
        try:
            services.leave(self._uuid)
        except errors.CyborgError as exc:
            LOG.warning("Cannot take leave: %s", exc)

    def _sign(self) -> float:
        try:
            services.sign(self._uuid, self._name, self._host)
        except errors.CyborgError as exc:
            LOG.warning("Cannot give a sign of life: %s", exc)
        return services.SIGN_INTERVAL
