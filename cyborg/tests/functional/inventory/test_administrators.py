# SPDX-License-Identifier: Apache-2.0
"""What administrators say of devices is kept, and reaches Placement's work."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.hosts import flags
from cyborg.inventory import attributes
from cyborg.tests import hosts
from cyborg.tests.at_once import at_once


@pytest.fixture(autouse=True)
def device(database: sa.Engine) -> str:
    hosts.apply(hosts.card("a"))
    with db.writer() as session:
        db.delete(session, models.Work)
        return session.scalars(sa.select(models.Device.uuid)).one()


def _deployable_id() -> int:
    with db.reader() as session:
        return session.scalars(sa.select(models.Deployable.id)).one()


def _make_attribute(**new: Any) -> models.Attribute:
    (made,) = attributes.create_attributes([attributes.NewAttribute(**new)])
    return made


def _wanted() -> list[tuple[str, str]]:
    with db.reader() as session:
        return [(row.kind, row.key) for row in session.scalars(sa.select(models.Work))]


@pytest.mark.every_database
def test_a_status_is_saved_with_the_wish_to_tell_placement(device: str) -> None:
    for status in (models.MAINTAINING, models.MAINTAINING, models.ENABLED):
        change = flags.enable_device if status == models.ENABLED else flags.disable_device
        change(device)
        with db.reader() as session:
            assert session.scalars(sa.select(models.Device.status)).one() == status
    with pytest.raises(errors.NotFound):
        flags.disable_device(models.new_uuid())
    assert _wanted() == [(work.PLACEMENT, "host-1")]


@pytest.mark.every_database
def test_an_attribute_is_made_once_however_many_ask_at_once() -> None:
    deployable, outcomes = _deployable_id(), Counter[str]()

    def create() -> None:
        try:
            _make_attribute(deployable_id=deployable, key="site", value="x")
        except errors.Conflict:
            outcomes["conflict"] += 1
        else:
            outcomes["created"] += 1

    at_once(*[create] * 6)
    assert outcomes == {"created": 1, "conflict": 5}
    assert [a.value for a in attributes.list_attributes(key="site")] == ["x"]


@pytest.mark.every_database
def test_attributes_are_made_listed_and_deleted() -> None:
    deployable = _deployable_id()
    for value in ("FPGA", "custom_x", "CUSTOM_", "CUSTOM_a-b"):
        with pytest.raises(errors.Invalid, match="value"):
            _make_attribute(deployable_id=deployable, key="trait_x", value=value)
    with pytest.raises(errors.Invalid, match="deployable_id"):
        _make_attribute(deployable_id=deployable + 1, key="a", value="b")
    assert len(attributes.list_attributes()) == 2
    made = _make_attribute(deployable_id=deployable, key="traits9", value="CUSTOM_SITE")
    found = attributes.list_attributes(deployable_id=deployable)
    assert [attribute.key for attribute in found] == ["traits1", "rc", "traits9"]
    assert attributes.list_attributes(deployable_id=deployable + 1) == []
    assert attributes.get_attribute(made.uuid).origin == "admin"
    assert _wanted() == [(work.PLACEMENT, "host-1")]
    attributes.delete_attribute(made.uuid)
    with pytest.raises(errors.NotFound):
        attributes.delete_attribute(made.uuid)
    # Those of a driver stay.
    for attribute in attributes.list_attributes():
        with pytest.raises(errors.Conflict, match="driver"):
            attributes.delete_attribute(attribute.uuid)
    assert len(attributes.list_attributes()) == 2
