# SPDX-License-Identifier: Apache-2.0
"""Claims that Placement carries out late: the handler of ``late-claim/<consumer>``.

A conductor that was killed, or gave up waiting, may have sent a claim that Placement gets when the
allocation has long been given back. So whoever takes the work over has the consumer looked at
again a while later. Only what this database knows to have been claimed is looked at: what it does
not know may be in use, as after it was restored from a backup.

Nothing is given back here. Whoever does the work ``allocate/<consumer>`` has the consumer for
itself, and sees what was asked for meanwhile.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client
from cyborg.states import allocation_states as states

LOG = logging.getLogger(__name__)

#: Seconds after which no server or proxy on the way still has a request that nobody waits for.
LOOK_AFTER = 600


@db.retry
def expect(claim: work.Claim) -> None:
    """Have the consumer looked at later: a former attempt may have sent what is still to come."""
    with db.writer() as session:
        work.want(session, work.LATE_CLAIM, [claim.key], after=LOOK_AFTER)


def look(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    """Have given back what we hold for a consumer that has no allocation.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    if not clients.configured(conf, "placement") or _has_allocation(claim.key):
        return
    held = client.Client(conf).find_held(claim.key)
    if held is not None and held.owner.is_ours:
        LOG.warning("Consumer %s has a late claim and no allocation; it is given back", claim.key)
        work.want_once(work.ALLOCATE, claim.key)


@db.retry
def _has_allocation(uuid: str) -> bool:
    """Whether it has one that a conductor brings to its end, and Placement with it."""
    row = models.Allocation
    query = sa.select(row.id).where(row.uuid == uuid, row.state != states.FAILED)
    with db.reader() as session:
        return session.scalar(query) is not None
