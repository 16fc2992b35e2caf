# SPDX-License-Identifier: Apache-2.0
"""Fake cards whose writes are looked at, in the agent's process, before and after the last byte."""

from __future__ import annotations

import contextlib
import pathlib
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import bitstream_cache
from cyborg.db import models
from cyborg.drivers import base, fake
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import placement_server

#: What begins a line of a card's journal: the first byte of a write, its last one, a power failure.
BEGIN, END, LOST = "begin", "end", "lost"


@dataclass(frozen=True, kw_only=True)
class Card:
    """The hardware, which is some files."""

    folder: pathlib.Path
    name: str
    mode: str
    handles: int

    @property
    def provider(self) -> str:
        return provider_uuid(self.name)

    @property
    def _hardware(self) -> pathlib.Path:
        return self.folder / f"{self.name}.function"

    @property
    def _journal(self) -> pathlib.Path:
        return self.folder / f"{self.name}.journal"

    @property
    def _guests(self) -> pathlib.Path:
        return self.folder / f"{self.name}.guests"

    def make(self) -> None:
        """Let it run nothing."""
        self._guests.mkdir(parents=True)
        self._journal.touch()
        self._hardware.touch()

    def function(self) -> str:
        """What it runs."""
        return self._hardware.read_text()

    def lose(self) -> None:
        """The power fails."""
        self.note(LOST)
        draft = self._hardware.with_suffix(".lost")
        draft.write_text("")
        draft.replace(self._hardware)

    def note(self, what: str, function: str = "") -> None:
        """Write down what happens to it."""
        with self._journal.open("ab", buffering=0) as file:
            file.write(f"{what} {function}\n".encode())

    def journal(self, after: int = 0) -> list[list[str]]:
        """What has happened to it since it was so long."""
        with self._journal.open("rb") as file:
            file.seek(after)
            return [line.split() for line in file.read().decode().splitlines()]

    def length(self) -> int:
        """How long its journal is."""
        return self._journal.stat().st_size

    def is_lost(self) -> bool:
        """Whether its power has failed, and nothing has been written since."""
        marks = [what for what, *_ in self.journal() if what in {END, LOST}]
        return bool(marks) and marks[-1] == LOST

    def enter(self, arq: str, function: str) -> None:
        """A guest runs, which needs that function, if any."""
        (self._guests / arq).write_text(function)

    def leave(self, arq: str) -> None:
        """It does not run any more."""
        (self._guests / arq).unlink(missing_ok=True)

    def needs(self) -> dict[str, str]:
        """The functions that its guests need, by their ARQs."""
        found = {}
        for path in self._guests.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[path.name] = path.read_text()
        return found


@dataclass(frozen=True, kw_only=True)
class Books:
    """Where everything is recorded; nobody can cut these ways to it."""

    database: str
    placement: pathlib.Path
    #: One line for each rule that was broken.
    faults: pathlib.Path

    def blame(self, sentence: str) -> None:
        """A rule is broken."""
        with self.faults.open("ab", buffering=0) as file:
            file.write(f"{time.strftime('%H:%M:%S')} {sentence}\n".encode())


_BOUND = (
    sa.select(models.Arq.uuid, models.Deployable.function_id)
    .join(models.AttachHandle, models.AttachHandle.id == models.Arq.attach_handle_id)
    .join(models.Deployable, models.Deployable.id == models.AttachHandle.deployable_id)
    .where(models.Arq.state == models.BOUND)
)


class Judge:
    """Looks at who has a card, and whether it is on offer, whenever it is written."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._engine = sa.create_engine(books.database, pool_pre_ping=True)

    def look(self, card: Card, what: str, function: str) -> None:
        """Nobody has it or can get it, but those for whom it is written."""
        about = f"at the {what} of a write of {function or 'nothing'} to {card.name}"
        with contextlib.closing(sqlite3.connect(self._books.placement)) as tables:
            free, traits = placement_server.shows(tables, "FPGA").get(card.provider, (0, None))
        if free:
            self._books.blame(f"{about}: Placement offers {free} of it, with {traits}")
        with self._engine.connect() as connection:
            bound = connection.execute(_BOUND.where(models.Deployable.name == card.name)).all()
        for arq, recorded in bound:
            if recorded != function:
                self._books.blame(f"{about}: ARQ {arq} is Bound, and {recorded} is recorded")
        for arq, needed in card.needs().items():
            if needed not in {"", function}:
                self._books.blame(f"{about}: the guest of ARQ {arq} has {needed}")


class Driver(fake.FakeDriver):
    """The fake driver, slow and failing at random."""

    #: Set before it is loaded.
    judge: Judge
    mode: str

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._programs = _Programs(self, conf.fake_driver.state_dir)
        self._chance = random.Random()
        self.present = threading.local()
        self.handles = conf.fake_driver.handles_per_device

    def program(self, target: base.ProgramTarget, bitstream: pathlib.Path) -> base.Programmed:
        """Write, slowly or without success."""
        self.present.function = fake._function_of(bitstream)
        self.present.fate = self._fate()
        # It may be stopped here for long too.
        time.sleep(self._chance.choice([0.0] * 8 + [0.3, 2.5]))
        return super().program(target, bitstream)

    def _fate(self) -> dict[str, Any]:
        fate: dict[str, Any] = {"seconds": self._chance.choice([0.0] * 4 + [0.1, 0.3, 1.5])}
        if self._chance.random() < 0.1:
            fate["fail"] = "out of order"
            fate["fail_at"] = self._chance.choice(["start", "middle", "end"])
        return fate

    def _wanted(self, action: str) -> dict[str, Any]:
        if action == "program":
            return dict(self.present.fate)
        if action in {"prepare", "clean"} and self._chance.random() < 0.05:
            return {"fail": "out of order"}
        return {}


class Cache(bitstream_cache.Cache):
    """The cache of an agent whose Glance sometimes takes long to answer."""

    @contextlib.contextmanager
    def fetched(self, step: rpc.ProgramStep) -> Iterator[pathlib.Path]:
        """Fetch it, at some time."""
        with super().fetched(step) as found:
            time.sleep(random.choice([0.0] * 10 + [1.0, 5.0, 15.0]))
            yield found


class _Programs(fake._Programs):
    """The cards' functions, in files."""

    def __init__(self, driver: Driver, folder: str) -> None:
        super().__init__(folder)
        self._driver, self._cards = driver, pathlib.Path(folder)

    def load(self, deployable: str, function: str) -> None:
        """Write, and be looked at."""
        driver = self._driver
        card = Card(
            folder=self._cards, name=deployable, mode=driver.mode, handles=driver.handles
        )
        what, wanted = END if function else BEGIN, driver.present.function
        driver.judge.look(card, what, wanted)
        if what == BEGIN:
            card.note(what, wanted)
        super().load(deployable, function)
        if what == END:
            card.note(what, wanted)
        driver.judge.look(card, what, wanted)
