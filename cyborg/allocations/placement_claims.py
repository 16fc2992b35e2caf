# SPDX-License-Identifier: Apache-2.0
"""An allocation's side in Placement: what its consumer holds there.

Placement keeps a type of each consumer, which says that it is ours, so that what Nova or others
have claimed is never changed here. Each function may be run twice.

Placement may carry out a claim late: a conductor that was killed, or gave up waiting, may have sent
one that Placement gets when the allocation has long been given back. So whoever takes the work over
has the consumer looked at again a while later: the work ``late-claim/<consumer>``. Only what this
database knows to have been claimed is looked at: what it does not know may be in use, as after it
was restored from a backup. The look gives nothing back. Whoever does the work
``allocate/<consumer>`` has the consumer for itself, and sees what was asked for meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client
from cyborg.states import allocation_states as states

LOG = logging.getLogger(__name__)

#: Seconds after which no server or proxy on the way still has a request that nobody waits for.
LOOK_AFTER = 600

#: Changes by others that one call is made again after.
_ATTEMPTS = 5


class NoRoom(errors.Conflict):
    """There is no room any more for what was chosen."""


class NotOurs(errors.Conflict):
    """Somebody else has claimed something for the consumer."""


def owner_of(row: models.Allocation) -> client.Owner:
    """The owner of the allocation, as Placement keeps it."""
    return client.Owner(
        project_id=row.project_id,
        user_id=row.user_id,
        consumer_type=f"{client.OWN_TYPES}{row.consumer_type}",
    )


def take(
    api: client.Client,
    item: work.Item,
    owner: client.Owner,
    amounts: Mapping[str, Mapping[str, int]],
) -> bool:
    """Hold exactly that for the consumer, whatever we held for it before.

    False if nothing is to be claimed for it any more.

    :raises NoRoom: there is no room for it
    :raises NotOurs: the consumer has something that is not ours
    :raises LeaseLost: another conductor may claim for it by now
    :raises TryLater: others change the same providers all the time
    """
    generation = None
    for _ in range(_ATTEMPTS):
        item.checkpoint()
        try:
            api.hold(item.key, owner, amounts, generation)
        except client.GenerationConflict:
            generation = _generation(api, item, generation)
            # What is there may be what our successor has claimed.
            if not _is_wanted(item):
                return False
        except client.NotAuthorized:
            raise
        except client.RequestRefused as exc:
            raise NoRoom(str(exc)) from exc
        else:
            return True
    raise work.TryLater(f"Others keep changing what consumer {item.key} claims")


def _generation(api: client.Client, item: work.Item, tried: int | None) -> int | None:
    """The generation of what we hold, if it is not the one that was tried.

    If that is nothing, it is None, or 0 if Placement has kept the consumer of a refused claim.
    """
    item.checkpoint()
    held = api.find_allocations(item.key)
    if held is not None and not held.owner.is_ours:
        raise NotOurs(
            f"Placement has an allocation of consumer {item.key} that Cyborg has not made; give "
            "another uuid, or delete that allocation.",
            "consumer",
        )
    if held is None:
        return 0 if tried is None else None
    return held.generation


@db.retry
def _is_wanted(item: work.Item) -> bool:
    """The allocation is still to be claimed, and by us."""
    row = models.Allocation
    query = sa.select(row.id).where(row.uuid == item.key, row.state == states.CLAIMING)
    with work.holding(item) as session:
        return session.scalar(query) is not None


def give_back(api: client.Client, item: work.Item) -> None:
    """Hold nothing for the consumer any more; what others have claimed for it stays.

    :raises LeaseLost: another conductor may claim for it by now
    :raises TryLater: others change the same consumer all the time
    """
    for _ in range(_ATTEMPTS):
        item.checkpoint()
        held = api.find_allocations(item.key)
        if held is None or not held.owner.is_ours:
            return
        item.checkpoint()
        try:
            api.hold(item.key, held.owner, {}, held.generation)
        except client.GenerationConflict:
            continue
        return
    raise work.TryLater(f"Others keep changing what consumer {item.key} has")


@db.retry
def expect_late(item: work.Item) -> None:
    """Have the consumer looked at later: a former attempt may have sent what is still to come."""
    with db.writer() as session:
        work.want(session, work.LATE_CLAIM, [item.key], after=LOOK_AFTER)


def look_for_late(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Have given back what we hold for a consumer that has no allocation.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    row = models.Allocation
    # One that a conductor brings to its end, and Placement with it.
    lives = sa.select(row.id).where(row.uuid == item.key, row.state != states.FAILED)
    if not clients.configured(conf, "placement") or db.read_one(lives) is not None:
        return
    held = client.Client(conf).find_allocations(item.key)
    if held is not None and held.owner.is_ours:
        LOG.warning("Consumer %s has a late claim and no allocation; it is given back", item.key)
        work.want_once(work.ALLOCATE, item.key)
