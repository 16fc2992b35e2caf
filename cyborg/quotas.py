# SPDX-License-Identifier: Apache-2.0
"""Limits of projects: how many ARQs, and how many accelerators of each resource class.

Keystone keeps the limits; it is asked before the transaction that creates ARQs. That transaction
locks the project, counts and compares, so that no two requests are both the last one.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, errors, notifications
from cyborg.db import models
from cyborg.notifications import notices
from cyborg.notifications.notices import Excess
from cyborg.request_groups import RequestGroup

if TYPE_CHECKING:
    from oslo_limit import limit

#: The name of the limit of all ARQs, and what the name of a resource class's begins with.
REQUESTS = "accelerator_requests"
CLASS = "class:"

#: Limit by name. What has none is not limited.
Limits = Mapping[str, int]

_lock = threading.Lock()
_enforcers: dict[int, limit.Enforcer] = {}


class QuotaExceeded(errors.Forbidden):
    """The project would have more than its limit."""

    def __init__(self, project_id: str, exceeded: Sequence[Excess]) -> None:
        said = (
            f"{each.limit_name}: used {each.used}, limit {each.limit}, asked for {each.asked}"
            for each in exceeded
        )
        super().__init__(f"The quota of the project is exceeded: {'; '.join(said)}.")
        self.payload = notices.QuotaPayload(project_id=project_id, exceeded=exceeded)


@db.retry
def announce(refusal: QuotaExceeded) -> None:
    """Tell of a request that was refused; the transaction that would have made it is gone."""
    with db.writer() as session:
        notice = notices.Notice(notices.QUOTA_EXCEEDED, refusal.payload)
        notifications.announce(session, [notice])


def limits_of(conf: cfg.ConfigOpts, project_id: str | None) -> Limits:
    """The limits of a project, asked from Keystone; none if ``[oslo_limit]`` is not configured.

    :raises ServiceUnavailable: Keystone does not answer, or ``[oslo_limit]`` is wrong
    """
    if conf.oslo_limit.auth_type is None and conf.oslo_limit.auth_section is None:
        return {}
    # With openstacksdk, which is loaded by those who use it only.
    from openstack import exceptions as sdk_exc  # noqa: PLC0415
    from oslo_limit import exception as limit_exc  # noqa: PLC0415

    try:
        asked = _enforcer(conf)
        everything: Any = None
        limits = dict(asked.get_registered_limits(everything))
        return limits | dict(asked.get_project_limits(project_id, everything))
    except (ka_exc.ClientException, sdk_exc.SDKException, limit_exc.SessionInitError) as exc:
        raise errors.ServiceUnavailable(
            f"The limits of the project cannot be read from Keystone: {exc}"
        ) from exc
    except ValueError as exc:
        raise errors.ServiceUnavailable(f"[oslo_limit] does not fit Keystone: {exc}.") from exc


def _enforcer(conf: cfg.ConfigOpts) -> limit.Enforcer:
    from oslo_limit import limit  # noqa: PLC0415

    with _lock:
        if id(conf) not in _enforcers:
            # It is asked for limits only; what is used is counted below.
            _enforcers[id(conf)] = limit.Enforcer(lambda _project, _names: {}, cache=False)
        return _enforcers[id(conf)]


def enforce(
    session: orm.Session, project_id: str | None, limits: Limits, classes: Collection[str]
) -> None:
    """Return if the project may have an ARQ of each of ``classes`` besides those that it has.

    From here to the end of the caller's transaction no other one creates ARQs of the project.

    :raises QuotaExceeded: it may not
    """
    if not limits or project_id is None or not classes:
        return
    lock = {"project_id": project_id, "created_at": models.utcnow()}
    same = {"project_id": project_id}
    db.upsert(session, models.ProjectLock, [lock], key=["project_id"], update=same)
    used = _used(session, project_id)
    asked = {f"{CLASS}{name}": list(classes).count(name) for name in set(classes)}
    asked[REQUESTS] = len(classes)
    over = [
        Excess(limit_name=name, used=used.get(name, 0), limit=limits[name], asked=more)
        for name, more in sorted(asked.items())
        if 0 <= limits.get(name, -1) < used.get(name, 0) + more
    ]
    if over:
        raise QuotaExceeded(project_id, over)


def _used(session: orm.Session, project_id: str) -> dict[str, int]:
    """How many ARQs a project has, in all and by class; those being deleted do not count."""
    arq = models.Arq
    query = (
        sa.select(arq.resource_class, sa.func.count())
        .where(arq.project_id == project_id, arq.state != models.DELETING)
        .group_by(arq.resource_class)
    )
    counts = collections.Counter(dict(session.execute(query).tuples().all()))
    total = counts.total()
    if counts.pop(None, 0):
        # Made by a process of a release before; `cyborg-status check --repair` writes their class.
        groups = sa.select(arq.group).where(
            arq.project_id == project_id,
            arq.state != models.DELETING,
            arq.resource_class.is_(None),
        )
        named = (RequestGroup.parse(group).classes[:1] for group in session.scalars(groups))
        counts.update(itertools.chain.from_iterable(named))
    return {f"{CLASS}{name}": count for name, count in counts.items()} | {REQUESTS: total}
