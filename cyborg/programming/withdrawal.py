# SPDX-License-Identifier: Apache-2.0
"""Before a deployable is written: Placement offers nothing of it, and nobody has any of it."""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db, rpc, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.peers import clients, glance
from cyborg.placement import client, desired
from cyborg.programming import operations, program, using_arqs
from cyborg.programming.locked_operation import CannotProgram
from cyborg.programming.operation_facts import OperationFacts

LOG = logging.getLogger(__name__)

#: Seconds that an operation waits for Placement to be updated, and between two looks.
PLACEMENT_WAIT = 2.0
_POLL = 0.05

_HAS = "Consumer {} has an allocation of provider {} in Placement."


def reserve(conf: cfg.ConfigOpts, item: work.Item, known: OperationFacts) -> None:
    """Wait until Placement offers nothing of the deployable and nobody has any of it.

    :raises CannotProgram: a consumer has an allocation of it
    :raises TryLater: Placement still offers it
    """
    api = client.Client(conf)
    _await_placement(api, item, known)
    refuse_consumers(api, item, known)


def _await_placement(api: client.Client, item: work.Item, known: OperationFacts) -> None:
    """Wait until Placement offers nothing of the deployable, and nobody is about to offer it.

    This thread must not update Placement itself: one that does already could have read the database
    before the inventory was to be withdrawn. Only that attempt is awaited. Others follow each other
    without end on a busy host, and have read it since. An attempt may also have failed for another
    provider of the host, such as one that is gone and still has allocations.

    :raises TryLater: it is offered, or that attempt takes too long
    """
    rpc.kick()
    host = known.host.name
    # Inventory of other classes belongs to somebody else, who may leave it there.
    ours = {each.value for each in known.attributes if each.key == base.RESOURCE_CLASS_KEY}
    began, seen = time.monotonic(), None
    first = present = work.progress(work.PLACEMENT, host)
    while True:
        item.checkpoint()
        is_first = present and first and present.owner and present.owner == first.owner
        if not is_first and (present is None or present != seen):
            why_not = desired.why_not_withdrawn(api, known.providers, ours)
            if why_not is None:
                return
            if present is None:
                work.want_once(work.PLACEMENT, host)
            if present is None or not present.is_untried:
                raise work.TryLater(why_not)
            seen = present
        if time.monotonic() >= began + PLACEMENT_WAIT * (5 if is_first else 1):
            raise work.TryLater(f"Placement is not updated yet with what host {host} offers.")
        time.sleep(_POLL)
        present = work.progress(work.PLACEMENT, host)


def refuse_consumers(
    api: client.Client,
    item: work.Item,
    known: OperationFacts,
    image: glance.Image | None = None,
) -> None:
    """Raise CannotProgram if a consumer with an allocation does not wait for what is written.

    :raises NotYet: the same, but the operation overwrites, or all who have one have asked for it
        and left, and others still want it: Nova gives the allocation of an instance back a little
        later than its ARQs
    """
    if known.operation.asked_by == operations.RECOVERY:
        return
    holds = _holders(api, known)
    consumers, left = set(holds), set[str]()
    with db.reader() as session:
        operation = operations.active_on(session, item.key)
        if operation is not None:
            waiting = {arq.consumer_uuid for arq in using_arqs.waiting(session, operation, image)}
            consumers -= waiting
            if waiting or not operations.is_for_binds(operation):
                users = using_arqs.instances(session, known.deployable)
                left = operations.instances(operation) - users
    if not consumers:
        return
    who = _HAS.format(min(consumers), holds[min(consumers)])
    if known.operation.asked_by == operations.CLEANING or consumers <= left:
        raise work.NotYet(who)
    raise CannotProgram(operations.CONFLICT, who)


def _holders(api: client.Client, known: OperationFacts) -> dict[str, str]:
    """The consumers with allocations, each with a provider of which it has some."""
    return {who: each for each in known.providers for who in api.allocations(each)}


def refuse_held(conf: cfg.ConfigOpts, deployable_uuid: str, what: program.Program) -> None:
    """Raise Conflict if Placement says at once that a consumer without an ARQ has the deployable.

    It is asked again before anything is written, also if it does not answer now.
    """
    found = _read(deployable_uuid, what) if clients.configured(conf, "placement") else None
    if found is None:
        return
    provider, known = found
    try:
        others = client.Client(conf).allocations(provider).keys() - known
    except (errors.CyborgError, ka_exc.ClientException) as exc:
        LOG.warning("Placement cannot be asked who has provider %s: %s", provider, exc)
        return
    if others:
        raise errors.Conflict(
            f"Deployable {deployable_uuid} cannot be programmed: "
            + _HAS.format(min(others), provider)
        )


def _read(deployable_uuid: str, what: program.Program) -> tuple[str, set[str]] | None:
    """The provider, and the instances that the database knows; None if nothing would be written."""
    row = models.Deployable
    with db.reader() as session:
        found = session.scalar(sa.select(row).where(row.uuid == deployable_uuid))
        if found is None or found.program_mode is None or not found.is_settled:
            return None
        if what.is_run_by(found.record) or what.may_be_run_by(found.record):
            return None
        if operations.active_on(session, deployable_uuid) is not None:
            return None
        return found.rp_uuid, using_arqs.instances(session, found)
