# SPDX-License-Identifier: Apache-2.0
"""A host with FPGAs whose agent and whose Glance a test decides on, step by step."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NoReturn

import jsonschema
import pytest
import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, profiles, rpc, work
from cyborg.db import models
from cyborg.peers import glance
from cyborg.programming import operation_steps, states, withdrawal, write_permits
from cyborg.tests import deserted_cards, hosts
from cyborg.tests.cloud import Cloud, Killed
from cyborg.tests.programmed_cards import (
    IMAGES,
    PROFILES,
    Fpga,
    Guest,
    Pass,
    Record,
    function_of,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is looked at after each step."""

    #: By the ARQs that are Bound the numbers of their handles.
    bound: dict[str, int]
    #: What is recorded of each deployable, by its name, and the names of those not settled.
    records: dict[str, Record]
    unsettled: frozenset[str]
    #: By the cards' names the states of the ARQs that have a handle.
    held: dict[str, dict[str, str]]
    #: Whether Placement has yet to be updated.
    placement_lags: bool


_HELD = sa.select(models.Arq.uuid, models.AttachHandle.attach_info).join(
    models.AttachHandle, models.AttachHandle.id == models.Arq.attach_handle_id
)
_BOUND = _HELD.where(models.Arq.state == models.BOUND)
_RECORDS = sa.select(
    models.Deployable.name,
    models.Deployable.is_settled,
    models.Deployable.bitstream_id,
    models.Deployable.function_id,
    models.Deployable.function_name,
)
#: What the table of states permits; what settles may turn out not to be programmable any more.
_PERMITTED = {
    (before, end)
    for (before, _), after in states.TABLE.items()
    for end in ({after, models.UNMANAGED} if after in models.SETTLED else {after})
}
#: Notes each change of a program's state that is committed, whoever made it.
_MADE_CHANGES = (
    "CREATE TABLE program_changes (before_it VARCHAR(16), after_it VARCHAR(16),"
    " UNIQUE (before_it, after_it))"
)
_NOTE_CHANGES = {
    "sqlite": (
        """
        CREATE TRIGGER note_program_change AFTER UPDATE OF program_state ON deployables
        WHEN OLD.program_state <> NEW.program_state
        BEGIN
            INSERT OR IGNORE INTO program_changes VALUES (OLD.program_state, NEW.program_state);
        END
        """,
    ),
    "mysql": (
        """
        CREATE TRIGGER note_program_change AFTER UPDATE ON deployables FOR EACH ROW
        INSERT IGNORE INTO program_changes SELECT OLD.program_state, NEW.program_state
        FROM DUAL WHERE OLD.program_state <> NEW.program_state
        """,
    ),
    "postgresql": (
        """
        CREATE FUNCTION note_program_change() RETURNS trigger AS $$
        BEGIN
            INSERT INTO program_changes VALUES (OLD.program_state, NEW.program_state)
            ON CONFLICT DO NOTHING;
            RETURN NULL;
        END
        $$ LANGUAGE plpgsql
        """,
        """
        CREATE TRIGGER note_program_change AFTER UPDATE ON deployables FOR EACH ROW
        WHEN (OLD.program_state <> NEW.program_state) EXECUTE FUNCTION note_program_change()
        """,
    ),
}
_CHANGES = sa.text("SELECT before_it, after_it FROM program_changes")
_PLACEMENT_WORK = sa.select(models.Work.id).where(models.Work.kind == work.PLACEMENT)


