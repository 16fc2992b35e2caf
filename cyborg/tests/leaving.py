# SPDX-License-Identifier: Apache-2.0
"""Attach handles that their last user has left, and that are not clean."""

from __future__ import annotations

from sqlalchemy import orm

from cyborg.db import models
from cyborg.states import handle_states


def left(
    session: orm.Session,
    handle: models.AttachHandle,
    *,
    uuid: str | None = None,
) -> str:
    """Have a handle left by an ARQ that is deleted; the uuid of that."""
    arq = models.Arq(
        uuid=uuid or models.new_uuid(),
        project_id="p",
        state=models.BOUND,
        device_profile_name="dp",
        device_profile_group_id=0,
        group={},
        needs_write=False,
        created_at=models.utcnow(),
    )
    handle_states.leave(session, [handle_states.Leaving(handle.id, arq, handle_states.Event.LEFT)])
    return arq.uuid
