# SPDX-License-Identifier: Apache-2.0
"""Devices by the letter of their test."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg import db
from cyborg.db import models


def device(letter: str) -> str:
    name = f"host-1_{letter}"
    device, deployable = models.Device, models.Deployable
    query = sa.select(device.uuid).join(deployable, deployable.device_id == device.id)
    with db.reader() as session:
        return session.scalars(query.where(deployable.name == name)).one()


def only_device() -> str:
    with db.reader() as session:
        return session.scalars(sa.select(models.Device.uuid)).one()
