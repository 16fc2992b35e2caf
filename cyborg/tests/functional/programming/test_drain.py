# SPDX-License-Identifier: Apache-2.0
"""A drained host: what is being written is followed to its end, and pools write nothing more."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.policy import context
from cyborg.programming import operation_steps, operations, states
from cyborg.programming.locked_operation import CannotProgram
from cyborg.tests import engine
from cyborg.tests.fpgas import AES, Fpgas
from cyborg.tests.service import Site

pytestmark = pytest.mark.every_database

VERSION = "2.4"
BEGUN = (operations.QUEUED, operations.RESERVING, operations.WRITING)

_numbers = itertools.count(1)


@pytest.fixture
def cloud(site: Site, ctx: context.RequestContext) -> Fpgas:
    return Fpgas(site, ctx)


def item() -> work.Item | None:
    return engine.take(f"drain#{next(_numbers)}", 60.0, [work.PROGRAM])


def operation(session: Any) -> models.Operation:
    found = session.scalars(sa.select(models.Operation)).one()
    assert isinstance(found, models.Operation)
    return found


def advance(state: str) -> None:
    """Bring the one operation there is into that state."""
    steps = {
        operations.RESERVING: states.ProgramEvent.WITHDRAWN,
        operations.WRITING: states.ProgramEvent.WRITE_BEGAN,
    }
    for each, event in steps.items():
        with db.writer() as session:
            found = operation(session)
            row = operations.lock(session, found.deployable_uuid)
            if found.state == state or row is None:
                return
            operations.move(session, found, each, "On.", change=(row, event), image={})


def run_what_is_wanted(cloud: Fpgas) -> None:
    while found := item():
        try:
            operation_steps.run(cloud.conf, found)
        except errors.CyborgError as exc:
            work.back_off(found, str(exc))
        else:
            work.finish(found)


@pytest.mark.parametrize("state", BEGUN)
def test_what_pools_have_asked_for_is_not_written_any_more(cloud: Fpgas, state: str) -> None:
    cloud.report({"a": "", "b": ""})
    uuid = cloud.pool(free=1)
    assert cloud.look() == ["host-1_a"]
    advance(state)
    with db.writer() as session:
        # A conductor tries it again later.
        db.update(session, models.Work, due_ms=db.now_ms() + 3_600_000)

    drained = cloud.site.call("POST", "/hosts/host-1/drain", version=VERSION)

    (shown,) = drained["operations"]
    assert (drained["in_use"], drained["programming"]) == (0, 1)
    assert (shown["state"], shown["asked_by"]) == (state, "function pool pool")
    run_what_is_wanted(cloud)
    left = cloud.site.call("GET", "/hosts/host-1", version=VERSION)
    with db.reader() as session:
        found = operation(session)
    if state == operations.WRITING:
        # Only the host can say what became of it.
        assert (found.state, left["programming"]) == (state, 1)
        return
    assert (found.state, left["programming"]) == (operations.FAILED, 0)
    assert "is drained" in (found.error or "")
    assert cloud.look_again() == []
    assert cloud.shown(uuid)["reason"] is not None


def test_a_host_that_is_drained_just_before_the_write(cloud: Fpgas) -> None:
    cloud.report({"a": ""})
    cloud.pool(free=1)
    cloud.look()
    advance(operations.RESERVING)
    found = item()
    assert found is not None
    cloud.site.call("POST", "/hosts/host-1/drain", version=VERSION)
    with pytest.raises(CannotProgram, match="drained"):
        operation_steps.begin_to_write(found)


def test_what_others_have_asked_for_is_carried_out(cloud: Fpgas) -> None:
    cloud.report({"a": ""})
    with db.reader() as session:
        uuid = session.scalars(sa.select(models.Deployable.uuid)).one()
    cloud.site.call("POST", "/hosts/host-1/drain", version=VERSION)
    cloud.site.call("POST", f"/deployables/{uuid}/program", {"function_id": AES}, "2.4")
    run_what_is_wanted(cloud)
    with db.reader() as session:
        # It got as far as to Glance, which is not there.
        assert "Glance" in (operation(session).error or "")
