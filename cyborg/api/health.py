# SPDX-License-Identifier: Apache-2.0
"""``/healthcheck``: checks of the database and of the message broker.

Both are backends of oslo.middleware's healthcheck. Either may not answer at all, so each check
runs in its own thread. A result is kept for a few seconds, so balancers may ask often.
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
from cyborg.common import errors

LOG = logging.getLogger(__name__)

#: The backends' entry points: all are used unless ``[healthcheck] backends`` has fewer.
BACKENDS = ("cyborg_database", "cyborg_broker")

#: Seconds for which a result is kept, and seconds to wait for one.
FRESH = 5.0
PATIENCE = 2.0


class _Check:
    """One check, which starts in its own thread at once."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._began = time.monotonic()
        self._answered = threading.Event()
        self._fault: str | None = None
        #: Whether the log has the fault already.
        self.is_logged = False
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ask()
        except errors.DatabaseUnreachable as exc:
            self._fault, self.is_logged = str(exc), True
        except Exception as exc:  # noqa: BLE001 - any error is the result
            self._fault = str(exc) or type(exc).__name__
        finally:
            self._answered.set()

    def stale(self) -> bool:
        """True if it is time for a new check: never while this one runs."""
        if self._thread.is_alive():
            return False
        return time.monotonic() > self._began + FRESH

    def fault(self) -> str | None:
        """The fault that was found, or None."""
        left = self._began + PATIENCE - time.monotonic()
        if self._answered.wait(max(0.0, left)):
            return self._fault
        return f"no answer in {PATIENCE:g} seconds"


class _Backend(pluginbase.HealthcheckBaseExtension):
    what: str

    def __init__(self, oslo_conf: cfg.ConfigOpts, conf: dict[str, Any]) -> None:
        super().__init__(oslo_conf, conf)
        self._lock = threading.Lock()
        self._check: _Check | None = None
        self._last_fault: str | None = None

    def ask(self) -> None:
        """Raise any error, or never end, if not all is well."""
        raise NotImplementedError

    def healthcheck(self, server_port: int) -> pluginbase.HealthcheckResult:
        """Called by oslo.middleware at each request."""
        with self._lock:
            if self._check is None or self._check.stale():
                self._check = _Check(self.ask)
            check = self._check
        fault = check.fault()
        if not check.is_logged:
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
    """The check that the database answers a query."""

    what = "database"

    def ask(self) -> None:
        """Run the smallest query there is."""
        with db.reader() as session:
            session.execute(sa.select(1))


class Broker(_Backend):
    """The check that the message broker takes a message."""

    what = "message broker"

    def ask(self) -> None:
        """Send a message that has no receiver."""
        rpc.check()
