# SPDX-License-Identifier: Apache-2.0
"""Where the groups of a device profile could be bound, the best candidates first.

For consumers that choose by themselves. Placement says what has room; the order depends on what the
deployables run and on how near they are to each other, by which Placement cannot sort.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db
from cyborg.common import errors
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models, providers
from cyborg.db.providers import ProviderRow
from cyborg.function_pools import capacity, nearness
from cyborg.peers import clients
from cyborg.placement import client
from cyborg.programming import matching, program, trait_match, using_arqs
from cyborg.states import availability


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The deployable that would serve one group."""

    #: The index of the group.
    group: int
    deployable: ProviderRow
    #: Whether the group prefers anything.
    prefers: bool
    #: Whether it does not run the preferred function.
    lacks_function: bool
    #: How many of the preferred traits it does not have.
    lacks_traits: int
    #: Whether it would be programmed for the group.
    reprogram: bool
    #: What Placement has free there now, by resource class.
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Deployables of one host that can serve all groups together."""

    hostname: str
    choices: tuple[Chosen, ...]
    #: How many idle cards it would break up, and how much others ask for what it runs.
    scarce: tuple[int, int] = (0, 0)

    @property
    def programmed(self) -> list[ProviderRow]:
        """The deployables that would be programmed, each once."""
        found = {each.deployable.id: each.deployable for each in self.choices if each.reprogram}
        return list(found.values())

    @property
    def reprogrammings(self) -> int:
        """How many deployables would be programmed."""
        return len(self.programmed)

    @property
    def spread(self) -> tuple[int, ...]:
        """Over how many cards, linked groups, PCIe switches and NUMA nodes it is spread."""
        places = [_place(each.deployable) for each in self.choices]
        return tuple(len(set(of_kind)) for of_kind in zip(*places, strict=True))

    @property
    def lack(self) -> tuple[int, ...]:
        """What it lacks of what is preferred: less is better."""
        lacks_functions = sum(each.lacks_function for each in self.choices)
        lacks_traits = sum(each.lacks_traits for each in self.choices)
        return lacks_functions, lacks_traits, self.reprogrammings

    @property
    def rank(self) -> tuple[int, ...]:
        """What to choose a host by: less is better."""
        return *self.lack, *self.spread

    def order(self, *room: int) -> tuple[int, ...]:
        """What to sort by: less is better. ``room`` counts between what is preferred and nearness.

        Allocations, pods, Nova's scheduler and who chooses from a list are served in this order.
        """
        return *self.lack, *room, *self.spread, *self.scarce


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The candidates that could be bound, of so many that Placement has named."""

    candidates: Sequence[Candidate]
    named: int


def find(
    conf: cfg.ConfigOpts, groups: Sequence[Mapping[str, str]], *, most: int, host: str | None = None
) -> Sequence[Candidate]:
    """The candidates that :func:`search` finds.

    :raises NotOffered: there is no Placement
    :raises ServiceUnavailable: Placement cannot be asked
    """
    return search(conf, groups, most=most, host=host).candidates


def search(
    conf: cfg.ConfigOpts, groups: Sequence[Mapping[str, str]], *, most: int, host: str | None = None
) -> Found:
    """Candidates for all groups together, the best ones first: on any host, or on that one.

    ``host`` is the name of its root provider. They are of ``most`` that Placement names. One
    SELECT; one more if there are several, and if a deployable would have to be programmed.

    :raises NotOffered: there is no Placement
    :raises ServiceUnavailable: Placement cannot be asked
    """
    if not clients.configured(conf, "placement"):
        raise errors.NotOffered("There is no Placement: [placement] auth_type is not set here.")
    parsed = enumerate(map(RequestGroup.parse, groups))
    asked = {index: group for index, group in parsed if group.resources}
    wanted = [group.without_tainted() for group in asked.values()]
    try:
        found = _ask(client.Client(conf), wanted, most, host)
    except ka_exc.ClientException as exc:
        raise errors.ServiceUnavailable("Placement cannot be reached at present.") from exc
    with db.reader() as session:
        rows = providers.read(session, set[str]().union(*found.providers))
        cards = {row.device.id for row in rows.values()}
        scarce = _Scarce.read(session, cards, found) if len(found.providers) > 1 else None
    known = [uuids for uuids in found.providers if rows.keys() >= set(uuids)]
    made = (_candidate(asked, [rows[uuid] for uuid in uuids], found.free) for uuids in known)
    free = _not_used([candidate for candidate in made if candidate])
    if scarce is not None:
        free = [replace(each, scarce=scarce.of(asked, each.choices)) for each in free]
    ranked = sorted(free, key=lambda candidate: candidate.order())
    return Found(candidates=ranked, named=len(found.providers))


def _ask(
    api: client.Client, groups: Sequence[RequestGroup], most: int, host: str | None
) -> client.Combinations:
    if groups and host is None:
        return api.find_candidates(groups, most)
    if groups and host is not None and (tree := api.find_tree(host)):
        return api.find_candidates(groups, most, tree[0].uuid)
    return client.Combinations(providers=[], free={}, used={})


