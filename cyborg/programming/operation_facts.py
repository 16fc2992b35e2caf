# SPDX-License-Identifier: Apache-2.0
"""Facts for carrying an operation out: its deployable, and all that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFacts:
    """A deployable as it is, and the operation on it that has not ended.

    ``attributes``, ``handles`` and ``providers`` are also those of the parts of its layout.
    """

    deployable: models.Deployable
    device: models.Device
    control_path: models.ControlPath
    attributes: list[models.Attribute]
    handles: list[models.AttachHandle]
    providers: list[str]
    host: models.Host
    operation: models.Operation
    now_ms: int

    @classmethod
    def of(
        cls, session: orm.Session, deployable: models.Deployable, operation: models.Operation
    ) -> OperationFacts:
        """Read the rest of it from the database."""
        device, host, path = models.Device, models.Host, models.ControlPath
        query = (
            sa.select(device, path, host, db.now_ms())
            .join(path, path.device_id == device.id)
            .join(host, host.id == device.host_id)
            .where(device.id == deployable.device_id)
        )
        found = session.execute(query).one()
        handle, attribute = models.AttachHandle, models.Attribute
        # All of them while it is away, so that the host is asked for the same again.
        shown = sa.or_(handle.missing.is_(False), sa.literal(deployable.missing))
        row = models.Deployable
        parts = session.execute(
            sa.select(row.id, row.rp_uuid)
            .where(sa.or_(row.id == deployable.id, row.parent_id == deployable.id))
            .order_by(row.id)
        ).all()
        ids = [part_id for part_id, _provider in parts]
        handles = sa.select(handle).where(handle.deployable_id.in_(ids), shown)
        attributes = sa.select(attribute).where(attribute.deployable_id.in_(ids))
        return cls(
            deployable=deployable,
            device=found[0],
            control_path=found[1],
            attributes=list(session.scalars(attributes)),
            handles=list(session.scalars(handles.order_by(handle.id))),
            providers=[provider for _part_id, provider in parts],
            host=found[2],
            operation=operation,
            now_ms=found[3],
        )
