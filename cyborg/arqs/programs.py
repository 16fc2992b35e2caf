# SPDX-License-Identifier: Apache-2.0
"""Programs of accelerator requests: what a group asks its deployable to run."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from oslo_utils import uuidutils

from cyborg import db, errors, work
from cyborg.db import models
from cyborg.programming import operations, program

LOG = logging.getLogger(__name__)


class CannotRun(errors.CyborgError):
    """The deployable will not run what the ARQ asks for; the message says why."""


def obstacle(
    group: Mapping[str, str],
    deployable: models.Deployable,
    coming: Mapping[str, program.Program] | None = None,
) -> str | None:
    """Why no handle of the deployable may be given out for the group now, or None.

    ``coming`` is what deployables in doubt will run, by their uuids: who wants that waits for it.
    """
    what = program.of_group(group)
    if not deployable.is_settled:
        its = (coming or {}).get(deployable.uuid, program.Program())
        return None if what and what.is_part_of(its) else "being programmed"
    if what and deployable.program_mode is None:
        return f"not programmable, and not known to run {what}"
    if lacks_program(group, deployable):
        return "not programmed yet"
    return None


def lack(
    arq: models.Arq, deployable: models.Deployable | None, coming: Mapping[str, program.Program]
) -> str | None:
    """Why no handle of the provider may be given out now, whatever was so when it was asked for.

    A device that was disabled since then serves the request still: an administrator who disables
    it looks after those who have it. One that ails would fail its guest.
    """
    if deployable is None or deployable.missing:
        return "gone from its host"
    if deployable.device.unhealthy is not None:
        return f"unhealthy: {deployable.device.unhealthy}"
    return obstacle(arq.group, deployable, coming)


def flaw(group: Mapping[str, str]) -> str | None:
    """Why no deployable at all can run what the group asks for, or None."""
    image = program.of_group(group).image_uuid
    if image is not None and not uuidutils.is_uuid_like(image):
        return f"accel:bitstream_id {image} is no UUID of an image"
    return None


def runs_nothing(deployable: models.Deployable) -> bool:
    """Whether the deployable has to be programmed before anybody can use it."""
    known = deployable.bitstream_id or deployable.function_id
    return deployable.program_mode == models.SINGLE_PROGRAM and not known


def lacks_program(group: Mapping[str, str], deployable: models.Deployable) -> bool:
    """Whether the deployable runs nothing, and the group asks for nothing that it is to run."""
    return runs_nothing(deployable) and not program.of_group(group)


def serves(group: Mapping[str, str], deployable: models.Deployable) -> bool:
    """Whether the deployable runs what the group asks for, for sure."""
    lacks = lacks_program(group, deployable) or needs_programming(group, deployable)
    return not lacks and deployable.is_settled


def needs_programming(group: Mapping[str, str], deployable: models.Deployable) -> bool:
    """Whether the deployable does not run what the group asks for."""
    what = program.of_group(group)
    return bool(what) and not what.is_run_by(deployable)


@db.retry
def ensure(claim: work.Claim, arq: models.Arq, deployable_uuid: str) -> bool:
    """Whether the deployable runs what the BindStarted ARQ asks for; if not, have it programmed.

    :raises CannotRun: it cannot be programmed so, or that has failed for this binding
    """
    what = program.of_group(arq.group)
    instance = arq.instance_uuid
    if not what or instance is None:
        return True
    with db.writer() as session:
        # In the order in which the end of programming takes both.
        deployable = operations.lock(session, deployable_uuid)
        work.hold(session, claim)
        if deployable is None:
            raise CannotRun("The deployable is gone from its host.")
        if what.is_run_by(deployable):
            return True
        last = operations.ended_for(
            session, deployable_uuid, instance, arq.bind_started_ms or 0
        )
        if last is not None and last.state == operations.FAILED:
            reason = last.error if last.fault != operations.CONFLICT else _neutral(arq, last.error)
            raise CannotRun(f"It could not be programmed with {what}: {reason}")
        try:
            operations.request(
                session,
                deployable,
                what,
                asked_by=f"instance {instance}",
                instance_uuid=instance,
            )
        except errors.NotOffered as exc:
            raise CannotRun(str(exc)) from exc
        except errors.Conflict as exc:
            other = operations.active_on(session, deployable_uuid) is not None
            reason = _neutral(arq, exc, "being programmed with something else" if other else None)
            raise CannotRun(
                f"Deployable {deployable_uuid} cannot be programmed: {reason}"
            ) from exc
    return False


def _neutral(arq: models.Arq, known: object, state: str | None = None) -> str:
    """What the ARQ's own project is told of a conflict: nothing of those who are in the way."""
    LOG.info("ARQ %s cannot have its program: %s", arq.uuid, known)
    return f"it is {state or 'in use'}."


def hindrance(deployable_uuid: str) -> str | None:
    """Why what the deployable has lost could not be put back so far, or None."""
    with db.reader() as session:
        present = operations.active_on(session, deployable_uuid)
    return None if present is None else present.error
