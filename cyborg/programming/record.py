# SPDX-License-Identifier: Apache-2.0
"""What a deployable is recorded to run, and the trait by which schedulers find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.db import models
from cyborg.programming import program


def runs(
    session: orm.Session,
    deployable: models.Deployable,
    *,
    image_uuid: str | None,
    function_id: str | None,
    function_name: str | None = None,
    programmed_by: str | None = None,
    verified_by: str | None = None,
    bitstream: Mapping[str, Any] | None = None,
) -> None:
    """Record what a locked deployable runs, which is known for sure; all None: nothing.

    ``bitstream`` is what its host has checked the image by.
    """
    programmed = programmed_by is not None
    db.update(
        session,
        models.Deployable,
        models.Deployable.id == deployable.id,
        bitstream_id=image_uuid,
        bitstream=bitstream,
        function_id=function_id,
        function_plain=program.plain(function_id) if function_id else None,
        function_name=function_name,
        programmed_ms=db.now_ms() if programmed else None,
        programmed_by=programmed_by,
        verified_by=verified_by,
        in_doubt=False,
        contradicted=False,
    )
    _set_trait(session, deployable, function_id)
    read_reports_anew(session, deployable)


def _set_trait(
    session: orm.Session, deployable: models.Deployable, function_id: str | None
) -> None:
    row = models.Attribute
    old = (row.deployable_id == deployable.id, row.key == program.TRAIT_KEY)
    db.delete(session, row, *old)
    for attribute in program.traits(deployable.function_vendor, function_id):
        attribute.deployable_id = deployable.id
        session.add(attribute)


def read_reports_anew(session: orm.Session, deployable: models.Deployable) -> None:
    """A report that says what an earlier one said may now be news."""
    of_device = sa.select(models.Device.host_id).where(models.Device.id == deployable.device_id)
    host = models.Host
    db.update(session, host, host.id == of_device.scalar_subquery(), report_digest=None)


def outdate_reports(session: orm.Session, seen: models.Host, counter: int) -> None:
    """Have those reports dropped whose pass began before the hardware ran what it runs now."""
    host = models.Host
    db.update(
        session,
        host,
        host.id == seen.id,
        host.report_started == seen.report_started,
        host.report_counter < counter,
        report_counter=counter,
    )


def certain(session: orm.Session, deployable: models.Deployable) -> None:
    """Record that a locked deployable, of which nothing was written, runs what it ran before.

    Where a report has said otherwise meanwhile, it has lost that, which nobody had.
    """
    # A conductor of an older release leaves the second as it was.
    if deployable.in_doubt and deployable.contradicted:
        runs(session, deployable, image_uuid=None, function_id=None)
        return
    db.update(session, models.Deployable, models.Deployable.id == deployable.id, in_doubt=False)
    read_reports_anew(session, deployable)


def doubt(session: orm.Session, deployable: models.Deployable) -> None:
    """Record that nobody knows, for now, what a locked deployable runs."""
    row, contradicted = models.Deployable, deployable.in_doubt and deployable.contradicted
    db.update(session, row, row.id == deployable.id, in_doubt=True, contradicted=contradicted)


def contradict(session: orm.Session, deployable: models.Deployable | None) -> None:
    """Record of one in doubt that it was written in vain: only its hardware can say it is back."""
    if deployable is not None:
        row = models.Deployable
        db.update(session, row, row.id == deployable.id, contradicted=True)


def tell_placement(session: orm.Session, deployable: models.Deployable) -> None:
    """Have Placement told what the deployable offers now."""
    query = (
        sa.select(models.Host.name)
        .join(models.Device, models.Device.host_id == models.Host.id)
        .where(models.Device.id == deployable.device_id)
    )
    work.want(session, work.PLACEMENT, session.scalars(query))


def tell_binds(session: orm.Session, deployable: models.Deployable) -> None:
    """Have the binds looked at that wait for the deployable."""
    arq, handle = models.Arq, models.AttachHandle
    waiting = (
        sa.select(handle.uuid)
        .join(arq, arq.attach_handle_id == handle.id)
        .where(handle.deployable_id == deployable.id, arq.state == models.BIND_STARTED)
    )
    work.want(session, work.HOST_STEP, session.scalars(waiting))