class Fpgas(Cloud):
    """A host with FPGAs. Its agent does what it is told, and looks at what it is told."""

    #: Of the cards "a", "b" and "c".
    modes: tuple[str, str, str] = ("single-program", "dynamic", "dynamic")

    @property
    def on_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def renew(self) -> None:
        super().renew()
        self.fpgas = {
            "a": Fpga("a", self.modes[0], 2),
            "b": Fpga("b", self.modes[1], 1),
            "c": Fpga("c", self.modes[2], 4, stepped=True),
        }
        for name, keys in PROFILES.items():
            groups = [{"resources:FPGA": "1"} | keys]
            profiles.create_profile(name=name, groups=groups, description=None, uuid=None)
        #: The image that Glance finds for each function, whose name is that of its images.
        self.newest = {"aes": IMAGES["aes-1"], "zip": IMAGES["zip-1"]}
        #: Whether Glance answers.
        self.finds = True
        #: Which agent it is, and how often it has looked at the hardware.
        self.started, self.passes = 1, 0
        #: Whom Placement has given some of a card, and who have not asked Cyborg for it yet.
        self.claimed: list[Guest] = []
        #: Numbers of the handles that are prepared for a guest.
        self.prepared: set[int] = set()
        #: Whether Placement is updated as soon as an operation waits for that.
        self.updates_placement = True
        self._works = False
        self.ledger = deserted_cards.Ledger()
        #: What became of the writes that have ended, by their operations and numbers.
        self.written: dict[tuple[str | None, int], rpc.ProgramAnswer | rpc.ProgramFailed] = {}
        #: What happens in the middle of the next step, and while Glance is asked the next time.
        self.meanwhile: Callable[[], None] | None = None
        self.while_asked: Callable[[], None] | None = None

    def do_one(self, kinds: Collection[str] | None = None) -> bool:
        self._works = True
        try:
            return super().do_one(kinds)
        finally:
            self._works = False

    def kick(self) -> None:
        """Another conductor updates Placement while an operation waits for that."""
        if self._works and self.updates_placement:
            self.do_one([work.PLACEMENT])

    def begin_to_write(
        self, item: work.Item, begin: Callable[[work.Item], bool] = operation_steps.begin_to_write
    ) -> bool:
        """The conductor notes that it begins."""
        began = begin(item)
        if began:
            self.ledger.begin(item.key)
        return began

    def begin_pass(self) -> Pass:
        """The agent looks at its hardware."""
        self.passes += 1
        report = hosts.report(
            *(card.device() for card in self.fpgas.values()), order=(self.started, self.passes)
        )
        misread = frozenset(each.letter for each in self.fpgas.values() if each.misread)
        for card in self.fpgas.values():
            card.misread = False
        losses = {letter: card.losses for letter, card in self.fpgas.items()}
        return Pass(report, losses, misread)

    def run_program(
        self, conf: cfg.ConfigOpts, host: str, step: rpc.ProgramStep, timeout: float
    ) -> rpc.ProgramAnswer:
        """The agent's side, which makes no write twice."""
        self._refuse(step)
        number = (step.operation_uuid, step.write)
        if number not in self.written or self._has_lost(step, self.written[number]):
            try:
                self.written[number] = self._write(host, step)
            except rpc.ProgramFailed as exc:
                self.written[number] = exc
            self._answer()
        known = self.written[number]
        if isinstance(known, rpc.ProgramFailed):
            raise rpc.ProgramFailed(
                str(known), written=known.written, report_counter=self.passes
            )
        return dataclasses.replace(known, report_counter=self.passes)

    def _card(self, step: rpc.ProgramStep) -> Fpga:
        (card,) = (card for card in self.fpgas.values() if card.name == step.deployable)
        return card

    def _has_lost(
        self, step: rpc.ProgramStep, written: rpc.ProgramAnswer | rpc.ProgramFailed
    ) -> bool:
        """Whether a layout that was given is not there any more: it is looked at each time."""
        is_given = not step.image_uuid and isinstance(written, rpc.ProgramAnswer)
        return is_given and self._card(step).loaded != step.function_id

    def _write(self, host: str, step: rpc.ProgramStep) -> rpc.ProgramAnswer:
        card = self._card(step)
        if card.child is not None:
            raise rpc.HostStepRunning("what was started before still writes it")
        self._meet()
        # Whatever has happened since it was asked.
        assert write_permits.permit_write(_request(host, step)).refused is None
        if self.agent == "fails at the start":
            raise rpc.ProgramFailed(
                "it cannot be read", written=False, report_counter=self.passes
            )
        image = step.image_uuid or f"layout {step.function_id}"
        if not self._is_in_use(card, image):
            card.before = ""
        card.image, card.lost = "", False
        self.ledger.write(card)
        if self.agent == "fails":
            raise rpc.ProgramFailed(
                "it cannot be written", written=True, report_counter=self.passes
            )
        if self.agent == "kills":
            raise Killed
        if self.agent == "dies":
            card.child = image
            self._die()
        card.load(image)
        return rpc.ProgramAnswer(
            function=card.loaded, verified_by="a look", report_counter=self.passes
        )

    def run_host_step(
        self, conf: cfg.ConfigOpts, host: str, step: rpc.HostStep, timeout: float
    ) -> None:
        """The same for a handle."""
        number = int(step.attach_info["device"], 16)
        (card,) = (card for card in self.fpgas.values() if number in card.numbers)
        self._refuse(step)
        # Its program comes first, and it is not written before the handle is clean.
        assert card.child is None
        self._meet()
        if self.agent == "kills":
            raise Killed
        if self.agent == "dies":
            self._die()
        if self.agent in {"fails", "fails at the start"}:
            raise rpc.HostStepFailed(f"cannot {step.action} it")
        if step.action == "prepare":
            self.prepared.add(number)
        else:
            self.prepared.discard(number)
        self._answer()

    def _meet(self) -> None:
        happen, self.meanwhile = self.meanwhile, None
        if happen is not None:
            happen()

    def _refuse(self, step: rpc.HostStep | rpc.ProgramStep) -> None:
        if self.agent == "is away":
            raise rpc.HostUnreachable("the agent does not answer")
        if step.agent_started < self.started:
            raise rpc.HostStepRunning("the agent has started again since; it reports first")

    def _die(self) -> NoReturn:
        """The agent ends in the middle, and another one begins."""
        self.agent = "works"
        self.started, self.passes = self.started + 1, 0
        raise rpc.HostUnreachable("the agent is gone")

    def _answer(self) -> None:
        if self.agent == "is not heard":
            raise rpc.HostUnreachable("the agent's answer is lost")

    def _is_in_use(self, card: Fpga, image: str) -> bool:
        """Whether anybody has the card that is about to be written, or had: not if with news."""
        handle, arq = models.AttachHandle, models.Arq
        query = (
            sa.select(arq.id)
            .join(handle, handle.id == arq.attach_handle_id)
            .join(models.Deployable, models.Deployable.id == handle.deployable_id)
            .where(models.Deployable.name == card.name, arq.state == models.BOUND)
        )
        with db.reader() as session:
            guests = session.scalars(query).all()
        # What guests have left is overwritten before their handles are cleaned.
        kept = not card.wiped and not self.prepared.isdisjoint(card.numbers)
        in_use = bool(guests) or kept
        # What was lost may be put back under guests, and under handles that they have just left.
        known = self.look().records[card.name].image is not None
        assert not in_use or image == card.before or not known
        assert not in_use or function_of(image) == function_of(card.before)
        # Nor has anybody been given it, or can be.
        puts_back = card.before and function_of(image) == function_of(card.before)
        assert puts_back or all(each.card is not card for each in self.claimed)
        assert self.free(card) == 0
        return in_use

    def look(self) -> Seen:
        """What Cyborg says of guests, and whether Placement knows it."""
        with self._engine.connect() as connection:
            bound = {uuid: _number(info) for uuid, info in connection.execute(_BOUND)}
            rows = connection.execute(_RECORDS).all()
            records = {name: Record(*record) for name, _, *record in rows}
            changes = {(before, after) for before, after in connection.execute(_CHANGES)}
            assert changes <= _PERMITTED
            unsettled = frozenset(name for name, is_settled, *_ in rows if not is_settled)
            held = self.ledger.look(connection)
            lags = connection.scalar(_PLACEMENT_WORK) is not None
            return Seen(bound, records, unsettled, held, placement_lags=lags)

    def row(self, card: Fpga) -> models.Deployable:
        """The card's deployable, with its device."""
        row = models.Deployable
        query = sa.select(row).where(row.name == card.name).options(orm.joinedload(row.device))
        with db.reader() as session:
            return session.scalars(query).one()

    def number_of(self, arq: str) -> int | None:
        """The number of the handle that an ARQ has."""
        with self._engine.connect() as connection:
            found = connection.execute(_HELD.where(models.Arq.uuid == arq)).one_or_none()
        return _number(found[1]) if found else None

    def free(self, card: Fpga) -> int:
        """How many of the card's handles Placement reserves for nobody."""
        return self.placement.shows("FPGA").get(card.provider, (0, frozenset()))[0]

    def claim(self, guest: Guest) -> bool:
        """Have Placement give some of its card to the guest, if it has what that needs."""
        provider = guest.card.provider
        if provider not in self.placement.candidates("FPGA"):
            return False
        keys = PROFILES[guest.profile]
        required = {key.partition(":")[2] for key in keys if key.startswith("trait:")}
        if not required <= self.placement.shows("FPGA")[provider][1]:
            return False
        self.placement.allocate(guest.uuid, provider, FPGA=1)
        return True

    def find_image(self, conf: cfg.ConfigOpts, **what: str | None) -> glance.Image:
        """Glance's side."""
        if not self.finds:
            raise ka_exc.ConnectFailure("Glance is away")
        happen, self.while_asked = self.while_asked, None
        if happen is not None:
            happen()
        name = what["function_id"] or what["name"] or what["function_name"] or ""
        uuid = what["uuid"] or self.newest[name.lower()]
        function = function_of(uuid)
        return glance.Image(
            uuid=uuid,
            name=function,
            size=1,
            hash_algo="sha512",
            hash_value="0",
            checksum=None,
            status="active",
            properties={glance.FUNCTION_ID: function, glance.FUNCTION_NAME: function.title()},
        )


