# SPDX-License-Identifier: Apache-2.0
"""What can be given out: usable, in use, in doubt, runs nothing; each rule in one place.

The conditions are SQL on ``models.Host``, ``models.Device`` and ``models.Deployable``, which the
query around them must join. A rule that judges loaded rows too has its Python form beside it.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.common import program_modes
from cyborg.db import models
from cyborg.db.providers import ProviderRow
from cyborg.drivers import base

_HOST, _DEVICE, _DEPLOYABLE = models.Host, models.Device, models.Deployable


def enabled() -> sa.ColumnElement[bool]:
    """The administrator has not disabled the device."""
    return _DEVICE.status == models.ENABLED


def healthy() -> sa.ColumnElement[bool]:
    """The driver reports no fault of the device."""
    return _DEVICE.unhealthy.is_(None)


def accounted_for() -> sa.ColumnElement[bool]:
    """No allocation of the deployable's provider is without an explanation."""
    return _DEPLOYABLE.withheld.is_(None)


def offered() -> sa.ColumnElement[bool]:
    """The device is enabled and healthy, and the host has shown it and the deployable last.

    What others may have of the deployable is known.
    """
    present = (_DEVICE.missing.is_(False), _DEPLOYABLE.missing.is_(False))
    return sa.and_(enabled(), healthy(), *present, accounted_for())


def usable() -> sa.ColumnElement[bool]:
    """The deployable is offered, and its host is up and neither drained nor removed."""
    gone = (_HOST.down, _HOST.drained, _HOST.removed)
    return sa.and_(offered(), *(column.is_(False) for column in gone))


def is_usable(deployable: ProviderRow) -> bool:
    """:func:`usable` for a row with its device and its host.

    A deployable of a missing device is missing.
    """
    device = deployable.device
    host = device.host
    return (
        device.status == models.ENABLED
        and device.unhealthy is None
        and not deployable.missing
        and deployable.withheld is None
        and not (host.down or host.drained or host.removed)
    )


def open_to_all() -> sa.ColumnElement[bool]:
    """The deployable is usable, and kept from no guest."""
    return sa.and_(usable(), ~tainted())


def tainted() -> sa.ColumnElement[bool]:
    """The device or its host is kept from guests whose profile does not tolerate that."""
    return sa.or_(_DEVICE.tainted, _HOST.tainted)


def is_tainted(deployable: ProviderRow) -> bool:
    """:func:`tainted` for a row with its device and its host."""
    return deployable.device.tainted or deployable.device.host.tainted


def free_accelerators(
    free_handles: sa.ColumnElement[int], held: sa.ColumnElement[int]
) -> sa.ColumnElement[int]:
    """How many accelerators of the deployable can be given out, by the numbers of its handles.

    Each handle that is held takes an accelerator, and several handles may be one accelerator.
    """
    left = _DEPLOYABLE.num_accelerators - held
    return sa.case((left < 0, 0), (free_handles < left, free_handles), else_=left)


def blank() -> sa.ColumnElement[bool]:
    """The deployable is not known to run any program."""
    return sa.and_(_DEPLOYABLE.bitstream_id.is_(None), _DEPLOYABLE.function_id.is_(None))


def is_blank(record: models.ProgramRecord) -> bool:
    """:func:`blank` for a row."""
    return record.bitstream_id is None and record.function_id is None


def runs_nothing() -> sa.ColumnElement[bool]:
    """The deployable must be programmed before use: one program serves all handles."""
    mode = sa.func.coalesce(_DEPLOYABLE.program_mode, "")
    return sa.and_(mode.in_(program_modes.FOR_ALL_HANDLES), blank())


def does_run_nothing(record: models.ProgramRecord) -> bool:
    """:func:`runs_nothing` for a row."""
    return record.program_mode in program_modes.FOR_ALL_HANDLES and is_blank(record)


def awaits_report() -> sa.ColumnElement[bool]:
    """A write has left something on the deployable, and no report has said since what it is."""
    left = _DEPLOYABLE.function_shown == models.LEFT_OVER
    return sa.and_(_DEPLOYABLE.program_state == models.BLANK, sa.func.coalesce(left, False))


