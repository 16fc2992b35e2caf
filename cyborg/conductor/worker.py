# SPDX-License-Identifier: Apache-2.0
"""The loop that claims work rows and runs their handlers, in one conductor process."""

from __future__ import annotations

import collections
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent import futures

from keystoneauth1 import exceptions as ka_exc
from oslo_context import context as oslo_context

from cyborg import metrics, work
from cyborg.common import errors

LOG = logging.getLogger(__name__)

Handler = Callable[[work.Claim], None]

#: Seconds to wait before trying again when the work table itself cannot be read.
_TABLE_RETRY = 1.0

#: Seconds by which the look for a row follows its time, since the database rounds that.
_DUE_LATER = 0.002


class Worker:
    """Claims rows and runs up to ``threads`` handlers of each kind in parallel.

    The limit is per kind, so that a slow host, Placement or Nova does not delay binds.
    ``handlers`` maps a kind of work to the function that does it. A handler returns when the work
    is done, raises :class:`work.TryLater` or any other error to be called again after a back-off,
    and calls ``claim.checkpoint()`` before it acts.

    :param lease_seconds: how long a claim lasts unless it is renewed
    :param poll_interval: seconds between two looks for work; may be changed at any time
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        name: str,
        threads: int,
        lease_seconds: float,
        poll_interval: float,
    ) -> None:
        self._handlers = dict(handlers)
        #: New at each start, to tell its claims from those of the process before it.
        self.name = f"{name}/{uuid.uuid4().hex[:12]}"
        self._lease = lease_seconds
        self.poll_interval = poll_interval
        self._numbers = itertools.count(1)
        self._limit = threads
        # It starts a thread where none is idle; futurist's would start one for each claim.
        self._pool = futures.ThreadPoolExecutor(threads * len(handlers), "work")
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._running: dict[str, work.Claim] = {}
        #: The kinds that the last look left out, since no more handlers of them may run.
        self._full: set[str] = set()
        #: When rows that this process gave back are due, by the monotonic clock.
        self._due: list[float] = []
        self._claimer = threading.Thread(target=self._claim_loop, name="work-claim", daemon=True)
        self._renewer = threading.Thread(target=self._renew_loop, name="work-renew", daemon=True)

    def start(self) -> None:
        """Start claiming."""
        self._claimer.start()
        self._renewer.start()

    def kick(self) -> None:
        """Look for work now instead of at the next poll."""
        self._wake.set()

    def stop(self, grace: float) -> None:
        """Claim no more, wait ``grace`` seconds for handlers to finish, give back what is left."""
        self._stopping.set()
        self._wake.set()
        self._claimer.join()
        deadline = time.monotonic() + grace
        with self._idle:
            self._idle.wait_for(lambda: not self._running, timeout=grace)
            left = list(self._running.values())
        for claim in left:
            claim.lose()
        if left:
            LOG.warning("Giving back %d unfinished pieces of work", len(left))
            work.hand_back([claim.owner for claim in left])
        self._pool.shutdown(wait=False)
        self._renewer.join(max(0.0, deadline - time.monotonic()))

    def _claim_loop(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the look, so that a kick during the look causes another one.
            self._wake.clear()
            self._forget_due()
            claims, more = self._claim(self._room())
            with self._idle:
                self._running.update({claim.owner: claim for claim in claims})
            for claim in claims:
                self._pool.submit(self._run, claim)
            if not (more or self._stopping.is_set()):
                self._wake.wait(self._pause())

    def _forget_due(self) -> None:
        """Drop the times that have come: the look that follows sees those rows."""
        with self._idle:
            now = time.monotonic()
            self._due = [due for due in self._due if due > now]

    def _pause(self) -> float:
        """Seconds to the next look: until the poll, or until a row is due that failed here."""
        with self._idle:
            return max(0.0, min([self.poll_interval, *(d - time.monotonic() for d in self._due)]))

    def _back_off(self, claim: work.Claim, error: str, error_code: str | None = None) -> None:
        due = work.back_off(claim, error, error_code) + _DUE_LATER + time.monotonic()
        with self._idle:
            self._due.append(due)
        self._wake.set()

    def _room(self) -> dict[str, int]:
        """The number of handlers of each kind that may begin."""
        with self._idle:
            running = collections.Counter(claim.kind for claim in self._running.values())
            room = {kind: self._limit - running[kind] for kind in self._handlers}
            self._full = {kind for kind, number in room.items() if number <= 0}
            return room

    def _claim(self, room: Mapping[str, int]) -> tuple[list[work.Claim], bool]:
        owners = (f"{self.name}#{number}" for number in self._numbers)
        try:
            return work.claim(owners, self._lease, room)
        except errors.DatabaseUnreachable:
            LOG.debug("The work table cannot be read now")
        except Exception:
            LOG.warning("Cannot read the work table; trying again", exc_info=True)
        self._stopping.wait(_TABLE_RETRY)
        return [], True

    def _run(self, claim: work.Claim) -> None:
        # Its request id is then in every log line and every request to another service.
        oslo_context.RequestContext(global_request_id=claim.request_id)
        try:
            self._handle(claim)
        except work.LeaseLost:
            LOG.warning("Stopped %s/%s: its lease is lost", claim.kind, claim.key)
        except errors.DatabaseUnreachable:
            LOG.debug("%s/%s stays claimed until its lease ends", claim.kind, claim.key)
        except Exception:
            # The row stays claimed until its lease ends, and is then claimed again.
            LOG.exception("Cannot record the outcome of %s/%s", claim.kind, claim.key)
        finally:
            with self._idle:
                self._running.pop(claim.owner, None)
                self._idle.notify_all()
                waited_for = claim.kind in self._full
            if waited_for:
                self._wake.set()

    def _handle(self, claim: work.Claim) -> None:
        LOG.debug("Running %s/%s, attempt %d", claim.kind, claim.key, claim.attempts)
        with metrics.observed(metrics.WORK_SECONDS, kind=claim.kind, outcome="lost") as labels:
            try:
                self._handlers[claim.kind](claim)
            except work.LeaseLost:
                raise
            except (errors.CyborgError, ka_exc.ClientException) as exc:
                level = exc.level if isinstance(exc, errors.CyborgError) else logging.WARNING
                LOG.log(level, "%s/%s is tried again: %s", claim.kind, claim.key, exc)
                self._back_off(claim, str(exc), getattr(exc, "error_code", None))
                labels["outcome"] = "again"
            except Exception as exc:
                LOG.exception("%s/%s met a fault; it is tried again", claim.kind, claim.key)
                self._back_off(claim, f"{type(exc).__name__}: {exc}")
                labels["outcome"] = "fault"
            else:
                if not work.finish(claim):
                    self._wake.set()
                labels["outcome"] = "done"

    def _renew_loop(self) -> None:
        while not self._stopping.wait(self._lease / 3):
            self._renew()
        # Handlers that have not finished keep their leases.
        while self._renew():
            time.sleep(self._lease / 10)

    def _renew(self) -> bool:
        """Renew the leases of what is running; False if nothing is."""
        with self._idle:
            claims = list(self._running.values())
        try:
            work.renew(claims, self._lease)
        except errors.DatabaseUnreachable:
            LOG.debug("The leases of %d rows are not renewed", len(claims))
        except Exception:
            LOG.warning("Cannot renew the leases of %d rows", len(claims), exc_info=True)
        return bool(claims)
