# SPDX-License-Identifier: Apache-2.0
"""Cyborg's ARQs, Placement's allocations and Nova's instances compared.

For ``cyborg-status check``. Nothing is changed but by :func:`carry_out`.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import clients, db, nova, work
from cyborg.arqs import release
from cyborg.db import models
from cyborg.placement import client, compare, desired

#: Seconds between two looks at what does not fit, by default.
SETTLE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What an instance has of one provider differs between Cyborg and Placement."""

    host: str
    provider: str
    consumer: str
    #: The ARQs of the instance there, and how many of them hold a handle for it.
    arqs: tuple[str, ...]
    serving: int
    allocated: int

    def __str__(self) -> str:
        """A sentence for operators."""
        where = f"of provider {self.provider}"
        if not self.arqs:
            return f"Consumer {self.consumer} has {self.allocated} {where} and no ARQ there."
        named = ", ".join(self.arqs)
        if not self.allocated:
            return f"Instance {self.consumer} has ARQs {named} {where} and no allocation there."
        return (
            f"Instance {self.consumer} has {len(self.arqs)} ARQs {where}, {named}, and an "
            f"allocation of {self.allocated} there."
        )


class Action(enum.Enum):
    """What a repair does."""

    NOTHING = enum.auto()
    RELEASE = enum.auto()
    DROP = enum.auto()
    GIVE_BACK = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What would put a difference right, explained."""

    action: Action
    explanation: str


def compare_all(conf: cfg.ConfigOpts, *, settle: float) -> Iterator[Difference]:
    """What still does not fit after ``settle`` seconds; nothing if consumers need not claim.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    if not conf.conductor.allocation_audit_interval:
        return
    api = client.Client(conf)
    first: dict[str, set[Difference]] = {}
    for name in compare.host_names():
        if found := set(_differences(api, name)):
            first[name] = found
    if first:
        # An instance is given its allocation before its ARQs, and loses it after them.
        time.sleep(settle)
    for name, before in first.items():
        yield from (again for again in _differences(api, name) if again in before)


def _differences(api: client.Client, host_name: str) -> list[Difference]:
    state = desired.read(host_name)
    if state is None:
        return []
    found: list[Difference] = []
    arqs = _arqs(state.records)
    for provider, record in sorted(state.records.items()):
        allocated = _allocated(api, provider, record.ours.classes)
        bound = arqs.get(provider, {})
        for consumer in sorted(allocated.keys() | bound.keys()):
            states = bound.get(consumer, {})
            serving = sum(state in models.SERVING for state in states.values())
            difference = Difference(
                host=host_name,
                provider=provider,
                consumer=consumer,
                arqs=tuple(states),
                serving=serving,
                allocated=allocated.get(consumer, 0),
            )
            if not serving <= difference.allocated <= len(states):
                found.append(difference)
    return found


def _allocated(
    api: client.Client, provider: str, classes: Iterable[str]
) -> dict[str, int]:
    """How much of our classes each consumer has of a provider."""
    try:
        held = api.allocations(provider)
    except client.NotFound:
        return {}
    amounts = {
        consumer: sum(amount for name, amount in resources.items() if name in classes)
        for consumer, resources in held.items()
    }
    return {consumer: amount for consumer, amount in amounts.items() if amount}


@db.retry
def _arqs(providers: Iterable[str]) -> dict[str, dict[str, dict[str, str]]]:
    """The state of each ARQ that stands for a claim, by provider, instance and uuid."""
    arq = models.Arq
    query = (
        sa.select(arq.device_rp_uuid, arq.instance_uuid, arq.uuid, arq.state)
        .where(arq.device_rp_uuid.in_(list(providers)), arq.state.in_(models.ASKED))
        .order_by(arq.id)
    )
    found: dict[str, dict[str, dict[str, str]]] = {}
    with db.reader() as session:
        for provider, instance, uuid, state in session.execute(query):
            if provider and instance:
                found.setdefault(provider, {}).setdefault(instance, {})[uuid] = state
    return found


def plan_repair(conf: cfg.ConfigOpts, difference: Difference) -> Repair:
    """What can safely be done about a difference; Nova is asked.

    Nothing is done for an instance that Nova has: it may use what it was given. Nova does not
    migrate or resize instances with accelerators, so no migration owns an allocation of them.

    :raises MayNotLook: Nova does not let Cyborg see whether an instance is gone
    :raises keystoneauth1.exceptions.ClientException: Nova does not answer
    """
    if _is_allocation(difference.consumer):
        return _nothing("it is an allocation of Cyborg's own, and no instance; delete that")
    if not difference.arqs and _is_claimed_by_us(conf, difference.consumer):
        return Repair(
            action=Action.GIVE_BACK,
            explanation="It was claimed for an allocation of Cyborg's own that is gone: a "
            "conductor is asked to give it back.",
        )
    return _ask_nova(conf, difference)


def _ask_nova(conf: cfg.ConfigOpts, difference: Difference) -> Repair:
    if not clients.configured(conf, "nova"):
        return _nothing("[nova] is not configured, so nobody can be asked for the instance")
    if difference.arqs and difference.allocated:
        return _nothing("it cannot be told which of them is right")
    if nova.is_there(conf, difference.consumer) is not False:
        return _nothing("Nova does not say that the instance is gone")
    if difference.arqs:
        return Repair(
            action=Action.RELEASE,
            explanation="Nova does not know the instance either: its ARQs there are deleted.",
        )
    return Repair(
        action=Action.DROP,
        explanation="Nova does not know the instance either: the allocation of this provider is "
        "removed, and no other.",
    )


def _is_allocation(consumer: str) -> bool:
    query = sa.select(models.Allocation.id).where(models.Allocation.uuid == consumer)
    with db.reader() as session:
        return session.scalar(query) is not None


def _is_claimed_by_us(conf: cfg.ConfigOpts, consumer: str) -> bool:
    held = client.Client(conf).find_held(consumer)
    return held is not None and held.owner.is_ours


def _nothing(why: str) -> Repair:
    return Repair(action=Action.NOTHING, explanation=f"This is not repaired: {why}.")


def carry_out(conf: cfg.ConfigOpts, difference: Difference, repair: Repair) -> str:
    """Do what :func:`plan_repair` has planned; the outcome in words.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    match repair.action:
        case Action.NOTHING:
            return ""
        case Action.RELEASE:
            _release(difference)
        case Action.GIVE_BACK:
            # Whoever does it looks first whether there is an allocation again by then.
            work.want_once(work.ALLOCATE, difference.consumer)
        case Action.DROP:
            try:
                client.Client(conf).drop_allocation(difference.consumer, difference.provider)
            except client.Refused as exc:
                return f"That failed: {exc}."
    return "Done."


@db.retry
def _release(difference: Difference) -> None:
    arq = models.Arq
    query = sa.select(arq).where(
        arq.uuid.in_(difference.arqs),
        arq.instance_uuid == difference.consumer,
        arq.device_rp_uuid == difference.provider,
        arq.state != models.DELETING,
    )
    with db.writer() as session:
        release.delete(session, list(session.scalars(query.order_by(arq.id).with_for_update())))
