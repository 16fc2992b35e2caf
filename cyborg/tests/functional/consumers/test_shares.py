# SPDX-License-Identifier: Apache-2.0
"""Shares and slices of a GPU: no card is given out in two forms, and no guest has any of these.

Projects do not mix on a card with shares, and dirt is the card's.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, quotas
from cyborg.allocations import service
from cyborg.arqs import bind_writes
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.apply import provider_uuid
from cyborg.states import allocation_states as states
from cyborg.tests import boots, callers, engine
from cyborg.tests.shared_card import GROUP, SharedCard, show

pytestmark = [pytest.mark.every_database, pytest.mark.slow]

#: Seconds in which whoever does not wait is done, and in which all are.
SOON, PATIENCE = 2.0, 60.0


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(errors.CyborgError) as caught:
        ask()
    return str(caught.value)


def test_a_card_is_of_one_project_at_a_time_where_they_may_not_mix(cloud: SharedCard) -> None:
    # The quota counts each share.
    limits = {f"{quotas.CLASS}{base.SHARE_CLASS}": 1}
    assert "used 0, limit 1, asked for 2" in refused(lambda: cloud.ask("p1", 2, limits=limits))
    first = cloud.ask("p1", limits=limits)
    cloud.work()
    cloud.have("p1")
    assert "other projects have shares of it" in refused(lambda: cloud.ask("p2"))
    cloud.leave("p1", first)
    refused(lambda: cloud.ask("p2"))
    assert cloud.projects() == {"p1"}

    cloud.report(base.OF_ALL_PROJECTS)
    for project in ("p2", "p3"):
        cloud.have(project)
    assert cloud.projects() == {"p1", "p2", "p3"}


def beside_the_bind(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> Callable[[], None]:
    """Let somebody act when the next bind has chosen its handles; returns what awaits its end."""
    thread = threading.Thread(target=act, daemon=True)
    write = bind_writes.write

    def write_beside(session: orm.Session, steps: Sequence[bind_writes.Step]) -> None:
        if any(step.taken for step in steps) and thread.ident is None:
            thread.start()
            thread.join(SOON)
        write(session, steps)

    def await_end() -> None:
        thread.join(PATIENCE)
        assert thread.ident is not None
        assert not thread.is_alive()

    monkeypatch.setattr(bind_writes, "write", write_beside)
    return await_end


def test_two_projects_that_bind_at_once_do_not_share_a_card(cloud, monkeypatch) -> None:
    def bind_other() -> None:
        cloud.ask("p2")
        engine.drain(cloud.conf)

    first = cloud.ask("p1")
    await_end = beside_the_bind(monkeypatch, bind_other)
    engine.drain(cloud.conf)
    await_end()
    assert cloud.projects() == {"p1"}
    assert cloud.state(first) == states.ACTIVE


def test_the_card_is_not_reset_under_a_share_that_is_just_taken(cloud, monkeypatch) -> None:
    before = cloud.have("p1")

    def leave() -> None:
        service.delete(callers.admin(cloud.enforcer, project_id="p1"), before)
        engine.drain(cloud.conf)

    after = cloud.ask("p1")
    await_end = beside_the_bind(monkeypatch, leave)
    engine.drain(cloud.conf)
    await_end()
    engine.make_due()
    engine.drain(cloud.conf)
    assert cloud.state(after) == states.ACTIVE
    cleans = [each for each in cloud.steps if each.action == "clean"]
    assert cleans
    assert all(each.card_in_use for each in cleans)


def test_the_card_is_cleaned_after_the_last_share_and_nobody_gets_one_before(cloud) -> None:
    several, last = cloud.have("p1", 2), cloud.have("p1")
    cloud.steps.clear()
    cloud.leave("p1", several)
    assert [(each.action, each.card_in_use) for each in cloud.steps] == [("clean", True)] * 2
    cloud.have("p1")
    cloud.steps.clear()
    (other,) = {each for each in _consumers() if each != last}
    cloud.leave("p1", other)
    cloud.steps.clear()
    cloud.is_stuck = True
    cloud.leave("p1", last)
    assert [(each.action, each.card_in_use) for each in cloud.steps] == [("clean", False)]
    for project in ("p1", "p2"):
        said = refused(functools.partial(cloud.ask, project))
        assert "wait for a write, a cleaning" in said
    cloud.is_stuck = False
    cloud.work()
    cloud.have("p2", 3)


def _consumers() -> set[str]:
    row = models.Allocation
    return set(db.read_all(sa.select(row.uuid).where(row.state == states.ACTIVE)))


def test_what_is_dirty_when_it_is_bound_is_given_to_nobody(cloud: SharedCard) -> None:
    """Placement may offer for a moment what has just been left."""
    first = cloud.have("p1")
    second = cloud.ask("p1")
    service.delete(callers.admin(cloud.enforcer, project_id="p1"), first)
    cloud.is_stuck = True
    engine.drain(cloud.conf)
    assert cloud.state(second) == states.CLAIMING
    cloud.is_stuck = False
    for _ in range(2):
        engine.make_due()
        engine.drain(cloud.conf)
    assert cloud.state(second) == states.ACTIVE


def test_no_guest_gets_a_share(cloud: SharedCard) -> None:
    ctx = callers.admin(cloud.enforcer, project_id="p1")
    boots.boot(cloud.conf, ctx, 1, GROUP)
    with db.reader() as session:
        arq = session.scalars(sa.select(models.Arq)).one()
    assert arq.state == models.BIND_FAILED
    assert "no guest gets it" in str(arq.state_reason)


@pytest.mark.parametrize("first", [None, base.OF_ONE_PROJECT], ids=["whole", "shares"])
def test_a_card_is_never_whole_and_in_shares(cloud: SharedCard, first: str | None) -> None:
    group = {None: {"resources:PGPU": "1"}, base.OF_ONE_PROJECT: GROUP}
    (other,) = group.keys() - {first}
    cloud.report(first)
    consumer = cloud.ask("p1", group=group[first])
    cloud.work()
    assert cloud.state(consumer) == states.ACTIVE
    cloud.report(other)
    # Until it leaves, the card is claimed as what it was, and is not that any more.
    for asked in group.values():
        with contextlib.suppress(errors.Conflict):
            cloud.ask("p1", group=asked)
        cloud.work()
    held = sa.select(models.Arq.allocation_uuid).where(models.Arq.attach_handle_id.is_not(None))
    assert db.read_all(held) == [consumer]
    cloud.leave("p1", consumer)
    assert db.read_all(held) == []
    cloud.report(other)
    after = cloud.ask("p1", group=group[other])
    cloud.work()
    assert cloud.state(after) == states.ACTIVE


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_card_is_never_whole_and_in_slices(cloud, is_first, below) -> None:
    """The host shows a card whole as long as it lacks its driver, such as after a boot."""
    groups = [{"resources:PGPU": "1"}, {"resources:CUSTOM_SLICE": "1"}]
    show(cloud, is_divided=is_first, below=below)
    first = cloud.ask("p1", group=groups[is_first])
    cloud.work()
    assert cloud.state(first) == states.ACTIVE
    show(cloud, is_divided=not is_first, below=below)
    for group in groups:
        with contextlib.suppress(errors.Conflict):
            cloud.ask("p2", group=group)
        cloud.work()
        guest = callers.admin(cloud.enforcer, project_id="p2")
        with contextlib.suppress(errors.CyborgError):
            place = {"device_rp_uuid": provider_uuid("host-1_a")}
            boots.bind(guest, boots.arqs(guest, 1, group), models.new_uuid(), **place)
        engine.drain(cloud.conf)
    assert cloud.projects() == {"p1"}
    if is_first:
        assert cloud.placement.candidates("PGPU") == set()
    cloud.leave("p1", first)
    show(cloud, is_divided=not is_first, below=below)
    # Who has waited gets it, or who asks now.
    with contextlib.suppress(errors.Conflict):
        cloud.ask("p2", group=groups[not is_first])
    cloud.work()
    assert cloud.projects() == {"p2"}
