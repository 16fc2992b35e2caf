# SPDX-License-Identifier: Apache-2.0
"""What others are told of a host's report: devices that come, go, and fall ill."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import orm

from cyborg import notifications
from cyborg.db import models
from cyborg.inventory import changes
from cyborg.notifications import notices

News = Sequence[tuple[notices.Event, models.Device]]


def of_known(plan: changes.Plan) -> News:
    """What ``plan``, before it is carried out, means for the devices there are."""
    return list(_of_known(plan))


def _of_known(plan: changes.Plan) -> Iterator[tuple[notices.Event, models.Device]]:
    for row in plan.gone:
        if not row.missing:
            yield notices.DEVICE_MISSING, row
    for kept in plan.kept:
        if kept.row.missing:
            yield notices.DEVICE_FOUND, kept.row
        if kept.row.unhealthy != kept.device.unhealthy:
            ill = kept.device.unhealthy is not None
            yield notices.DEVICE_UNHEALTHY if ill else notices.DEVICE_HEALTHY, kept.row


def tell(
    session: orm.Session,
    hostname: str,
    known: News,
    *,
    new: Sequence[models.Device],
    deleted: Collection[int],
) -> None:
    """Announce what has become of the host's devices; a deleted one was announced as such."""
    told = [(notices.DEVICE_CREATED, row) for row in new]
    told += [(notices.DEVICE_UNHEALTHY, row) for row in new if row.unhealthy is not None]
    told += known
    notifications.announce(
        session,
        (notices.of_device(event, row, hostname) for event, row in told if row.id not in deleted),
    )
