# SPDX-License-Identifier: Apache-2.0
"""Permits to write: an agent asks for one right before the first byte.

Between its order and that moment the operation may have ended, as when its host's record was
removed by force while the agent could not be reached.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, rpc
from cyborg.common import errors
from cyborg.db import models
from cyborg.programming import operations, program, using_arqs

#: Seconds within which a write must begin, counted by the agent from before it asked.
TERM = 10.0


@db.retry
def permit_write(asked: rpc.WriteRequest) -> rpc.WritePermit:
    """Permit the write, or say why not. Nobody else decides anything about it meanwhile.

    :raises ServiceUnavailable: its host is down, and must report first
    """
    with db.writer() as session:
        deployable = operations.lock(session, asked.deployable_uuid)
        operation = operations.active_on(session, asked.deployable_uuid)
        refused: str | None
        refused = f"Operation {asked.operation_uuid} has ended, or its deployable was removed."
        if deployable and operation and operation.uuid == asked.operation_uuid:
            refused = _why_not(session, asked, deployable, operation)
    return rpc.WritePermit(seconds=0.0 if refused else TERM, refused=refused)


def _why_not(
    session: orm.Session,
    asked: rpc.WriteRequest,
    deployable: models.Deployable,
    operation: models.Operation,
) -> str | None:
    if (operation.state, operation.writes) != (operations.WRITING, asked.write):
        return (
            f"Operation {operation.uuid} is {operation.state}, and write {asked.write} of "
            f"{operation.writes} is not wanted any more."
        )
    host, device = models.Host, models.Device
    query = sa.select(host).join(device, device.host_id == host.id)
    its = session.scalars(query.where(device.id == deployable.device_id)).one()
    if its.name != asked.host:
        return f"Deployable {deployable.uuid} is on host {its.name}, not on {asked.host}."
    if its.down:
        raise errors.ServiceUnavailable(f"Host {its.name} is down, and must report first.")
    if operation.asked_by == operations.RECOVERY:
        # It is written for those who have it.
        return None
    return using_arqs.why_not_now(session, deployable, program.of_operation(operation))
