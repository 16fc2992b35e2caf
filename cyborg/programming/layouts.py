# SPDX-License-Identifier: Apache-2.0
"""Layouts: how a card is divided, or what all its parts can do.

A layout is what a deployable runs whose ``program_mode`` is ``layout``. It is recorded by its name,
as a function, and has no image. Only administrators and function pools change it: the handles of
another layout are other ones, so a guest that has one, or is being given one, must never wait for a
change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.common import errors, program_modes
from cyborg.db import models
from cyborg.drivers import base
from cyborg.programming import program

_DEPLOYABLE = models.Deployable
#: The origin of attributes that a driver has reported, and so has checked.
_REPORTED = "driver"


def is_layout(record: models.ProgramRecord) -> bool:
    """Whether the deployable is programmed with layouts, and with no images."""
    return record.program_mode == program_modes.LAYOUT


def names(attributes: Iterable[models.Attribute]) -> list[str]:
    """The layouts that a deployable with those attributes can have."""
    keys = (each.key for each in attributes if each.origin == _REPORTED)
    prefix = base.LAYOUT_PREFIX
    return sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix))


def accelerators(plain: Any) -> sa.ScalarSelect[int]:
    """How many accelerators a deployable has in a layout, whose name is as in ``function_plain``.

    Null if it cannot have that layout.
    """
    attribute = models.Attribute
    key = sa.func.upper(sa.func.replace(attribute.key, "-", ""))
    wanted = sa.literal(base.LAYOUT_PREFIX.upper()).concat(plain)
    query = sa.select(sa.func.max(sa.cast(attribute.value, sa.Integer))).where(
        attribute.deployable_id == _DEPLOYABLE.id,
        attribute.origin == _REPORTED,
        attribute.key.startswith(base.LAYOUT_PREFIX, autoescape=True),
        key == wanted,
    )
    return query.correlate_except(attribute).scalar_subquery()


def refuse_image(deployable: models.Deployable) -> None:
    """Return if a deployable that is to have a layout is of the kind that has one.

    :raises Invalid: it is programmed with images
    """
    if deployable.program_mode is not None and not is_layout(deployable.record):
        raise errors.Invalid(
            f"layout: deployable {deployable.uuid} has no layouts; send an image or a function."
        )


def refuse(session: orm.Session, deployable: models.Deployable, what: program.Program) -> None:
    """Return unless what is asked for is no layout of a locked deployable that has one.

    :raises Invalid: it is none; the message names those that it can have
    """
    if not is_layout(deployable.record):
        return
    if "attributes" in sa.inspect(deployable).unloaded:
        session.refresh(deployable, ["attributes"])
    known = names(deployable.attributes)
    if what == program.Program(function_id=what.function_id) and any(
        program.same(name, what.function_id) for name in known
    ):
        return
    raise errors.Invalid(
        f"Deployable {deployable.uuid} cannot have {what}. Its layouts are: {', '.join(known)}."
    )


def facts(name: str) -> dict[str, Any]:
    """What an operation records in place of an image."""
    return {"uuid": None, "name": None, "function_id": name, "function_name": None}
