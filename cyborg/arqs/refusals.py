# SPDX-License-Identifier: Apache-2.0
"""Why requests for accelerators were refused, for the history.

Nova tells the owner of an instance only that its accelerators could not be had, and deletes the
ARQs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from cyborg import db, history
from cyborg.arqs import service
from cyborg.common import errors, reasons
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.policy.context import RequestContext

if TYPE_CHECKING:
    from cyborg.arqs.bind_requests import BindTarget

#: What a caller is told that will not pass by itself, or not soon.
REFUSALS = (errors.Conflict, errors.Forbidden, errors.Invalid, errors.NotFound)

#: What the owner of an instance reads of a bind that Nova asked for.
MISPLACED = (
    "The requested accelerators do not fit the place of the instance. Try again; if that fails "
    "too, ask the administrator of the cloud."
)


@db.retry
def of_binds(
    ctx: RequestContext, binds: Mapping[str, BindTarget], refusal: errors.CyborgError, whole: str
) -> None:
    """Keep why binds were refused; ``whole`` is that in full."""
    match refusal:
        case errors.Forbidden():
            public = refusal.message
        case errors.Conflict():
            public = reasons.OF_BINDS[reasons.UNAVAILABLE]
        case _:
            public = MISPLACED
    reason = Reason(reasons.UNAVAILABLE, public, whole)
    arq = models.Arq
    owners = sa.select(arq.uuid, arq.project_id).where(arq.uuid.in_(binds), *service.in_scope(ctx))
    with db.writer() as session:
        known = dict(session.execute(owners).all())
        of_projects: dict[str | None, list[dict[str, Any]]] = {}
        for uuid, target in binds.items():
            project = target.project_id or known.get(uuid) or ctx.project_id
            entry = {
                "consumer_uuid": target.consumer_uuid,
                "arq_uuid": uuid,
                "hostname": target.hostname,
                "device_uuid": history.device_of_provider(target.device_rp_uuid),
            }
            of_projects.setdefault(project, []).append(entry)
        # The ARQs of an instance are of one project.
        for project, entries in of_projects.items():
            history.keep_refusals(session, project, reason, entries)


@contextlib.contextmanager
def kept(ctx: RequestContext, consumer: str | None = None) -> Iterator[None]:
    """Keep why the block refuses a request of the caller's, for this consumer if it is known."""
    try:
        yield
    except REFUSALS as exc:
        _keep(ctx, consumer, Reason(reasons.UNAVAILABLE, exc.message))
        raise


@db.retry
def _keep(ctx: RequestContext, consumer: str | None, reason: Reason) -> None:
    with db.writer() as session:
        history.keep_refusals(session, ctx.project_id, reason, [{"consumer_uuid": consumer}])
