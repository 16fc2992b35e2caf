# SPDX-License-Identifier: Apache-2.0
"""Histories of cards: programs, guests, power failures, as chance will have them."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from cyborg import db
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import giving_up, release
from cyborg.policy import context
from cyborg.programming import cancellation, operations, program
from cyborg.tests.boots import target
from cyborg.tests.partitions.cards import BEGIN, END, Card
from cyborg.tests.partitions.cloud import Cloud, Host

#: Seconds within which all about a card comes to rest, whatever befalls the services meanwhile.
PATIENCE = 300.0
#: Seconds after which nothing more befalls the services until it has come to rest.
_MERCY = 30.0
_POLL = 0.15

#: The function that a guest with a device profile has, if that is not any.
EXPECTED = {
    "any": None,
    "aes": "aes",
    "zip": "zip",
    "image": "aes",
    "named": "zip",
    "needs aes": "aes",
}
NEEDED = program.function_trait("FAKE", "aes")


def profiles(image: str) -> dict[str, dict[str, str]]:
    """What is asked for, by the names of the device profiles."""
    return {
        "any": {},
        "aes": {"accel:function_id": "aes"},
        "zip": {"accel:function_id": "zip"},
        "image": {"accel:bitstream_id": image},
        "named": {"accel:function_name": "Zip"},
        "needs aes": {f"trait:{NEEDED}": "required"},
    }


@dataclass
class Guest:
    """An instance with a request for an accelerator."""

    uuid: str
    arq: str
    profile: str
    #: What it has, from when it runs; empty if it needs nothing, or nobody knows.
    got: str = ""
    is_running: bool = False
    #: How long the card's journal was when it began to run.
    since: int = 0


@dataclass
class Tally:
    """What has happened in all histories."""

    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """Another one."""
        with self.lock:
            self.counts[what] += 1


class Life:
    """All histories of one card, one after the other."""

    def __init__(
        self,
        cloud: Cloud,
        host: Host,
        card: Card,
        ctx: context.RequestContext,
        image: str,
        tally: Tally,
    ) -> None:
        self._cloud = cloud
        self._host = host
        self.card = card
        self._ctx = ctx
        self._image = image
        self._tally = tally
        self._lock = host.locks[card.name]
        self._guests: list[Guest] = []
        #: Consumers that have an allocation and no guest any more.
        self._leftovers: list[str] = []
        host.leave.append(self._leave)

    def live(self, chance: random.Random) -> None:
        """One history; all has come to rest at its end."""
        actions: list[tuple[int, Callable[[random.Random], None]]] = [
            (6, self._boot),
            (3, self._program),
            (2, self._delete),
            (1, self._lose),
            (1, self._cancel),
            (1, self._force),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(chance.randint(4, 8)):
            (action,) = chance.choices([each for _, each in actions], weights)
            with self._lock:
                self._look()
                action(chance)
            self._pause(chance)
        self._rest()
        self._tally.count("histories")

    def _pause(self, chance: random.Random) -> None:
        """Go on at once, or soon, or when what was asked for is decided or takes long."""
        patience = chance.choice([0.0, 0.3, 60.0, 60.0])
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            time.sleep(min(patience, _POLL))
            with self._lock:
                self._look()
            if patience > 1.0 and self._is_quiet():
                return

    def _is_quiet(self) -> bool:
        """Whether nothing is under way."""
        query = sa.select(models.Operation.id).join(
            models.Deployable, models.Deployable.uuid == models.Operation.active
        )
        with db.reader() as session:
            active = session.scalar(query.where(models.Deployable.name == self.card.name))
        return active is None and all(guest.is_running for guest in self._guests)

    # What happens.

    def _row(self) -> models.Deployable | None:
        row = models.Deployable
        with db.reader() as session:
            return session.scalar(sa.select(row).where(row.name == self.card.name))

    def _program(self, chance: random.Random) -> None:
        row = self._row()
        if row is None:
            return
        aes = program.Program(image_uuid=self._image)
        whats = [program.Program(function_id=each) for each in ("aes", "zip")]
        with contextlib.suppress(errors.Conflict, errors.NotFound):
            operations.ask(row.uuid, chance.choice([*whats, aes]), "user admin")
            self._tally.count("programs")

    def _cancel(self, _chance: random.Random) -> None:
        row = self._row()
        if row is None:
            return
        with db.reader() as session:
            active = operations.active_on(session, row.uuid)
        if active is not None:
            with contextlib.suppress(errors.Conflict):
                cancellation.cancel(active.uuid, "user admin")
                self._tally.count("cancelled")

    def _lose(self, _chance: random.Random) -> None:
        self.card.lose()
        self._tally.count("power failures")

    def _boot(self, chance: random.Random) -> None:
        profile = chance.choice(sorted(EXPECTED))
        uuid, provider = models.new_uuid(), self.card.provider
        free, traits = self._cloud.placement.shows("FPGA").get(provider, (0, frozenset()))
        if not free or (profile == "needs aes" and NEEDED not in traits):
            return
        if not self._cloud.placement.claims(uuid, provider, FPGA=1):
            return
        (arq,) = service.create(self._ctx, profile)
        at = target(uuid, device_rp_uuid=provider, hostname=self._host.name)
        try:
            binding.request_changes(self._ctx, {arq.uuid: at}, [])
        except errors.CyborgError:
            release.delete_arqs(self._ctx, [arq.uuid])
            self._leftovers.append(uuid)
        else:
            self._guests.append(Guest(uuid, arq.uuid, profile))
            self._tally.count("boots")

    def _delete(self, chance: random.Random) -> None:
        if self._guests:
            self._end(self._guests.pop(chance.randrange(len(self._guests))))

    def _force(self, chance: random.Random) -> None:
        """An administrator knows that an instance is no more, before Nova does."""
        if self._guests:
            guest = self._guests.pop(chance.randrange(len(self._guests)))
            self._bid_farewell(guest)
            with contextlib.suppress(errors.Conflict, errors.NotFound):
                giving_up.release_arq(self._ctx, guest.arq, force=True)
            self._end(guest)

    def _end(self, guest: Guest) -> None:
        self._bid_farewell(guest)
        release.delete_instance_arqs(self._ctx, guest.uuid)
        self._leftovers.append(guest.uuid)

    def _leave(self) -> None:
        """The host's record is about to be removed: its guests run no more."""
        for guest in self._guests:
            self._bid_farewell(guest)

    # What a guest sees.

    def _look(self) -> None:
        """Guests begin to run when their requests are Bound."""
        states = self._states()
        for guest in list(self._guests):
            state = states.get(guest.arq)
            if state == models.BOUND and not guest.is_running:
                self._run(guest)
            elif state in {None, models.BIND_FAILED}:
                self._tally.count("failed binds")
                self._guests.remove(guest)
                self._end(guest)

    def _states(self) -> dict[str, str]:
        row = models.Arq
        query = sa.select(row).where(row.uuid.in_([guest.arq for guest in self._guests]))
        with db.reader() as session:
            return {arq.uuid: arq.state for arq in session.scalars(query)}

    def _run(self, guest: Guest) -> None:
        """It finds what it has asked for."""
        card, expected = self.card, EXPECTED[guest.profile]
        guest.is_running, guest.since = True, card.length()
        has, is_lost = card.function(), card.is_lost()
        self._tally.count("guests")
        guest.got = expected or ("" if is_lost else has)
        card.enter(guest.arq, guest.got)
        if not is_lost and (guest.got != has or (card.mode == base.SINGLE_PROGRAM and not has)):
            self._blame(guest, f"finds {has!r}")

    def _bid_farewell(self, guest: Guest) -> None:
        """It still has what it has found, but for what the power failure took."""
        if not guest.is_running:
            return
        guest.is_running = False
        card = self.card
        has, is_lost = card.function(), card.is_lost()
        card.leave(guest.arq)
        if has != guest.got and not is_lost and guest.got:
            self._blame(guest, f"has {has!r} at its end")
        for what, *function in card.journal(guest.since):
            if what in {BEGIN, END} and guest.got not in {"", *function}:
                self._blame(guest, f"has had a {what} of a write of {function}")

    def _blame(self, guest: Guest, what: str) -> None:
        self._cloud.books.blame(f"{guest} on {self.card.name} {what}: {self.card.journal()}")

    # What remains.

    def _rest(self) -> None:
        """All guests go, and what is left to be done is done."""
        with self._lock:
            while self._guests:
                self._end(self._guests.pop())
        began, name = time.monotonic(), self.card.name
        while found := self._unrest():
            took = time.monotonic() - began
            if took > PATIENCE:
                self._cloud.books.blame(f"{name} does not come to rest: {found}")
                break
            if took > _MERCY:
                self._cloud.waiting.add(name)
            time.sleep(_POLL)
        self._cloud.waiting.discard(name)

    def _unrest(self) -> str:
        """What is not as it should be at rest."""
        with self._lock:
            while self._leftovers:
                self._cloud.placement.release(self._leftovers.pop())
        card, row = self.card, self._row()
        if row is None:
            return "it is not reported"
        runs = card.function()
        if not row.is_settled or (row.function_id or "") != runs:
            return f"{row.function_id} is recorded as {row.program_state}, and it runs {runs!r}"
        with db.reader() as session:
            if operations.active_on(session, row.uuid) is not None:
                return "an operation has not ended"
        free, traits = self._cloud.placement.shows("FPGA").get(card.provider, (0, frozenset()))
        wanted = card.handles if runs or card.mode == base.DYNAMIC else 0
        shown = {trait for trait in traits if "FUNCTION_ID" in trait}
        expected = {program.function_trait("FAKE", runs)} if runs else set()
        if free != wanted or shown != expected:
            return f"Placement offers {free} of it with {shown}, and it runs {runs!r}"
        return ""
