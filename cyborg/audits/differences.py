# SPDX-License-Identifier: Apache-2.0
"""Cyborg's ARQs, Placement's allocations and Nova's instances compared.

For ``cyborg-status check``. Nothing is changed but by a repair.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, nova, work
from cyborg.audits import safeguards
from cyborg.audits.finding import Finding, Repair
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client, compare, desired

#: Seconds between two looks at what does not fit, by default.
SETTLE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between Cyborg and Placement in what an instance has of one provider."""

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
            return f"Consumer {self.consumer} has ARQs {named} {where} and no allocation there."
        return (
            f"Consumer {self.consumer} has {len(self.arqs)} ARQs {where}, {named}, and an "
            f"allocation of {self.allocated} there."
        )


_TOO_MANY = (
    "That was not done: as many as [conductor] max_instance_releases were given up since the "
    "present instance_audit_interval began, and Nova does not say that it has deleted this one."
)


def find(conf: cfg.ConfigOpts, *, settle: float) -> Iterator[Finding]:
    """Differences that last for ``settle`` seconds; nothing if consumers need not claim.

    What Cyborg has claimed itself is compared whether Nova is asked for instances or not.

    Of a provider that Placement does not have it cannot be told: that may be the Placement of
    another region.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    if not conf.conductor.allocation_audit_interval:
        return
    of_instances = safeguards.instances_claim(conf)
    api, is_one_alive = client.Client(conf), safeguards.once(conf)
    first: dict[str, set[Difference]] = {}
    for name in compare.host_names():
        if found := set(_differences(api, name)):
            first[name] = found
    if first:
        # An instance is given its allocation before its ARQs, and loses it after them.
        time.sleep(settle)
    for name, before in first.items():
        for again in _differences(api, name):
            if again not in before:
                continue
            if of_instances or _is_ours(api, again):
                plan = functools.partial(plan_repair, conf, again, is_one_alive)
                yield Finding(f"allocations, host {name}", str(again), plan)


def _differences(api: client.Client, host_name: str) -> list[Difference]:
    state = desired.read(host_name)
    if state is None:
        return []
    found: list[Difference] = []
    arqs = _arqs(state.records)
    for provider, record in sorted(state.records.items()):
        allocated = _allocated(api, provider, record.ours.classes)
        if allocated is None:
            continue
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


def _allocated(api: client.Client, provider: str, classes: Iterable[str]) -> dict[str, int] | None:
    """The amount of our classes that each consumer has of a provider; None if there is none."""
    try:
        held = api.allocations(provider)
    except client.NoSuchProvider:
        return None
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
        sa.select(arq.device_rp_uuid, arq.consumer_uuid, arq.uuid, arq.state)
        .where(arq.device_rp_uuid.in_(list(providers)), arq.state.in_(models.ASKED))
        .order_by(arq.id)
    )
    found: dict[str, dict[str, dict[str, str]]] = {}
    for provider, instance, uuid, state in db.rows(query):
        if provider and instance:
            found.setdefault(provider, {}).setdefault(instance, {})[uuid] = state
    return found


def plan_repair(
    conf: cfg.ConfigOpts, difference: Difference, is_one_alive: Callable[[], bool]
) -> Repair:
    """The repair that can safely be done of a difference; Nova is asked.

    ``is_one_alive`` is asked whether Nova has any other instance, see :mod:`.safeguards`.

    Nothing is done for an instance that Nova has: it may use what it was given. Nova does not
    migrate or resize instances with accelerators, so no migration owns an allocation of them.

    :raises MayNotLook: Nova does not let Cyborg see whether an instance is gone
    :raises keystoneauth1.exceptions.ClientException: Nova does not answer
    """
    # Whoever does it looks first whether there is an allocation by then.
    compare_again = functools.partial(_want_comparison, difference.consumer)
    if _is_allocation(difference.consumer):
        return Repair(
            "It is an allocation of Cyborg's own: a conductor is asked to claim just what it "
            "holds, or to have it reserved.",
            compare_again,
        )
    if other := nova.why_other_region(conf):
        return _nothing(f"{other}; mend the wrong one")
    if difference.arqs and difference.allocated:
        return _nothing("it cannot be told which of them is right")
    held = None if difference.arqs else client.Client(conf).find_allocations(difference.consumer)
    if held is not None and held.owner.is_ours:
        return Repair(
            "It was claimed for an allocation of Cyborg's own that is gone: a conductor is asked "
            "to give it back.",
            compare_again,
        )
    if held is not None and held.owner.consumer_type not in client.NOVAS_TYPES:
        return _nothing(
            f"Placement says that it is no instance but {held.owner.consumer_type}; ask its "
            "owner whether it is still needed"
        )
    return _ask_nova(conf, difference, is_one_alive)


def _nothing(why: str) -> Repair:
    return Repair(f"This is not repaired: {why}.")


def _ask_nova(
    conf: cfg.ConfigOpts, difference: Difference, is_one_alive: Callable[[], bool]
) -> Repair:
    if not clients.configured(conf, "nova"):
        return _nothing("[nova] is not configured, so nobody can be asked for the instance")
    if nova.is_there(conf, difference.consumer) is not False:
        return _nothing("Nova does not say that the instance is gone")
    is_deleted = nova.has_deleted(conf, difference.consumer)
    if not is_deleted and not is_one_alive():
        return _nothing(
            "Nova has none of the instances with accelerators that it was asked for, and does not "
            "say that it has deleted this one, so it may be the wrong one. Check region_name and "
            "endpoint_override of [nova]; if it is the right one, see that this one runs nowhere, "
            "and delete its requests"
        )
    what, do = (
        ("its ARQs there are deleted", _release)
        if difference.arqs
        else ("the allocation of this provider is removed, and no other", _drop)
    )
    carry_out = functools.partial(do, conf, difference, counts=not is_deleted)
    return Repair(f"Nova does not know the instance either: {what}.", carry_out)


def _is_allocation(consumer: str) -> bool:
    query = sa.select(models.Allocation.id).where(models.Allocation.uuid == consumer)
    return db.read_one(query) is not None


def _is_ours(api: client.Client, difference: Difference) -> bool:
    """An allocation of Cyborg's own is concerned, or one that was, and no instance."""
    if difference.arqs:
        return _is_allocation(difference.consumer)
    held = api.find_allocations(difference.consumer)
    return held is not None and held.owner.is_ours


def _want_comparison(consumer: str) -> str:
    work.want_once(work.ALLOCATE, consumer)
    return "Done."


def _drop(conf: cfg.ConfigOpts, difference: Difference, *, counts: bool) -> str:
    """Remove the allocation of the provider, unless too much was given up already.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    if counts and not safeguards.may_drop(conf):
        return _TOO_MANY
    try:
        client.Client(conf).drop_allocation(difference.consumer, difference.provider)
    except client.RequestRefused as exc:
        return f"That failed: {exc}."
    return "Done."


def _release(conf: cfg.ConfigOpts, difference: Difference, *, counts: bool) -> str:
    """Delete the ARQs of the difference, unless too much was given up already."""
    arq = models.Arq
    ours = (
        arq.uuid.in_(difference.arqs),
        arq.consumer_uuid == difference.consumer,
        arq.device_rp_uuid == difference.provider,
    )
    released = safeguards.release_arqs(conf, *ours, counts=lambda _: counts)
    return _TOO_MANY if released is None else "Done."
