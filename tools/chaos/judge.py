# SPDX-License-Identifier: Apache-2.0
"""The checks after a round, when everything runs again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from cloud import HOSTS, Cloud, say
from guests import Crowd
from ledger import Ledger, improper_steps, read_steps
from oslo_db import exception as db_exc
from waiting import until

from cyborg import db
from cyborg.common import errors
from cyborg.db import models

#: Seconds after the last restart in which every ARQ is final.
FINAL_SECONDS = 60.0
#: Seconds after which no work is left. Some of it waits for other services, which may be slow.
REST_SECONDS = 150.0
_POLL = 0.2
#: If a wait takes more seconds than this, its last cause is printed.
_LONG = 10.0

_FINAL = (models.INITIAL, models.UNBOUND, models.BOUND, models.BIND_FAILED)


def _read(query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
    """All rows; of a cluster another server may just be taken, or be too late the first time."""
    (rows,) = until("an answer of the database", lambda: _try_to_read(query))
    return rows


def _try_to_read(query: sa.Select[Any]) -> tuple[Sequence[sa.Row[Any]]] | None:
    with contextlib.suppress(errors.ServiceUnavailable, db_exc.DBError), db.reader() as session:
        return (session.execute(query).all(),)
    return None


class Judge:
    """Checks the cloud after a round, and records every violation."""

    def __init__(self, cloud: Cloud, ledger: Ledger, crowd: Crowd) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._crowd = crowd
        #: The longest waits, in seconds: until all ARQs were final, and until no work was left.
        self.longest_final = self.longest_rest = 0.0

    def judge(self) -> None:
        """Wait until everything is done, for a limited time, and check."""
        begin = time.monotonic()
        final = self._await("final", begin + FINAL_SECONDS, self._unfinished)
        rest = self._await("at rest", begin + REST_SECONDS, self._left)
        self.longest_final = max(self.longest_final, final - begin)
        self.longest_rest = max(self.longest_rest, rest - begin)
        for sentence in self._wrong():
            self._ledger.violate(sentence)
        say(f"all final after {final - begin:.1f} s, at rest after {rest - begin:.1f} s")

    def held(self) -> list[str]:
        """The ARQs that hold an attach handle, or have left one that is not clean."""
        handle = models.AttachHandle
        left = sa.select(handle.left_arq).where(handle.is_left)
        query = sa.select(models.Arq.uuid).where(models.Arq.attach_handle_id.is_not(None))
        return [uuid for (uuid,) in _read(query.union(left))]

    def _await(self, what: str, deadline: float, left: Callable[[], list[str]]) -> float:
        """Wait until nothing is left; return when. At the deadline, what is left is a violation."""
        begin, last = time.monotonic(), list[str]()
        while found := left():
            last = found
            if time.monotonic() > deadline:
                for sentence in found:
                    self._ledger.violate(f"Not {what} in time: {sentence}")
                break
            time.sleep(_POLL)
        if time.monotonic() > begin + _LONG and last:
            say(f"{what} last of all: {last[-1]}")
        return time.monotonic()

    def _unfinished(self) -> list[str]:
        """The ARQs that are not in a final state, or whose handle waits for its host."""
        arq = models.Arq
        handle = models.AttachHandle
        left = sa.select(handle.left_arq, handle.state, handle.id).where(handle.is_left)
        query = sa.select(arq.uuid, arq.state, arq.attach_handle_id)
        rows = _read(query.where(arq.state.not_in(_FINAL)).union(left))
        return [f"ARQ {uuid} is {state}, handle {id_}" for uuid, state, id_ in rows]

    def _left(self) -> list[str]:
        """The work that is not done, and the clients that still wait for something."""
        row = models.Work
        rows = _read(sa.select(row.kind, row.key, row.attempts, row.last_error))
        work = [
            f"{kind}/{key}, {attempts} attempts: {error}" for kind, key, attempts, error in rows
        ]
        return [*work, *(f"a client {stage}" for stage in self._crowd.busy())]

    def _wrong(self) -> Iterator[str]:
        yield from self._cloud.check()
        yield from self._wrong_handles()
        yield from self._wrong_events()
        yield from self._wrong_steps()

    def _wrong_handles(self) -> Iterator[str]:
        """Violations of: each handle is free, or held by an ARQ that its guest knows."""
        query = sa.select(models.Arq.uuid, models.AttachHandle.uuid, models.Arq.state).outerjoin(
            models.AttachHandle, models.AttachHandle.id == models.Arq.attach_handle_id
        )
        rows = _read(query)
        held = {arq: handle for arq, handle, _ in rows if handle}
        known = {arq for guest in self._crowd.sleeping() for arq in guest.arqs}
        seen = self._ledger.handles()
        for arq in held.keys() - seen.keys():
            yield f"Leaked: ARQ {arq} holds attach handle {held[arq]}, but no guest knows it."
        for arq, handle in seen.items():
            if held.get(arq) != handle:
                yield f"ARQ {arq} was given {handle} and holds {held.get(arq)}."
        unknown = {arq: state for arq, _, state in rows if arq not in known}
        for arq, state in unknown.items():
            # An Initial one was created by an API that was killed before it answered.
            if state != models.INITIAL:
                yield f"ARQ {arq} is {state}, but no guest has it."
        self._ledger.counts["ARQs whose creation was never answered"] = len(unknown)

    def _wrong_events(self) -> Iterator[str]:
        taken = self._crowd.events.taken()
        for guest in self._crowd.sleeping():
            for arq, status in guest.outcome.items():
                self._ledger.count("events checked")
                if not taken[guest.uuid, arq, status]:
                    yield f"Lost: the event {status} of ARQ {arq}, instance {guest.uuid}."

    def _wrong_steps(self) -> Iterator[str]:
        tenures = self._ledger.tenures()
        for host, steps in HOSTS.items():
            if steps:
                own = [tenure for tenure in tenures if tenure.hostname == host]
                yield from improper_steps(own, read_steps(self._cloud.steps(host)))