def _place(deployable: ProviderRow) -> tuple[str, ...]:
    """The card, its links, the PCIe switch and the NUMA node of a deployable on its host.

    What is not known of it is shared with no other card.
    """
    known = {each.key: each.value for each in deployable.facts}
    card = f"card {deployable.device.uuid}"
    return (card, *(known.get(key, card) for key in nearness.KEYS))


@dataclass(frozen=True, slots=True)
class _Scarce:
    """What is scarce: the room of cards of which nothing is used, and the demand by provider."""

    idle: Mapping[int, int]
    demand: Mapping[str, int]

    @classmethod
    def read(cls, session: orm.Session, cards: Collection[int], found: client.Combinations) -> Self:
        """All deployables of these cards are looked at. One SELECT."""
        deployable, device = models.Deployable, models.Device
        query = sa.select(device.id, deployable.rp_uuid, capacity.demand())
        query = query.join(deployable.device).join(device.host).where(device.id.in_(cards))
        rows: Sequence[Any] = session.execute(query).all()
        used = {card for card, uuid, _ in rows if found.used.get(uuid)}
        idle = collections.Counter[int]()
        for card, uuid, _ in rows:
            idle[card] += 0 if card in used else sum(found.free.get(uuid, {}).values())
        return cls(idle, {uuid: demand for _, uuid, demand in rows})

    def of(self, groups: Mapping[int, RequestGroup], choices: Sequence[Chosen]) -> tuple[int, int]:
        """How many idle cards would be broken up, and how much others ask for what they run."""
        taken, wanted = collections.Counter[int](), 0
        for choice in choices:
            group = groups[choice.group]
            taken[choice.deployable.device.id] += group.accelerators
            asked = bool(group.preferred_function or program.of_group(group))
            if not asked or choice.lacks_function or choice.reprogram:
                wanted += self.demand.get(choice.deployable.rp_uuid, 0)
        return sum(amount < self.idle.get(card, 0) for card, amount in taken.items()), wanted


def _not_used(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those of which nothing would be programmed that is in use.

    Unlike for :mod:`cyborg.programming.using_arqs`, an ARQ that waits for the same program counts:
    it is not known yet whether that will be written.
    """
    programmed = {dep.id for candidate in candidates for dep in candidate.programmed}
    if not programmed:
        return list(candidates)
    kinds = (using_arqs.users(programmed), using_arqs.unclean(programmed))
    query = sa.union(*(sa.select(each.c.deployable_id) for each in kinds))
    with db.reader() as session:
        used = set(session.scalars(query))
    return [each for each in candidates if used.isdisjoint(dep.id for dep in each.programmed)]


def _candidate(
    groups: Mapping[int, RequestGroup],
    chosen: Sequence[ProviderRow],
    free: Mapping[str, Mapping[str, int]],
) -> Candidate | None:
    """The candidate, or None if it could not be bound."""
    pairs = list(zip(groups.items(), chosen, strict=True))
    if any(_is_refused(group, deployable) for (_, group), deployable in pairs):
        return None
    choices = tuple(
        _choice(index, group, deployable, free[deployable.rp_uuid])
        for (index, group), deployable in pairs
    )
    if disagree(groups, choices):
        return None
    return Candidate(hostname=chosen[0].device.host.node, choices=choices)


def _is_refused(group: RequestGroup, deployable: ProviderRow) -> bool:
    """Whether a bind of the group to the deployable would be refused, even if all of it is free."""
    if not availability.is_usable(deployable) or matching.is_kept_from(group, deployable):
        return True
    why_not = matching.why_not_now(group, deployable) or matching.why_no_match(group, deployable)
    return why_not is not None


def _choice(
    index: int, group: RequestGroup, deployable: ProviderRow, free: Mapping[str, int]
) -> Chosen:
    function, record = group.preferred_function, deployable.record
    runs = record.is_settled and record.function_id
    return Chosen(
        group=index,
        deployable=deployable,
        prefers=bool(function or group.preferred_traits),
        lacks_function=bool(function) and not (runs and program.same(runs, function)),
        lacks_traits=len(group.preferred_traits - trait_match.traits(deployable.facts)),
        reprogram=program.lacking(group, record) is not None,
        free=free,
    )


def disagree(groups: Mapping[int, RequestGroup], choices: Sequence[Chosen]) -> bool:
    """Whether one deployable would have to run two programs, or be programmed while it is used."""
    needed: dict[int, program.Program] = {}
    programmed = {choice.deployable.id for choice in choices if choice.reprogram}
    for choice in choices:
        what = program.of_group(groups[choice.group])
        if what and not needed.setdefault(choice.deployable.id, what).agrees(what):
            return True
        if not what and choice.deployable.id in programmed:
            return True
    return False
