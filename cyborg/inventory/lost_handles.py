# SPDX-License-Identifier: Apache-2.0
"""What becomes of the ARQs whose attach handles a report does not show any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import orm

from cyborg import arq_states, db
from cyborg.db import models
from cyborg.notifications import notices

_VANISHED = "The device vanished from its host while it was being prepared."


def fail_binds(
    session: orm.Session, lost: Iterable[models.AttachHandle], device_uuids: Mapping[int, str]
) -> None:
    """Fail the binds for which a lost handle is being prepared.

    ``device_uuids`` names the device of each deployable by the deployable's id.

    :raises RestartTransaction: one of them has ended meanwhile
    """
    ends = [
        arq_states.BindEnd(
            handle.arq,
            _VANISHED,
            notices.Handle(handle.uuid, handle.attach_type, device_uuids[handle.deployable_id]),
        )
        for handle in lost
        if handle.arq is not None and handle.arq.state == models.BIND_STARTED
    ]
    if ends and not arq_states.end_binds(session, ends, attach_handle_id=None):
        raise db.RestartTransaction


def pending_steps(lost: Iterable[models.AttachHandle]) -> Iterator[str]:
    """Lost handles, or found ones, with a step pending; its handler sees whether it is due."""
    for handle in lost:
        if handle.arq is not None and handle.arq.state not in models.SERVING:
            yield handle.uuid
