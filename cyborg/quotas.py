# SPDX-License-Identifier: Apache-2.0
"""Limits of projects: how many ARQs, and how many accelerators of each resource class.

Keystone keeps the limits; it is asked before the transaction that creates ARQs. That transaction
locks the project, counts and compares, so that no two requests are both the last one.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, notifications
from cyborg.common import errors
from cyborg.db import models
from cyborg.notifications import notices
from cyborg.notifications.notices import Excess
from cyborg.peers import answers, clients

_PROJECT, _ARQ = models.ProjectLock, models.Arq

if TYPE_CHECKING:
    from oslo_limit import limit

#: The name of the limit of all ARQs, and what the name of a resource class's begins with.
REQUESTS = "accelerator_requests"
CLASS = "class:"

#: Limit by name. What has none is not limited.
Limits = Mapping[str, int]

#: A project is told of once in so many seconds that it is refused something.
NOTICE_SECONDS = 60

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


@contextlib.contextmanager
def announcing() -> Iterator[None]:
    """Tell of a request that is refused within; the transaction that would have made it is gone.

    Of one project that is done once in :data:`NOTICE_SECONDS`: who is refused asks again.
    """
    try:
        yield
    except QuotaExceeded as exc:
        project_id = exc.payload.project_id
        lately = sa.select(_PROJECT.id).where(_PROJECT.project_id == project_id, ~_due())
        if db.read_one(lately) is None:
            _announce(exc.payload)
        raise


def _due() -> sa.ColumnElement[bool]:
    noticed_ms = models.ProjectLock.quota_noticed_ms
    before = db.now_ms() - NOTICE_SECONDS * 1000
    return sa.or_(noticed_ms.is_(None), noticed_ms <= before)


@db.retry
def _announce(payload: notices.QuotaPayload) -> None:
    with db.writer() as session:
        lock(session, payload.project_id)
        ours = _PROJECT.project_id == payload.project_id
        if db.update(session, _PROJECT, ours, _due(), quota_noticed_ms=db.now_ms()):
            notifications.announce(session, [notices.Notice(notices.QUOTA_EXCEEDED, payload)])


def limits_of(conf: cfg.ConfigOpts, project_id: str | None) -> Limits:
    """The limits of a project, asked from Keystone; none if ``[oslo_limit]`` is not configured.

    :raises ServiceUnavailable: Keystone does not answer, or ``[oslo_limit]`` is wrong
    """
    if conf.oslo_limit.auth_type is None and conf.oslo_limit.auth_section is None:
        return {}
    # With openstacksdk, which is loaded by those who use it only.
    from openstack import exceptions as sdk_exc  # noqa: PLC0415

    try:
        with answers.within(answers.LONGEST):
            asked = _enforcer(conf)
            everything: Any = None
            limits = dict(asked.get_registered_limits(everything))
            limits |= dict(asked.get_project_limits(project_id, everything))
    except (ka_exc.ClientException, sdk_exc.SDKException) as exc:
        raise errors.ServiceUnavailable(
            f"The limits of the project cannot be read from Keystone: {exc}"
        ) from exc
    except answers.ODD as exc:
        raise errors.ServiceUnavailable(f"[oslo_limit] does not fit Keystone: {exc}.") from exc
    if not answers.fits(limits, {str: int}):
        raise errors.ServiceUnavailable("A limit in Keystone is not a number.")
    return limits


def _enforcer(conf: cfg.ConfigOpts) -> limit.Enforcer:
    from oslo_limit import limit  # noqa: PLC0415

    # Two threads may both make one; a lock would let all wait while Keystone hangs.
    if id(conf) not in _enforcers:
        # Its own one would wait for as long as Keystone drips.
        own: Any = clients.proxy(conf, "oslo_limit")
        limit._SDK_CONNECTION = own  # noqa: SLF001 - see above
        # It is asked for limits only; what is used is counted below.
        _enforcers[id(conf)] = limit.Enforcer(lambda _project, _names: {}, cache=False)
    return _enforcers[id(conf)]


def enforce(
    session: orm.Session, project_id: str | None, limits: Limits, classes: Collection[str]
) -> None:
    """Raise QuotaExceeded if the project may not have an ARQ more of each of ``classes``.

    From here to the end of the caller's transaction no other one creates ARQs of the project.
    """
    if not limits or project_id is None or not classes:
        return
    lock(session, project_id)
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


def lock(session: orm.Session, project_id: str) -> None:
    """Lock the row of a project until the transaction ends; make it if there is none.

    Something is written each time: of two transactions on two nodes of a Galera cluster, which do
    not wait for each other, the second fails at its end, and is tried again.
    """
    row = {"project_id": project_id, "created_at": models.utcnow(), "locks": 1}
    db.upsert(session, _PROJECT, [row], key=["project_id"], update={"locks": _PROJECT.locks + 1})


def classes_of(session: orm.Session, uuids: Collection[str]) -> list[str]:
    """The resource classes as which these ARQs count."""
    query = sa.select(_ARQ.resource_class).where(_ARQ.uuid.in_(uuids))
    return list(session.scalars(query.where(_ARQ.resource_class.is_not(None))))


def _used(session: orm.Session, project_id: str) -> dict[str, int]:
    """The ARQs of a project, in all and by class; those being deleted do not count."""
    query = (
        sa.select(_ARQ.resource_class, sa.func.count())
        .where(_ARQ.project_id == project_id)
        .group_by(_ARQ.resource_class)
    )
    counts = collections.Counter(dict(session.execute(query).all()))
    total = counts.total()
    return {f"{CLASS}{name}": count for name, count in counts.items() if name} | {REQUESTS: total}
