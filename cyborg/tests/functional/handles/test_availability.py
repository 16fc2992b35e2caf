# SPDX-License-Identifier: Apache-2.0
"""The rules of availability say the same in SQL and of loaded rows."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa

from cyborg import db
from cyborg.common import program_modes
from cyborg.db import models, providers
from cyborg.handles import listing
from cyborg.states import availability
from cyborg.tests import hosts

pytestmark = pytest.mark.usefixtures("database")

IMAGE = "bbbbbbbb-0000-4000-8000-000000000001"


def judged() -> tuple[providers.ProviderRow, bool]:
    """The one deployable there is, and whether it is usable in SQL."""
    query = sa.select(models.Deployable.rp_uuid, availability.usable())
    query = query.join(models.Deployable.device).join(models.Device.host)
    with db.reader() as session:
        uuid, usable = session.execute(query).one()
        return providers.read(session, [uuid])[uuid], bool(usable)


def change(model: type[models.Base], **values: object) -> None:
    with db.writer() as session:
        db.update(session, model, sa.true(), **values)


def test_what_is_offered() -> None:
    hosts.apply(hosts.card("a"))
    for status, unhealthy, missing in itertools.product(
        [models.ENABLED, models.MAINTAINING], [None, "hot"], [True, False]
    ):
        change(models.Device, status=status, unhealthy=unhealthy)
        change(models.Deployable, missing=missing)
        row, usable = judged()
        assert availability.is_usable(row) == usable
        assert usable == (status == models.ENABLED and unhealthy is None and not missing)


@pytest.mark.makes_up_rows
def test_nothing_is_usable_of_a_host_that_gives_out_nothing() -> None:
    hosts.apply(hosts.card("a"))
    for column in ("down", "drained", "removed"):
        for is_set in (False, True):
            change(models.Host, **{column: is_set})
            row, usable = judged()
            assert (availability.is_usable(row), usable) == (not is_set, not is_set), column
        change(models.Host, **{column: False})


def test_what_runs_nothing() -> None:
    hosts.apply(hosts.card("a"))
    for mode, image, function in itertools.product(
        [None, *program_modes.ALL], [None, IMAGE], [None, "aes"]
    ):
        change(models.Deployable, program_mode=mode, bitstream_id=image, function_id=function)
        with db.reader() as session:
            query = sa.select(models.Deployable, availability.runs_nothing())
            row, runs_nothing = session.execute(query).one()
        assert availability.does_run_nothing(row.record) == bool(runs_nothing)
        for_all = mode in program_modes.FOR_ALL_HANDLES
        assert bool(runs_nothing) == (for_all and not image and not function)


@pytest.mark.every_database
@pytest.mark.makes_up_rows
@pytest.mark.parametrize(
    ("model", "values", "why"),
    [
        (models.AttachHandle, {"missing": True}, "It is gone from its host."),
        (models.Deployable, {"missing": True}, "It is gone from its host."),
        (models.Device, {"unhealthy": "The fan is broken."}, "The fan is broken."),
        (models.Device, {"status": models.MAINTAINING}, "Its device is disabled."),
        (
            models.Device,
            {"status": models.MAINTAINING, "disabled_reason": "A new fan comes."},
            "A new fan comes.",
        ),
        (models.Host, {"down": True}, "Its host is down."),
        (models.Host, {"removed": True}, "Its host is removed."),
        (
            models.Host,
            {"drained": True, "drain_reason": "new kernel"},
            "Its host is drained: new kernel",
        ),
        (models.Host, {"drained": True}, "Its host is drained: no reason given"),
    ],
)
def test_a_handle_says_why_nobody_gets_it(model, values, why) -> None:
    hosts.apply(hosts.card("a"))
    before = listing.list_handles(state=listing.FREE)
    assert {each.state_reason for each in before} == {None}
    change(model, **values)
    found = listing.list_handles(state=listing.UNAVAILABLE)
    assert [each.state_reason for each in found] == [why] * len(before)