def _request(host: str, step: rpc.ProgramStep) -> rpc.WriteRequest:
    return rpc.WriteRequest(
        host=host,
        deployable_uuid=step.deployable_uuid,
        operation_uuid=step.operation_uuid,
        write=step.write,
    )


def _number(attach_info: str) -> int:
    return int(json.loads(attach_info)["device"], 16)


@pytest.fixture
def fpgas(conf, database, ctx, placement, monkeypatch) -> Iterator[Fpgas]:
    """The host; ``renew`` begins a history of it."""
    conf.set_override("auth_type", "none", group="glance")
    # The same thread would have to update Placement meanwhile.
    monkeypatch.setattr(withdrawal, "PLACEMENT_WAIT", 0.0)
    # Placement has each of its own schemas checked with each request.
    monkeypatch.setattr(jsonschema.Draft202012Validator, "check_schema", lambda *_, **__: None)
    with database.begin() as connection:
        for statement in (_MADE_CHANGES, *_NOTE_CHANGES[database.dialect.name]):
            connection.execute(sa.text(statement))
    found = Fpgas(conf, ctx, placement)
    monkeypatch.setattr(operation_steps, "begin_to_write", found.begin_to_write)
    monkeypatch.setattr(rpc, "kick", found.kick)
    monkeypatch.setattr(rpc, "run_program", found.run_program)
    monkeypatch.setattr(rpc, "run_host_step", found.run_host_step)
    monkeypatch.setattr(db, "write", found.write)
    monkeypatch.setattr(glance, "find_image", found.find_image)
    # First of all: who is killed has ended nothing.
    sa.event.listen(database, "commit", found.before_commit, insert=True)
    sa.event.listen(orm.Session, "after_commit", found.after_commit)
    yield found
    sa.event.remove(orm.Session, "after_commit", found.after_commit)
    sa.event.remove(database, "commit", found.before_commit)