def does_await_report(record: models.ProgramRecord) -> bool:
    """:func:`awaits_report` for a row."""
    left = record.function_shown == models.LEFT_OVER
    return left and record.program_state == models.BLANK


def awaits_cleaning() -> sa.ColumnElement[bool]:
    """What comes next must be written, and nothing can be before a handle is clean.

    Nobody has any of the deployable, and it is :func:`left_unwanted`.
    """
    handle, arq = orm.aliased(models.AttachHandle), orm.aliased(models.Arq)
    held = sa.select(arq.id).join(handle, handle.id == arq.attach_handle_id)
    of_it = held.where(handle.deployable_id == _DEPLOYABLE.id)
    return sa.and_(left_unwanted(), ~of_it.correlate(_DEPLOYABLE).exists())


def left_unwanted() -> sa.ColumnElement[bool]:
    """A handle of the deployable was left, and nobody may want what the deployable runs.

    It was written for one who left before that had ended, or that has failed; or at most its blank
    image is known to be on it.
    """
    handle = orm.aliased(models.AttachHandle)
    is_blank = sa.and_(_DEPLOYABLE.blank_image.is_not(None), _DEPLOYABLE.bitstream_id.is_(None))
    left = sa.select(handle.id).where(
        handle.deployable_id == _DEPLOYABLE.id,
        handle.is_left,
        sa.or_(handle.needs_write, is_blank),
    )
    is_programmable = _DEPLOYABLE.program_mode.is_not(None)
    return sa.and_(is_programmable, left.correlate(_DEPLOYABLE).exists())


def awaits_last_clean() -> sa.ColumnElement[bool]:
    """A share of the card is not clean: nobody gets any before that."""
    handle = orm.aliased(models.AttachHandle)
    left = sa.select(handle.id).where(handle.deployable_id == _DEPLOYABLE.id, handle.is_left)
    return sa.and_(_DEPLOYABLE.shared.is_not(None), left.correlate(_DEPLOYABLE).exists())


@functools.cache
def on_offer() -> sa.ColumnElement[bool]:
    """Placement offers what is free of the deployable, and so it counts as free to be had."""
    waits = sa.or_(runs_nothing(), awaits_report(), awaits_cleaning(), awaits_last_clean())
    divided = sa.or_(_is_redivided(), _has_parts_in_use())
    return sa.and_(usable(), models.Deployable.is_settled, ~divided, ~waits)


def _is_redivided() -> sa.Exists:
    """The deployable is a part of another one, whose layout is being changed."""
    card = orm.aliased(models.Deployable)
    found = sa.select(card.id).where(card.id == _DEPLOYABLE.parent_id, ~card.is_settled)
    return found.correlate(_DEPLOYABLE).exists()


def _has_parts_in_use() -> sa.Exists:
    """Containers have parts of the deployable, which is shown whole, as before its driver came."""
    part, handle = orm.aliased(models.Deployable), orm.aliased(models.AttachHandle)
    found = sa.select(part.id).join(handle, handle.deployable_id == part.id)
    nodes = (part.missing.is_(True), handle.attach_type == base.NODES)
    return found.where(part.parent_id == _DEPLOYABLE.id, *nodes).correlate(_DEPLOYABLE).exists()


def uses_of(part: Any, arq: Any) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """The ARQs that hold a handle of the deployable ``part``; those that are being bound to it."""
    handle = orm.aliased(models.AttachHandle)
    of_part = sa.select(arq.id.label("arq_id")).select_from(part)
    holding = of_part.join(handle, handle.deployable_id == part.id).join(
        arq, arq.attach_handle_id == handle.id
    )
    binding = of_part.join(arq, arq.device_rp_uuid == part.rp_uuid).where(
        arq.state == models.BIND_STARTED
    )
    return holding, binding


def left_in(part: Any, handle: Any) -> sa.Select[Any]:
    """The handles of the deployable ``part`` that are not clean."""
    of_part = sa.select(handle.id.label("handle_id")).select_from(part)
    return of_part.join(handle, handle.deployable_id == part.id).where(handle.is_left)
