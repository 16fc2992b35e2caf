# SPDX-License-Identifier: Apache-2.0
"""A host with FPGAs whose agent and whose Glance a test decides on, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jsonschema
import pytest
import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import context, db, glance, profiles, rpc, work
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.changes import provider_uuid
from cyborg.programming import steps
from cyborg.tests import hosts
from cyborg.tests.cloud import Cloud, Killed
from cyborg.tests.placement_server import PlacementServer

#: Functions, each with its image.
IMAGES = {"aes": models.new_uuid(), "zip": models.new_uuid()}
PROFILES = {"any": {}, **{name: {"accel:function_id": name} for name in IMAGES}}


@dataclass(slots=True)
class Fpga:
    """A card as it is, whoever knows."""

    letter: str
    mode: str
    handles: int
    #: What the hardware runs.
    loaded: str = ""
    #: What it ran when its program was lost.
    before: str = ""
    #: It was lost, and Placement has not been told: nobody has looked, or nobody has said so.
    lost: bool = False
    looked_at: bool = True

    @property
    def name(self) -> str:
        return f"host-1_{self.letter}"

    @property
    def provider(self) -> str:
        return provider_uuid(self.name)

    def device(self) -> base.Device:
        """The card as its driver finds it."""
        first = ord(self.letter) * 4
        part = hosts.deployable(
            self.name,
            range(first, first + self.handles),
            program_mode=self.mode,
            function=self.loaded,
            function_vendor="FAKE",
        )
        return hosts.device(self.letter, part)


@dataclass(slots=True)
class Guest:
    """An instance as Nova sees it, and what it was promised."""

    uuid: str
    arq: str
    card: Fpga
    function: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is looked at after each step."""

    #: ARQs.
    bound: frozenset[str]
    #: Whether Placement has not been told all.
    untold: bool


_BOUND = sa.select(models.Arq.uuid).where(models.Arq.state == models.BOUND)
_UNTOLD = sa.select(models.Work.id).where(models.Work.kind == work.PLACEMENT)


class Fpgas(Cloud):
    """A host with FPGAs. Its agent does what it is told, and looks at what it is told."""

    def renew(self) -> None:
        super().renew()
        self.fpgas = {
            "a": Fpga("a", "single-program", 2),
            "b": Fpga("b", "dynamic", 1),
            "c": Fpga("c", "dynamic", 2),
        }
        for name, keys in PROFILES.items():
            groups = [{"resources:FPGA": "1"} | keys]
            profiles.create_profile(name=name, groups=groups, description=None, uuid=None)
        #: How often hardware was written.
        self.writes = 0

    def run_program(
        self, conf: cfg.ConfigOpts, host: str, step: rpc.ProgramStep, timeout: float
    ) -> rpc.ProgramAnswer:
        """The agent's side."""
        (card,) = (card for card in self.fpgas.values() if card.name == step.deployable)
        function = step.function_id or ""
        if self.agent == "is away":
            raise rpc.HostUnreachable("the agent does not answer")
        if self.agent == "fails at the start":
            raise rpc.ProgramFailed("it cannot be read", written=False)
        self._assert_free(card, function)
        card.loaded, card.lost = "", False
        self.writes += 1
        if self.agent == "fails":
            raise rpc.ProgramFailed("it cannot be written", written=True)
        if self.agent == "kills":
            raise Killed
        card.loaded, card.before = function, ""
        if self.agent == "is not heard":
            raise rpc.HostUnreachable("the agent's answer is lost")
        return rpc.ProgramAnswer(function=function, verified_by="a look", report_counter=0)

    def _assert_free(self, card: Fpga, function: str) -> None:
        """Nobody has the card that is about to be written, or can be given it."""
        handle, arq = models.AttachHandle, models.Arq
        query = (
            sa.select(arq)
            .join(handle, handle.id == arq.attach_handle_id)
            .join(models.Deployable, models.Deployable.id == handle.deployable_id)
            .where(models.Deployable.name == card.name, arq.state == models.BOUND)
        )
        with db.reader() as session:
            guests = session.scalars(query).all()
        # What was lost may be put back under them.
        if function != (card.loaded or card.before):
            assert [guest.uuid for guest in guests] == []
        assert self.free(card) == 0

    def look(self) -> Seen:
        """What Cyborg says of guests, and whether it has said all to Placement."""
        with self._engine.connect() as connection:
            bound = frozenset(connection.scalars(_BOUND))
            return Seen(bound, untold=connection.scalar(_UNTOLD) is not None)

    def free(self, card: Fpga) -> int:
        """How many of the card's handles Placement reserves for nobody."""
        return self.placement.shows("FPGA").get(card.provider, (0, frozenset()))[0]

    def find_image(self, conf: cfg.ConfigOpts, **what: str | None) -> glance.Image:
        """Glance's side."""
        by_uuid = {uuid: function for function, uuid in IMAGES.items()}
        function = what["function_id"] or by_uuid[what["uuid"] or ""]
        return glance.Image(
            uuid=IMAGES[function],
            name=function,
            size=1,
            hash_algo="sha512",
            hash_value="0",
            checksum=None,
            status="active",
            properties={glance.FUNCTION_ID: function},
        )


@pytest.fixture
def fpgas(
    conf: cfg.ConfigOpts,
    database: sa.Engine,
    ctx: context.RequestContext,
    placement: PlacementServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Fpgas]:
    """The host; ``renew`` begins a history of it."""
    conf.set_override("auth_type", "none", group="glance")
    # Who would tell Placement meanwhile is the same thread.
    monkeypatch.setattr(steps, "PLACEMENT_WAIT", 0.0)
    # Placement has each of its own schemas checked with each request.
    monkeypatch.setattr(jsonschema.Draft202012Validator, "check_schema", lambda *_, **__: None)
    found = Fpgas(conf, ctx, placement)
    monkeypatch.setattr(rpc, "run_program", found.run_program)
    monkeypatch.setattr(glance, "find_image", found.find_image)
    sa.event.listen(database, "commit", found.before_commit)
    sa.event.listen(orm.Session, "after_commit", found.after_commit)
    yield found
    sa.event.remove(orm.Session, "after_commit", found.after_commit)
    sa.event.remove(database, "commit", found.before_commit)
