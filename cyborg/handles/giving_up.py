# SPDX-License-Identifier: Apache-2.0
"""Giving up what ARQs have, or have left, without the steps that hosts are to do for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.policy.context import RequestContext
from cyborg.states import handle_states

LOG = logging.getLogger(__name__)

#: What the owner of an ARQ may read of its forced release.
_GIVEN_UP = "An administrator gave up the accelerator request."


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpArq:
    """An ARQ as it was, and what will not be done for it any more."""

    uuid: str
    state: str
    project_id: str | None
    instance_uuid: str | None
    hostname: str | None
    device_rp_uuid: str | None
    attach_handle_uuid: str | None
    #: ``prepare``, ``clean``, or None if no step was due.
    host_step: str | None
    #: Why the step failed so far, if it was tried.
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """What was given up or removed."""

    arqs: tuple[GivenUpArq, ...]
    #: Uuids of devices, and of their resource providers, which leave Placement when they can.
    devices: tuple[str, ...] = ()
    resource_providers: tuple[str, ...] = ()
    #: Sentences about what hosts may still do that was asked before.
    not_excluded: tuple[str, ...] = ()

    def __str__(self) -> str:
        arqs = [f"{arq.uuid} ({arq.state}, instance {arq.instance_uuid})" for arq in self.arqs]
        parts = {
            "ARQs": arqs,
            "devices": self.devices,
            "resource providers": self.resource_providers,
        }
        said = "; ".join(f"{name} {', '.join(each)}" for name, each in parts.items() if each)
        return " ".join([f"{said or 'nothing'}.", *self.not_excluded])


@db.retry
def release_arq(
    ctx: RequestContext, uuid: str, *, force: bool = False, reason: str | None = None
) -> GivenUp:
    """Free the handle of the caller's ARQ without the host step that it waits for.

    ``force`` does so even if the host is up, or the ARQ is Bound. The history keeps who has done
    it, and the ``reason``.

    Of an ARQ that was bound again, what it has left before is given up first. That may be on
    several hosts.

    :raises NotFound: there is none, or it is another project's
    :raises Conflict: it has no handle and has left none; or, without ``force``, a host may still
        do its step or an instance may use its device
    """
    handle, project = models.AttachHandle, ctx.project_scope
    ours = () if project is None else (handle.left_project == project,)
    with db.writer() as session:
        arqs = list(release.lock_arqs(session, ctx, [uuid]).values())
        left = handle_states.lock_left(session, handle.left_arq == uuid, *ours)
        if not arqs and not left:
            raise errors.NotFound.of("ExtArq", uuid=uuid)
        given_up = give_up(session, [] if left else arqs, left, reason, force=force)
    LOG.warning("Gave up the host steps of ARQ %s (%s): %s", uuid, history.in_log(reason), given_up)
    return given_up


def give_up(
    session: orm.Session,
    arqs: Sequence[models.Arq],
    left: Sequence[models.AttachHandle],
    reason: str | None,
    *,
    force: bool,
) -> GivenUp:
    """Give up locked ARQs, and locked handles that were left, in a fixed number of statements.

    :raises Conflict: see :func:`release_arq`
    """
    uses = _uses(session, arqs, left)
    for arq, host in uses:
        _refuse(arq, host, force=force)
    history.write(session, [_chronicle(arq, reason) for arq, _ in uses])
    release.force(session, arqs)
    release.give_up(session, left)
    late = tuple(
        f"Host {host.name} may still {arq.host_step} attach handle {arq.attach_handle_uuid}, if "
        "it was asked before."
        for arq, host in uses
        if host is not None and arq.host_step is not None
    )
    return GivenUp(arqs=tuple(arq for arq, _ in uses), not_excluded=late)


#: What is about to be given up, and the host that it is on, if it is a handle.
_Use = tuple[GivenUpArq, models.Host | None]
_NO_HANDLE: Any = (None, None, None, None)


def _uses(
    session: orm.Session, arqs: Sequence[models.Arq], left: Sequence[models.AttachHandle]
) -> list[_Use]:
    """What ARQs have, and what was left. Two SELECTs."""
    handle, deployable, step = models.AttachHandle, models.Deployable, models.Work
    ids = [*(arq.attach_handle_id for arq in arqs), *(each.id for each in left)]
    query = (
        sa.select(handle, deployable, models.Host, step.last_error)
        .join(deployable, deployable.id == handle.deployable_id)
        .join(models.Device, models.Device.id == deployable.device_id)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .outerjoin(step, sa.and_(step.kind == work.HOST_STEP, step.key == handle.uuid))
        .where(handle.id.in_(ids))
    )
    found: dict[int, Any] = {row[0].id: row for row in session.execute(query)}
    # Whoever has left a handle is not with its instance any more.
    were = [(arq, id_, None) for id_, arq in handle_states.leavers(session, left).items()]
    have = [(arq, arq.attach_handle_id or 0, arq.consumer_uuid) for arq in arqs]
    return [_use(arq, instance, found.get(id_)) for arq, id_, instance in [*have, *were]]


def _use(arq: models.Arq, instance: str | None, row: Any) -> _Use:
    handle, deployable, host, last_error = row or _NO_HANDLE
    given_up = GivenUpArq(
        uuid=arq.uuid,
        state=arq.state,
        project_id=arq.project_id,
        instance_uuid=instance,
        hostname=arq.hostname,
        device_rp_uuid=arq.device_rp_uuid,
        attach_handle_uuid=handle and handle.uuid,
        host_step=handle and _step(arq, handle, deployable),
        last_error=last_error,
    )
    return given_up, host


def _step(
    arq: models.Arq, handle: models.AttachHandle, deployable: models.Deployable
) -> str | None:
    """What the host is to do for the ARQ before others may have the handle."""
    if handle.missing and not deployable.clean_erases:
        return None
    if deployable.prepares and arq.state == models.BIND_STARTED and not handle.is_left:
        return "prepare"
    return "clean" if deployable.cleans or handle.is_to_overwrite else None


def _refuse(arq: GivenUpArq, host: models.Host | None, *, force: bool) -> None:
    what = f"ARQ {arq.uuid} is {arq.state}"
    if host is None and arq.state != models.BIND_STARTED:
        raise errors.Conflict(f"{what} without an attach handle; delete it.")
    if force:
        return
    is_down = host is not None and host.down
    if arq.state == models.BOUND and arq.instance_uuid:
        reports = "though its host does not report" if is_down else "and its host is up"
        raise errors.Conflict(
            f"{what}: instance {arq.instance_uuid} may still run with its device, {reports}. Give "
            "force=true if that instance is gone."
        )
    if not is_down:
        named = "its host" if host is None else f"its host {host.name}"
        raise errors.Conflict(
            f"{what}, and {named} is not known to be down: the host may yet do its step. Give "
            "force=true to go on without the step."
        )


def _chronicle(given_up: GivenUpArq, reason: str | None) -> dict[str, Any]:
    """The entry of the history for an ARQ that is given up."""
    return history.done(
        history.RELEASED,
        reason,
        device_uuid=history.device_of_provider(given_up.device_rp_uuid),
        handle_uuid=given_up.attach_handle_uuid,
        resource_class=history.class_of_handle(given_up.attach_handle_uuid),
        project_id=given_up.project_id,
        consumer_uuid=given_up.instance_uuid,
        arq_uuid=given_up.uuid,
        hostname=given_up.hostname,
        reason=_GIVEN_UP,
    )
