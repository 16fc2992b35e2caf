# SPDX-License-Identifier: Apache-2.0
"""Claims allocations in Placement, binds them and gives them back: the handler of ``allocate/…``.

The state of the allocation says what is to be done. Each step may be run twice: a claim in
Placement replaces what was claimed for the same consumer before, and the rest is guarded by the
state.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, history, work
from cyborg.allocations import choosing, placement_claims, plans, reclaiming, service
from cyborg.arqs import bind_requests, binding
from cyborg.arqs.bind_requests import BindTarget
from cyborg.common import errors, reasons
from cyborg.common.reasons import NONE_FREE, Reason
from cyborg.db import models
from cyborg.placement import client
from cyborg.states import allocation_states as states

LOG = logging.getLogger(__name__)

_ALLOCATION, _ARQ = models.Allocation, models.Arq

#: Plans that are tried, since others may be faster, before the allocation fails.
_MOST_PLANS = 5

#: Why an allocation fails whose places are all taken meanwhile.
TAKEN = Reason(
    "taken", "Others have taken the accelerators that were free meanwhile; ask for them again."
)

#: The code of any other reason.
_FAILED = "failed"


def run(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Do what the state of the allocation asks for; what a claim was late for is given back."""
    row = db.read_one(sa.select(models.Allocation).where(models.Allocation.uuid == item.key))
    item.checkpoint()
    if item.attempts > 1 and (row is None or row.state not in states.HOLDING):
        placement_claims.expect_late(item)
    if row is not None and row.state == states.CLAIMING:
        try:
            _claim(conf, item, row)
        except work.LeaseLost:
            _have_looked_at(item.key)
            raise
    elif row is not None and row.state in states.HOLDING:
        _follow(item)
        reclaiming.defend(conf, item, row)
    else:
        placement_claims.give_back(client.Client(conf), item)
        _end(item)


@db.retry
def _have_looked_at(uuid: str) -> None:
    """Have whoever owns the work compare again: it may have been done before our claim arrived."""
    with db.writer() as session:
        work.want(session, work.ALLOCATE, [uuid])


class _BindRefused(errors.Conflict):
    """The claim cannot be bound; ``providers`` are those that are known to refuse it.

    If the code of the ``reason`` is NONE_FREE, they do so for this moment alone.
    """

    def __init__(self, reason: Reason, providers: Collection[str] = frozenset()) -> None:
        super().__init__(reason.whole)
        self.reason, self.providers = reason, frozenset(providers)


def _claim(conf: cfg.ConfigOpts, item: work.Item, row: models.Allocation) -> None:
    api, owner = client.Client(conf), placement_claims.owner_of(row)
    placing = row.request.get("placing", plans.PACK)
    plan = plans.load(row.plan)
    refused: set[str] = set()
    why, none_free = TAKEN, False
    for _ in range(_MOST_PLANS):
        try:
            if placement_claims.take(api, item, owner, plans.amounts(plan)):
                _bind(item)
        except placement_claims.NotOurs as exc:
            why, none_free = Reason(_FAILED, exc.sentence), False
            break
        except placement_claims.NoRoom as exc:
            why = TAKEN
            LOG.info("Looking for another place for allocation %s: %s", row.uuid, exc)
        except _BindRefused as exc:
            why = exc.reason
            refused |= exc.providers
            none_free |= why.code == reasons.NONE_FREE
            LOG.info("Looking for another place for allocation %s: %r", row.uuid, why.whole)
            # What it holds of the others is not free for it otherwise.
            placement_claims.give_back(api, item)
        else:
            return
        item.checkpoint()
        chooser = choosing.Chooser(conf, placing, 1, row.project_id, refused)
        again = _choose_again(chooser, plan)
        if again is None or (again == plan and why is not TAKEN):
            break
        if not _store(item, again):
            return
        plan = again
    # A handle is being cleaned, or another consumer, which is refused too, holds the claim.
    if none_free and item.taken_ms - item.wanted_ms < conf.api.bind_wait * 1000:
        raise work.NotYet(f"Allocation {row.uuid} waits for a free handle: {why.whole}")
    _fail(item, why)


def _choose_again(chooser: choosing.Chooser, plan: plans.Plan) -> plans.Plan | None:
    found = chooser.choose(plans.parts(plan))
    if found is None:
        return None
    return [
        dataclasses.replace(new, group_id=old.group_id, part=old.part)
        for new, old in zip(found, plan, strict=True)
    ]


@db.retry
def _store(item: work.Item, plan: plans.Plan) -> bool:
    """Record what is claimed next; False if nothing is to be claimed any more."""
    with work.holding(item) as session:
        where = (_ALLOCATION.uuid == item.key, _ALLOCATION.state == states.CLAIMING)
        return db.update(session, _ALLOCATION, *where, plan=plans.store(plan)) > 0


