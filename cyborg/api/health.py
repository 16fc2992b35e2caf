# SPDX-License-Identifier: Apache-2.0
"""What ``/healthcheck`` asks of the database and of the message broker.

Both are backends of oslo.middleware's healthcheck. Whoever is asked may not answer at all, so each
question has a thread of its own, and an answer is good for a few seconds: a balancer that asks
every server all the time costs nearly nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_middleware.healthcheck import pluginbase

from cyborg import db, rpc

LOG = logging.getLogger(__name__)

#: The backends' entry points, all of which are asked unless ``[healthcheck] backends`` says less.
BACKENDS = ("cyborg_database", "cyborg_broker")

#: Seconds for which an answer is good, and for which one is waited.
FRESH = 5.0
PATIENCE = 2.0


class _Question:
    """One question, asked in a thread when it is made."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._began = time.monotonic()
        self._answered = threading.Event()
        self._fault: str | None = None
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ask()
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is the answer
            self._fault = str(exc) or type(exc).__name__
        finally:
            self._answered.set()

    def stale(self) -> bool:
        """Whether it is time to ask again. While there is no answer it is not."""
        if self._thread.is_alive():
            return False
        return time.monotonic() > self._began + FRESH

    def fault(self) -> str | None:
        """What is wrong, or None."""
        left = self._began + PATIENCE - time.monotonic()
        if self._answered.wait(max(0.0, left)):
            return self._fault
        return f"no answer in {PATIENCE:g} seconds"


class _Backend(pluginbase.HealthcheckBaseExtension):
    what: str

    def __init__(self, oslo_conf: cfg.ConfigOpts, conf: dict[str, Any]) -> None:
        super().__init__(oslo_conf, conf)
        self._lock = threading.Lock()
        self._question: _Question | None = None
        self._last_fault: str | None = None

    def ask(self) -> None:
        """Return where all is well, raise or never return otherwise."""
        raise NotImplementedError

    def healthcheck(self, server_port: int) -> pluginbase.HealthcheckResult:
        """What oslo.middleware calls, at each request."""
        with self._lock:
            if self._question is None or self._question.stale():
                self._question = _Question(self.ask)
            question = self._question
        fault = question.fault()
        self._log_change(fault)
        reason = f"{self.what} does not answer" if fault else f"{self.what} answers"
        return pluginbase.HealthcheckResult(fault is None, reason, details=fault)

    def _log_change(self, fault: str | None) -> None:
        with self._lock:
            last, self._last_fault = self._last_fault, fault
        if fault and not last:
            LOG.warning("The %s does not answer: %s", self.what, fault)
        elif last and not fault:
            LOG.info("The %s answers again", self.what)


class Database(_Backend):
    """Whether the database answers a query."""

    what = "database"

    def ask(self) -> None:
        """Run the least query there is."""
        with db.reader() as session:
            session.execute(sa.select(1))


class Broker(_Backend):
    """Whether the message broker takes a message."""

    what = "message broker"

    def ask(self) -> None:
        """Send a message that nobody gets."""
        rpc.check()
