# SPDX-License-Identifier: Apache-2.0
"""Which cards are to be withheld while their handles are cleaned, as far as a test knows it.

A card is withheld if it was written for guests who left before that had ended, and nobody has any
of it. It is not if nothing was written while anybody had a handle that is cleaned now. What is
between the two, as where nobody knows whether a write has begun, is left to the code.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import sqlalchemy as sa

from cyborg import db
from cyborg.db import models
from cyborg.function_pools import capacity
from cyborg.programming import operations, program
from cyborg.tests.programmed_cards import FUNCTIONS, Fpga

_HOLDERS = (
    sa.select(
        models.Deployable.name,
        sa.func.coalesce(models.Arq.uuid, models.AttachHandle.left_arq),
        sa.func.coalesce(models.Arq.state, models.DELETING),
    )
    .join(models.AttachHandle, models.AttachHandle.deployable_id == models.Deployable.id)
    .outerjoin(models.Arq, models.Arq.attach_handle_id == models.AttachHandle.id)
    .where(sa.or_(models.Arq.id.is_not(None), models.AttachHandle.is_left))
)
_ACTIVE = sa.select(
    models.Deployable.name, models.Operation.uuid, models.Operation.state
).join(models.Operation, models.Operation.active == models.Deployable.uuid)


@dataclass(slots=True)
class _Write:
    """An operation that has begun to write, and for whom."""

    operation: str
    arqs: set[str] = field(default_factory=set)
    has_written: bool = False


class Ledger:
    """What is known of the cards, by their names."""

    def __init__(self) -> None:
        self._writes: dict[str, _Write] = {}
        #: The ARQs that left before a write for them had ended, or for which it has failed.
        self._deserters: defaultdict[str, set[str]] = defaultdict(set)
        #: All that had a handle at some moment at which the card may have been written.
        self._touched: defaultdict[str, set[str]] = defaultdict(set)
        #: The operations that an operator has asked for or joined.
        self.wanted: set[str] = set()

    def begin(self, deployable_uuid: str) -> None:
        """An operation has noted that it begins to write."""
        with db.reader() as session:
            row = models.Deployable
            name = session.scalars(sa.select(row.name).where(row.uuid == deployable_uuid)).one()
            operation = operations.active_on(session, deployable_uuid)
            held = _held(session.execute(_HOLDERS.where(row.name == name)))[name]
            waits = sa.select(models.Arq.id).join(row, row.rp_uuid == models.Arq.device_rp_uuid)
            waits = waits.where(row.name == name, models.Arq.state == models.BIND_STARTED)
            is_awaited = bool(session.scalars(waits).all())
        assert operation is not None
        assert is_awaited or operation.consumer_uuid is None or operation.uuid in self.wanted
        before = self._writes.get(name)
        if before is None or before.operation != operation.uuid or not before.has_written:
            before = self._writes[name] = _Write(operation.uuid)
        before.arqs |= _serving(held)

    def write(self, card: Fpga) -> None:
        """Its first byte is written."""
        with db.reader() as session:
            held = _held(session.execute(_HOLDERS.where(models.Deployable.name == card.name)))
        if card.name in self._writes:
            self._writes[card.name].has_written = True
            self._writes[card.name].arqs |= _serving(held[card.name])
        self._touched[card.name] |= held[card.name].keys()

    def look(self, connection: sa.Connection) -> defaultdict[str, dict[str, str]]:
        """See what has ended; by the cards, the states of the ARQs that have a handle."""
        held = _held(connection.execute(_HOLDERS))
        active = {name: (uuid, state) for name, uuid, state in connection.execute(_ACTIVE)}
        for name, (_, state) in active.items():
            if state == operations.WRITING:
                self._touched[name] |= held[name].keys()
                if name in self._writes and self._writes[name].operation == active[name][0]:
                    # Whoever has joined since it began.
                    self._writes[name].arqs |= _serving(held[name])
        for name, write in list(self._writes.items()):
            if active.get(name, ("", ""))[0] != write.operation:
                self._end(connection, name, held[name])
        for name in {*self._deserters, *self._touched}:
            waiting = {arq for arq, state in held[name].items() if state != models.BOUND}
            self._deserters[name] &= waiting
            self._touched[name] &= held[name].keys()
        return held

    def _end(self, connection: sa.Connection, name: str, held: dict[str, str]) -> None:
        write, row = self._writes.pop(name), models.Operation
        state = connection.scalar(sa.select(row.state).where(row.uuid == write.operation))
        if write.has_written:
            self._deserters[name] |= write.arqs & held.keys()
            if state == operations.SUCCEEDED:
                self._deserters[name] -= _serving(held)

    def is_deserted(self, card: Fpga, held: dict[str, str]) -> bool:
        """Whether it is to be withheld."""
        return bool(self._deserters[card.name] - _serving(held)) and not _serving(held)

    def is_untouched(self, card: Fpga, held: dict[str, str]) -> bool:
        """Whether it is not to be withheld while handles are cleaned."""
        return self._touched[card.name].isdisjoint(held.keys() - _serving(held))


def _held(rows: sa.Result[str, str, str]) -> defaultdict[str, dict[str, str]]:
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, arq, state in rows:
        found[name][arq] = state
    return found


def _serving(held: dict[str, str]) -> set[str]:
    return {arq for arq, state in held.items() if state in models.SERVING}


_ROWS = (
    sa.select(models.Deployable, models.Device.status, capacity.is_programmed_now())
    .join(models.Device, models.Device.id == models.Deployable.device_id)
    .order_by(models.Deployable.id)
)


def assert_offers(
    ledger: Ledger, held: dict[str, dict[str, str]], offers: dict[str, tuple[Fpga, int]]
) -> None:
    """What Placement offers of each card is what of it can be given out, and pools count the same.

    ``offers`` has the cards by their names, with what Placement offers of each, which is up to
    date.
    """
    slots = dict.fromkeys(FUNCTIONS, 0)
    plain = {program.plain(each): each for each in FUNCTIONS}
    with db.reader() as session:
        rows = session.execute(_ROWS).all()
        of_all = session.execute(sa.select(capacity.ready_of(plain)))
        ready = {plain[each.function_plain]: int(each.slots) for each in of_all}
    for row, status, is_programmed in rows:
        card, free = offers[row.name]
        its = held[row.name]
        served = len(_serving(its))
        if ledger.is_deserted(card, its):
            assert free == 0
        elif status == models.ENABLED and _may_be_offered(row) and ledger.is_untouched(card, its):
            assert free == card.handles - (len(its) - served)
        if row.function_id is not None and row.is_settled and not is_programmed:
            slots[row.function_id] += max(0, free - served)
    assert slots == dict.fromkeys(FUNCTIONS, 0) | ready


def _may_be_offered(row: models.Deployable) -> bool:
    """Whether nothing but a handle that is cleaned could keep it from being offered."""
    is_left_over = row.function_shown == models.LEFT_OVER
    is_wiped = row.blank_image is not None and row.bitstream_id is None
    runs_nothing = row.function_id is None and row.bitstream_id is None
    needs_program = row.program_mode == "single-program" and runs_nothing
    return row.is_settled and not (row.missing or is_left_over or is_wiped or needs_program)
