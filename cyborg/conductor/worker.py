# SPDX-License-Identifier: Apache-2.0
"""The loop that takes work rows and runs their handlers, in one conductor process."""

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

Handler = Callable[[work.Item], None]

#: Seconds to wait before trying again when the work table itself cannot be read.
_TABLE_RETRY = 1.0

#: Seconds by which the look for a row follows its time, since the database rounds that.
_DUE_LATER = 0.002


class Worker:
    """Takes rows and runs up to ``threads`` handlers of each kind in parallel.

    The limit is per kind, so that a slow host, Placement or Nova does not delay binds.
    ``handlers`` maps a kind of work to the function that does it. A handler returns when the work
    is done, raises :class:`work.TryLater` or any other error to be called again after a back-off,
    and calls ``item.checkpoint()`` before it acts.

    :param lease_seconds: how long a lease lasts unless it is renewed
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
        #: New at each start, to tell its items from those of the process before it.
        self.name = f"{name}/{uuid.uuid4().hex[:12]}"
        self._lease = lease_seconds
        self.poll_interval = poll_interval
        self._numbers = itertools.count(1)
        self._limit = threads
        # It starts a thread where none is idle; futurist's would start one for each item.
        self._pool = futures.ThreadPoolExecutor(threads * len(handlers), "work")
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._running: dict[str, work.Item] = {}
        #: The kinds that the last look left out, since no more handlers of them may run.
        self._full: set[str] = set()
        #: When rows that this process gave back are due, by the monotonic clock.
        self._due: list[float] = []
        self._taker = threading.Thread(target=self._take_loop, name="work-claim", daemon=True)
        self._renewer = threading.Thread(target=self._renew_loop, name="work-renew", daemon=True)

    def start(self) -> None:
        """Start to take work."""
        self._taker.start()
        self._renewer.start()

    def kick(self) -> None:
        """Look for work now instead of at the next poll."""
        self._wake.set()

    def stop(self, grace: float) -> None:
        """Take no more, wait ``grace`` seconds for handlers to finish, give back what is left."""
        self._stopping.set()
        self._wake.set()
        self._taker.join()
        deadline = time.monotonic() + grace
        with self._idle:
            self._idle.wait_for(lambda: not self._running, timeout=grace)
            left = list(self._running.values())
        for item in left:
            item.lose()
        if left:
            LOG.warning("Giving back %d unfinished pieces of work", len(left))
            work.hand_back([item.owner for item in left])
        self._pool.shutdown(wait=False)
        self._renewer.join(max(0.0, deadline - time.monotonic()))

    def _take_loop(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the look, so that a kick during the look causes another one.
            self._wake.clear()
            self._forget_due()
            items, more = self._take(self._room())
            with self._idle:
                self._running.update({item.owner: item for item in items})
            for item in items:
                self._pool.submit(self._run, item)
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

    def _back_off(self, item: work.Item, error: str, error_code: str | None = None) -> None:
        due = work.back_off(item, error, error_code) + _DUE_LATER + time.monotonic()
        with self._idle:
            self._due.append(due)
        self._wake.set()

    def _room(self) -> dict[str, int]:
        """The number of handlers of each kind that may begin."""
        with self._idle:
            running = collections.Counter(item.kind for item in self._running.values())
            room = {kind: self._limit - running[kind] for kind in self._handlers}
            self._full = {kind for kind, number in room.items() if number <= 0}
            return room

    def _take(self, room: Mapping[str, int]) -> tuple[list[work.Item], bool]:
        owners = (f"{self.name}#{number}" for number in self._numbers)
        try:
            return work.take(owners, self._lease, room)
        except errors.DatabaseUnreachable:
            LOG.debug("The work table cannot be read now")
        except Exception:
            LOG.warning("Cannot read the work table; trying again", exc_info=True)
        self._stopping.wait(_TABLE_RETRY)
        return [], True

    def _run(self, item: work.Item) -> None:
        # Its request id is then in every log line and every request to another service.
        oslo_context.RequestContext(global_request_id=item.request_id)
        try:
            self._handle(item)
        except work.LeaseLost:
            LOG.warning("Stopped %s/%s: its lease is lost", item.kind, item.key)
        except errors.DatabaseUnreachable:
            LOG.debug("%s/%s stays claimed until its lease ends", item.kind, item.key)
        except Exception:
            # The row stays taken until its lease ends, and is then taken again.
            LOG.exception("Cannot record the outcome of %s/%s", item.kind, item.key)
        finally:
            with self._idle:
                self._running.pop(item.owner, None)
                self._idle.notify_all()
                waited_for = item.kind in self._full
            if waited_for:
                self._wake.set()

    def _handle(self, item: work.Item) -> None:
        LOG.debug("Running %s/%s, attempt %d", item.kind, item.key, item.attempts)
        with metrics.observed(metrics.WORK_SECONDS, kind=item.kind, outcome="lost") as labels:
            try:
                self._handlers[item.kind](item)
            except work.LeaseLost:
                raise
            except (errors.CyborgError, ka_exc.ClientException) as exc:
                level = exc.level if isinstance(exc, errors.CyborgError) else logging.WARNING
                LOG.log(level, "%s/%s is tried again: %s", item.kind, item.key, exc)
                self._back_off(item, str(exc), getattr(exc, "error_code", None))
                labels["outcome"] = "again"
            except Exception as exc:
                LOG.exception("%s/%s met a fault; it is tried again", item.kind, item.key)
                self._back_off(item, errors.told(exc))
                labels["outcome"] = "fault"
            else:
                if not work.finish(item):
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
            items = list(self._running.values())
        try:
            work.renew(items, self._lease)
        except errors.DatabaseUnreachable:
            LOG.debug("The leases of %d rows are not renewed", len(items))
        except Exception:
            LOG.warning("Cannot renew the leases of %d rows", len(items), exc_info=True)
        return bool(items)
