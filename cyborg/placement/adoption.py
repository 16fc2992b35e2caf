# SPDX-License-Identifier: Apache-2.0
"""Providers that were in Placement before this database knew them.

They may have allocations of instances that another Cyborg, or this one with another database, has
given devices. Nobody knows which attach handles those have, so nothing of such a provider is given
out: it is *withheld* until each allocation is explained by an ARQ, is gone, or is accepted by an
administrator. The same goes for a provider that waits for its deletion, since somebody still has
an allocation of it, when its device is reported again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import errors
from cyborg.common.reasons import is_news
from cyborg.db import models
from cyborg.placement import client, desired

LOG = logging.getLogger(__name__)

#: The most consumers that a reason names.
_MOST_NAMED = 5

#: The reason of a provider until its host is synced, if it was imported or its device is back.
NOT_COMPARED = (
    "It was imported, or its device was gone, and its allocations in Placement are still to be "
    "compared with its accelerator requests."
)


def doubt(session: orm.Session, uuids: Collection[str]) -> None:
    """Give out nothing of those that are known from before, until their allocations are seen."""
    row = models.ResourceProvider
    known = session.scalars(sa.select(row.id).where(row.uuid.in_(uuids))).all() if uuids else ()
    if known:
        db.update(session, row, row.id.in_(known), row.withheld.is_(None), withheld=NOT_COMPARED)


def take_stock(
    api: client.Client,
    state: desired.HostState,
    uuids: Iterable[str],
    *,
    unwritten: bool = False,
) -> bool:
    """Withhold those of the providers with allocations that no ARQ explains, and give back others.

    Only what was found in Placement and is not known yet, or is withheld already, is looked at;
    and with ``unwritten`` also what is ours and was not seen as we have left it. Returns whether
    the database has changed, so that ``state`` is old.
    """
    looked_at = [uuid for uuid in uuids if _is_open(state, uuid, unwritten=unwritten)]
    arqs = _arqs(looked_at) if looked_at else {}
    changed = False
    for uuid in looked_at:
        try:
            held = api.allocations(uuid)
        except client.NoSuchProvider:
            held = {}
        foreign = {
            consumer
            for consumer, amounts in held.items()
            if sum(amounts.values()) > arqs.get((uuid, consumer), 0)
        }
        known = state.records.get(uuid)
        reason = _reason(foreign) if foreign else None
        if is_news(known.withheld if known else None, reason):
            _record(state, uuid, known.withheld if known else None, reason)
            changed = True
    return changed


def _is_open(state: desired.HostState, uuid: str, *, unwritten: bool) -> bool:
    """The provider has allocations that are still to be explained."""
    known = state.records.get(uuid)
    if known is None or known.withheld is not None:
        return uuid in state.providers
    return unwritten and known.generation is None


def _reason(foreign: Collection[str]) -> str:
    named = ", ".join(sorted(foreign)[:_MOST_NAMED])
    more = len(foreign) - _MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    return (
        f"Placement has allocations of its resource provider that no accelerator request explains, "
        f"of consumers {named}{others}; import them, or accept them with `cyborg-status accept`."
    )


@db.retry
def _arqs(providers: Collection[str]) -> dict[tuple[str, str], int]:
    """The number of ARQs that each instance has of each provider."""
    arq = models.Arq
    pair = (arq.device_rp_uuid, arq.consumer_uuid)
    query = (
        sa.select(*pair, sa.func.count())
        .where(arq.device_rp_uuid.in_(providers), arq.consumer_uuid.is_not(None))
        .group_by(*pair)
    )
    return {(str(rp), str(instance)): number for rp, instance, number in db.rows(query)}


@db.retry
def _record(state: desired.HostState, uuid: str, before: str | None, reason: str | None) -> None:
    """Change the reason from ``before``; one that an administrator has accepted meanwhile stays."""
    row, name = models.ResourceProvider, state.providers[uuid].name
    same = row.withheld.is_not_distinct_from(before)
    with db.writer() as session:
        if not db.update(session, row, row.uuid == uuid, same, withheld=reason):
            if session.scalar(sa.select(row.id).where(row.uuid == uuid)) is not None:
                return
            new = {"uuid": uuid, "name": name, "written": desired.NOTHING_WRITTEN}
            session.add(row(host_id=state.host_id, withheld=reason, **new))
    if reason:
        LOG.warning("Nothing of provider %s (%s) is given out: %s", name, uuid, reason)
    else:
        LOG.info("Provider %s (%s) is given out: its allocations are explained", name, uuid)


@db.retry
def accept(uuid: str) -> str:
    """Give a withheld provider out, whoever has allocations of it; the reason that it had.

    :raises NotFound: no provider of that uuid is withheld
    """
    row, host = models.ResourceProvider, models.Host
    query = sa.select(row).where(row.uuid == uuid, row.withheld.is_not(None)).with_for_update()
    with db.writer() as session:
        found = session.scalar(query)
        if found is None or found.withheld is None:
            raise errors.NotFound.of("Withheld resource provider", uuid=uuid)
        reason, found.withheld = found.withheld, None
        its_host = sa.select(host.name).where(host.id == found.host_id)
        work.want(session, work.PLACEMENT, session.scalars(its_host))
        return reason
