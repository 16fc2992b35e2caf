# SPDX-License-Identifier: Apache-2.0
"""The rules of availability say the same in SQL and of loaded rows."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.common import program_modes
from cyborg.db import models
from cyborg.states import availability
from cyborg.tests import hosts

pytestmark = pytest.mark.usefixtures("database")

IMAGE = "bbbbbbbb-0000-4000-8000-000000000001"


def judged() -> tuple[models.Deployable, bool]:
    """The one deployable there is, and whether it is usable in SQL."""
    of_device, of_host = models.Deployable.device, models.Device.host
    query = sa.select(models.Deployable, availability.usable()).join(of_device).join(of_host)
    options = orm.contains_eager(of_device).contains_eager(of_host)
    with db.reader() as session:
        row, usable = session.execute(query.options(options)).one()
    return row, bool(usable)


@pytest.mark.parametrize(
    ("status", "unhealthy", "missing"),
    list(itertools.product([models.ENABLED, models.MAINTAINING], [None, "hot"], [True, False])),
)
def test_what_is_offered(status: str, unhealthy: str | None, *, missing: bool) -> None:
    hosts.apply(hosts.card("a"))
    with db.writer() as session:
        always = sa.true()
        db.update(session, models.Device, always, status=status, unhealthy=unhealthy)
        db.update(session, models.Deployable, always, missing=missing)
    row, usable = judged()
    assert availability.is_usable(row) == usable
    assert usable == (status == models.ENABLED and unhealthy is None and not missing)


@pytest.mark.makes_up_rows
@pytest.mark.parametrize("column", ["down", "drained", "removed"])
def test_nothing_is_usable_of_a_host_that_gives_out_nothing(column: str) -> None:
    hosts.apply(hosts.card("a"))
    row, usable = judged()
    assert (availability.is_usable(row), usable) == (True, True)
    with db.writer() as session:
        db.update(session, models.Host, sa.true(), **{column: True})
    row, usable = judged()
    assert (availability.is_usable(row), usable) == (False, False)


@pytest.mark.parametrize(
    ("mode", "image", "function"),
    list(itertools.product([None, *program_modes.ALL], [None, IMAGE], [None, "aes"])),
)
def test_what_runs_nothing(mode: str | None, image: str | None, function: str | None) -> None:
    hosts.apply(hosts.card("a"))
    with db.writer() as session:
        values = {"program_mode": mode, "bitstream_id": image, "function_id": function}
        db.update(session, models.Deployable, sa.true(), **values)
    with db.reader() as session:
        query = sa.select(models.Deployable, availability.runs_nothing())
        row, runs_nothing = session.execute(query).one()
    assert availability.does_run_nothing(row) == bool(runs_nothing)
    for_all = mode in program_modes.FOR_ALL_HANDLES
    assert bool(runs_nothing) == (for_all and not image and not function)
