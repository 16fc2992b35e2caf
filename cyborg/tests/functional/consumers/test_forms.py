# SPDX-License-Identifier: Apache-2.0
"""Histories of a card that guests and containers want, whole, in slices or in shares, by chance."""

from __future__ import annotations

import contextlib
import random

import pytest
import sqlalchemy as sa

from cyborg import db
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import boots, callers
from cyborg.tests.shared_card import SharedCard, show

pytestmark = pytest.mark.every_database

GROUPS = [{f"resources:{kind}": "1"} for kind in ("PGPU", "CUSTOM_SLICE", base.SHARE_CLASS)]
NAMES = ("host-1_a", "host-1_a_1g", "host-1_a")
PROJECTS = ("p1", "p2")
ROUNDS, STEPS = 7, 5


class History:
    """What happens to the card, and what holds after each step."""

    def __init__(self, cloud: SharedCard, seed: int) -> None:
        self._cloud = cloud
        self._chance = random.Random(seed)
        #: Whether handles were seen that guests held, and that containers held.
        self.seen: set[bool] = set()

    def go(self) -> None:
        acts = [self._report, self._allocate, self._boot, self._boot, self._leave]
        show(self._cloud, is_divided=False, below=False)
        self._bind(GROUPS[0], NAMES[0])
        self._cloud.work()
        self._check()
        for _ in range(ROUNDS):
            some = self._chance.choices(acts, k=STEPS)
            for act in (self._leave_all, self._report, *some):
                self._cloud.is_stuck = act in some and self._chance.random() < 0.2
                with contextlib.suppress(errors.CyborgError):
                    act()
                self._cloud.work()
                self._check()

    def _report(self) -> None:
        form = self._chance.choice(["shares", "slices", "whole", "whole"])
        if form == "shares":
            self._cloud.report()
        else:
            below = self._chance.random() < 0.5
            show(self._cloud, is_divided=form == "slices", below=below)

    def _allocate(self) -> None:
        self._cloud.ask(self._chance.choice(PROJECTS), group=self._chance.choice(GROUPS))

    def _boot(self) -> None:
        self._bind(*self._chance.choice([*zip(GROUPS, NAMES, strict=True)]))

    def _bind(self, kind: dict[str, str], name: str) -> None:
        ctx = callers.admin(self._cloud.enforcer, project_id=self._chance.choice(PROJECTS))
        uuids = boots.arqs(ctx, 1, kind)
        boots.bind(ctx, uuids, models.new_uuid(), device_rp_uuid=provider_uuid(name))

    def _leave_all(self) -> None:
        for holder in self._holders():
            with contextlib.suppress(errors.CyborgError):
                self._end(*holder)

    def _leave(self) -> None:
        if found := self._holders():
            self._end(*self._chance.choice(found))

    def _holders(self) -> list[tuple[str, str | None, str]]:
        arq = models.Arq
        query = sa.select(arq.uuid, arq.allocation_uuid, arq.project_id).order_by(arq.id)
        with db.reader() as session:
            return [(row[0], row[1], str(row[2])) for row in session.execute(query)]

    def _end(self, arq: str, allocation: str | None, project: str) -> None:
        if allocation:
            self._cloud.leave(project, allocation)
        else:
            release.delete_arqs(callers.admin(self._cloud.enforcer, project_id=project), [arq])

    def _check(self) -> None:
        handle, arq = models.AttachHandle, models.Arq
        query = sa.select(handle.attach_type, arq.uuid, arq.allocation_uuid, arq.project_id)
        query = query.outerjoin(arq, arq.attach_handle_id == handle.id)
        with db.reader() as session:
            used = session.execute(query.where(sa.or_(arq.id.is_not(None), handle.is_left))).all()
        assert len({kind == base.NODES for kind, *_ in used}) <= 1, used
        held = [each for each in used if each.uuid is not None]
        assert all(each.allocation_uuid for each in held if each.attach_type == base.NODES)
        assert len({each.project_id for each in held}) <= 1, held
        self.seen |= {each.allocation_uuid is None for each in held}


@pytest.mark.parametrize("seed", range(3))
def test_no_container_has_nodes_of_what_a_guest_holds(seed: int, cloud: SharedCard) -> None:
    history = History(cloud, seed)
    history.go()
    assert history.seen == {False, True}