@db.retry
def _bind(item: work.Item) -> None:
    """Bind all of an allocation that is claimed, or nothing of it.

    :raises _BindRefused: some of it cannot be bound where it was claimed
    """
    with work.holding(item) as session:
        row = states.find_locked(session, item.key)
        if row is None or row.state != states.CLAIMING:
            return
        arqs = _lock_arqs(session, row.uuid)
        if len(arqs) != row.accelerators:
            deleted = Reason(_FAILED, "Some of its accelerator requests were deleted.")
            _give_up(session, row.uuid, deleted)
            return
        _bind_all(session, row, arqs)
        states.enter(session, states.BINDING, row.uuid)
        _settle(session, row)
        # What is wanted here is claimed at once, and would wait for the removal otherwise.
        work.finish_with(session, item)


def _bind_all(session: orm.Session, row: models.Allocation, arqs: Sequence[models.Arq]) -> None:
    mappings = {mapping.group_id: mapping for mapping in plans.load(row.plan)}
    targets = {
        arq.uuid: BindTarget(
            hostname=mappings[arq.device_profile_group_id].hostname,
            device_rp_uuid=mappings[arq.device_profile_group_id].rp_uuid,
            consumer_uuid=row.uuid,
        )
        for arq in arqs
    }
    try:
        by_uuid = {arq.uuid: arq for arq in arqs}
        ends = binding.bind(session, binding.Asker.ALLOCATION, [row.uuid], by_uuid, targets)
    except (errors.Conflict, errors.Invalid, errors.NotFound) as exc:
        raise _BindRefused(bind_requests.reason_of(exc)) from exc
    failed = [end for end in ends if end.reason]
    reasons = [end.reason for end in failed if end.reason]
    if reasons:
        providers = {end.arq.device_rp_uuid for end in failed if end.arq.device_rp_uuid}
        lasting = (each for each in reasons if each.code != NONE_FREE)
        raise _BindRefused(next(lasting, reasons[0]), providers)


def _lock_arqs(session: orm.Session, uuid: str) -> list[models.Arq]:
    query = sa.select(_ARQ).where(_ARQ.allocation_uuid == uuid).order_by(_ARQ.id)
    query = query.with_for_update().execution_options(populate_existing=True)
    return list(session.scalars(query))


@db.retry
def _follow(item: work.Item) -> None:
    with work.holding(item) as session:
        row = states.find_locked(session, item.key)
        if row is not None and row.state in states.HOLDING:
            _settle(session, row)


def _settle(session: orm.Session, row: models.Allocation) -> None:
    """Bring a locked allocation that is claimed into the state that its ARQs are in."""
    arqs = _lock_arqs(session, row.uuid)
    failed = next((arq for arq in arqs if arq.state not in models.SERVING), None)
    if failed is not None and failed.state == models.BIND_FAILED:
        # The history has it of the ARQ.
        public = failed.state_reason or "An accelerator could not be bound."
        why = Reason(_FAILED, public, failed.private_reason)
        _give_up(session, row.uuid, why, keep=False)
    elif failed is not None or len(arqs) != row.accelerators:
        taken = Reason(_FAILED, "An administrator has taken an accelerator of it away.")
        _give_up(session, row.uuid, taken)
    elif all(arq.state == models.BOUND for arq in arqs):
        states.enter(session, states.ACTIVE, row.uuid)


@db.retry
def _fail(item: work.Item, reason: Reason) -> None:
    with work.holding(item) as session:
        _give_up(session, item.key, reason)


def _give_up(session: orm.Session, uuid: str, reason: Reason, *, keep: bool = True) -> None:
    """Free the ARQs, have Placement follow, and keep the reason in the history."""
    why = reason.columns() | {"reason_code": reason.code}
    if states.enter(session, states.FAILING, uuid, **why):
        # %r: a driver's words may hold what no log file can.
        LOG.warning("Allocation %s is given back: %r", uuid, reason.whole)
        service.free_arqs(session, uuid)
        work.want(session, work.ALLOCATE, [uuid])
        if keep:
            row = models.Allocation
            owner = session.scalar(sa.select(row.project_id).where(row.uuid == uuid))
            history.keep_refusals(session, owner, reason, [{"consumer_uuid": uuid}])


@db.retry
def _end(item: work.Item) -> None:
    """Placement has it back: keep the reason of a failure, and delete what was released."""
    with work.holding(item) as session:
        if not states.enter(session, states.FAILED, item.key):
            released = (_ALLOCATION.uuid == item.key, _ALLOCATION.state == states.RELEASING)
            db.delete(session, _ALLOCATION, *released)
