# SPDX-License-Identifier: Apache-2.0
"""Claims of our consumers that Placement has lost, or others have changed, are made again.

Cyborg owns these claims. Whoever has an attach handle keeps it: if Placement has given its room to
another consumer meanwhile, or does not have the provider, what nobody claims of it is reserved
until there is room again. The other consumer finds no free handle, and looks elsewhere or is told.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
from collections.abc import Mapping

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history, work
from cyborg.allocations import placement_claims, plans
from cyborg.audits import lost_allocations
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.placement import client, tree
from cyborg.states import allocation_states as states
from cyborg.states import arq_states

LOG = logging.getLogger(__name__)

_Amounts = Mapping[str, Mapping[str, int]]
_ROW, _ARQ = models.Allocation, models.Arq

#: The code of a reason, and what the owner may read.
_CLAIMED_AGAIN = "claimed_again"
_AGAIN = "Placement had lost what the consumer holds; it is claimed again."
_KEPT = "Placement has lost what the consumer holds; the consumer keeps it, and it is reserved."


def check_host(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Have claimed again what consumers hold of a host and Placement does not say.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    api = client.Client(conf)
    for row, is_noted in _read_host(item, conf.conductor.allocation_audit_interval * 1000):
        item.checkpoint()
        if is_noted or not _is_right(row, api.find_allocations(row.uuid)):
            work.want_once(work.ALLOCATE, row.uuid)


@db.retry
def _read_host(item: work.Item, interval_ms: int) -> list[tuple[models.Allocation, bool]]:
    """The consumers with handles of the host whose turn it is, and whether they lack a claim."""
    if not interval_ms:
        return []
    lacks = (_ARQ.allocation_uuid == _ROW.uuid, _ARQ.allocation_missed_ms.is_not(None))
    there = lost_allocations.on_hosts(sa.select(_ARQ.allocation_uuid).select_from(models.Host))
    with db.reader() as session:
        turn = lost_allocations.has_turn(session, item.taken_ms, interval_ms)
        there = there.where(models.Host.name == item.key, turn)
        query = sa.select(_ROW, sa.exists().where(*lacks))
        found = session.execute(query.where(_ROW.uuid.in_(there), _ROW.state.in_(states.HOLDING)))
        return [(row, is_noted) for row, is_noted in found]


def _wanted(row: models.Allocation) -> dict[str, dict[str, int]]:
    return plans.amounts(plans.load(row.plan))


def _is_right(row: models.Allocation, held: client.Holdings | None) -> bool:
    """Placement says of the consumer what is so."""
    owner = placement_claims.owner_of(row)
    return held is not None and (held.owner, held.amounts) == (owner, _wanted(row))


def defend(conf: cfg.ConfigOpts, item: work.Item, row: models.Allocation) -> None:
    """Claim again what Placement does not say that the consumer of an allocation holds.

    :raises TryLater: others change the same consumer or provider
    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    api = client.Client(conf)
    held = api.find_allocations(row.uuid)
    has: _Amounts = held.amounts if held else {}
    if _is_right(row, held):
        _note(item, row, has)
        return
    had = f"Placement had {has or 'nothing'} of {held.owner if held else 'nobody'} for it"
    try:
        _claim(api, item, row, held)
    except client.GenerationConflict as exc:
        raise work.TryLater(f"Others change what consumer {row.uuid} has: {exc}") from exc
    except client.RequestRefused as exc:
        why = f"{had}, and says now: {exc}"
        if _note(item, row, has, Reason("kept", _KEPT, why)):
            LOG.warning("Consumer %s keeps what it holds, which is reserved. %s", row.uuid, why)
    else:
        LOG.warning("The accelerators of consumer %s are claimed again. %s", row.uuid, had)
        _note(item, row, _wanted(row), Reason(_CLAIMED_AGAIN, _AGAIN, had))


def _claim(
    api: client.Client, item: work.Item, row: models.Allocation, held: client.Holdings | None
) -> None:
    """Have the consumer hold just what it should, also what was reserved for it.

    :raises RequestRefused: there is no room for it
    """
    wanted, owner = _wanted(row), placement_claims.owner_of(row)
    # Placement may have kept the consumer of a refused claim, whose generation it does not say.
    generation = held.generation if held else (None if item.attempts % 2 else 0)
    try:
        api.hold(row.uuid, owner, wanted, generation)
    except client.RequestRefused as exc:
        is_full = not isinstance(exc, client.GenerationConflict)
        if not (is_full and all(_make_room(api, row.uuid, *each) for each in wanted.items())):
            raise
        item.checkpoint()
        api.hold(row.uuid, owner, wanted, generation)


def _make_room(
    api: client.Client, consumer: str, provider: str, amounts: Mapping[str, int]
) -> bool:
    """Reserve less of a provider, by what the consumer needs and nobody else has claimed."""
    listed = api.find_provider(provider)
    if listed is None:
        return False
    found = api.read_provider(listed)
    others = [has for uuid, has in api.allocations(provider).items() if uuid != consumer]
    changed: dict[str, tree.Inventory] = {}
    for name, amount in amounts.items():
        inventory = found.inventories.get(name)
        taken = sum(has.get(name, 0) for has in others) + amount
        if inventory is None or taken > inventory.total:
            return False
        reserved = min(inventory.reserved, inventory.total - taken)
        changed[name] = dataclasses.replace(inventory, reserved=reserved)
    api.set_inventories(provider, {**found.inventories, **changed}, found.generation)
    return True


@db.retry
def _note(
    item: work.Item, row: models.Allocation, has: _Amounts, why: Reason | None = None
) -> bool:
    """Have reserved what the consumer holds beyond what it has in Placement; whether that is new.

    The next sync believes nothing that it knows of the providers: they may have been made anew.
    """
    left = collections.Counter({uuid: sum(amounts.values()) for uuid, amounts in has.items()})
    mine, missed = _ARQ.allocation_uuid == row.uuid, _ARQ.allocation_missed_ms
    query = sa.select(_ARQ.id, _ARQ.device_rp_uuid).where(mine).order_by(_ARQ.id)
    with work.holding(item) as session:
        lacking = []
        for arq, provider in session.execute(query):
            left[provider or ""] -= 1
            if left[provider or ""] < 0:
                lacking.append(arq)
        note = functools.partial(arq_states.note, session, mine)
        is_new = note(missed.is_(None), _ARQ.id.in_(lacking), allocation_missed_ms=db.now_ms()) > 0
        is_over = note(missed.is_not(None), _ARQ.id.not_in(lacking), allocation_missed_ms=None) > 0
        if why or is_over:
            known = models.ResourceProvider
            db.update(session, known, known.uuid.in_(_wanted(row)), generation=None)
            hosts = lost_allocations.on_hosts(sa.select(models.Host.name)).where(mine)
            work.want(session, work.PLACEMENT, session.scalars(hosts.distinct()))
        if why and (is_new or why.code == _CLAIMED_AGAIN):
            about = {"consumer_uuid": row.uuid, "project_id": row.project_id}
            what = {"kind": history.CLAIM_LOST, **why.columns("reason")}
            history.write(session, [{**about, **what, "ended_ms": db.now_ms()}])
    return is_new
