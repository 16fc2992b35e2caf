# SPDX-License-Identifier: Apache-2.0
"""Where an alternative is allocated: the best of Placement's candidates for all its parts."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Collection, Hashable, Iterator, Sequence

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.allocations import plans, shortages
from cyborg.arqs import candidates
from cyborg.arqs.candidates import Candidate
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models

#: Candidates that Placement is asked for, for each part.
_MOST = 1000
#: Hosts that Placement is asked for one by one, of those that a part names. Of more, those that
#: have room for each of its groups by Cyborg's own record, until so many of them have it by
#: Placement's too; and more of them only if it may know of candidates that it has not named.
_MOST_HOSTS = 20
_MOST_WITH_ROOM = 200
#: Combinations of the candidates of several parts that are looked at for one request.
_MOST_TRIES = 10_000


class Chooser:
    """Chooses for the alternatives of one request; what they have in common is looked for once."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        placing: str,
        alternatives: int,
        without: Collection[str] = frozenset(),
    ) -> None:
        """``without`` are providers that are not chosen."""
        self._conf = conf
        self._without = without
        self._placing = placing
        # Each has its share, so that one that is hard to serve takes no other's tries.
        self._tries = _MOST_TRIES // alternatives
        self._offers: dict[Hashable, _Offer] = {}

    def choose(self, parts: plans.Alternative) -> plans.Plan | None:
        """What serves all parts together; None if there is no room for them.

        :raises NotOffered: there is no Placement
        :raises ServiceUnavailable: Placement cannot be asked
        """
        offers = [self._offer(part) for part in parts]
        chosen = _Search(offers, self._placing, self._tries).run()
        return None if chosen is None else _plan(parts, chosen)

    def _offer(self, part: plans.Part) -> _Offer:
        known = self._offers.get(part.key)
        if known is None:
            found = [
                each for each in _find(self._conf, part) if self._may_be_chosen(each, part.provider)
            ]
            ranked = sorted(found, key=lambda each: _rank(each, self._placing))
            known = self._offers[part.key] = _Offer(
                groups=[RequestGroup.parse(group) for group in part.groups],
                candidates=[
                    list(equal) for _, equal in itertools.groupby(ranked, lambda each: each.lack)
                ],
            )
        return known

    def _may_be_chosen(self, candidate: Candidate, only: str | None) -> bool:
        providers = {each.deployable.rp_uuid for each in candidate.choices}
        return providers.isdisjoint(self._without) and (only is None or providers == {only})


@dataclasses.dataclass(frozen=True, slots=True)
class _Offer:
    """The groups of a part, and what can serve them."""

    groups: Sequence[RequestGroup]
    #: The best first; those together that lack as much of what is preferred.
    candidates: Sequence[Sequence[Candidate]]


def _find(conf: cfg.ConfigOpts, part: plans.Part) -> Sequence[Candidate]:
    if part.hosts is None and part.provider is None:
        return candidates.find(conf, part.groups, most=_MOST)
    roots = _roots(part, _MOST_HOSTS + 1)
    if len(roots) > _MOST_HOSTS:
        # Of a large cloud Placement may name many candidates, and none on these hosts.
        everywhere = candidates.search(conf, part.groups, most=_MOST)
        found = _keep(everywhere.candidates, part)
        if found or not everywhere.named:
            return found
        most = _MOST_HOSTS if everywhere.named < _MOST else _MOST_WITH_ROOM
        roots = _roots(part, most, *shortages.has_room(part))
    return list(_on_each(conf, part, roots))


def _on_each(
    conf: cfg.ConfigOpts, part: plans.Part, roots: Sequence[str]
) -> Iterator[Candidate]:
    fitting = 0
    for root in roots:
        found = _keep(candidates.find(conf, part.groups, most=_MOST, host=root), part)
        yield from found
        fitting += bool(found)
        if fitting == _MOST_HOSTS:
            return


def _keep(found: Sequence[Candidate], part: plans.Part) -> list[Candidate]:
    return [each for each in found if part.hosts is None or _is_on(each, part.hosts)]


@db.retry
def _roots(
    part: plans.Part, most: int, *conditions: sa.ColumnElement[bool]
) -> Sequence[str]:
    """The root providers of the hosts that are named, and have a deployable like that."""
    host, deployable = models.Host, models.Deployable
    query = sa.select(host.node).join(models.Device, models.Device.host_id == host.id)
    query = query.join(models.Device.deployables).where(*conditions)
    if part.hosts is not None:
        query = query.where(shortages.is_on(part.hosts))
    if part.provider is not None:
        query = query.where(deployable.rp_uuid == part.provider)
    with db.reader() as session:
        return session.scalars(query.distinct().order_by(host.node).limit(most)).all()


def _is_on(candidate: Candidate, pattern: str) -> bool:
    host = candidate.choices[0].deployable.device.host
    # Of what fnmatch knows only "*" means something here. Its expressions never backtrack.
    escaped = re.sub(r"[\[?]", r"[\g<0>]", pattern)
    like = re.compile(fnmatch.translate(escaped), re.IGNORECASE)
    return any(like.match(name) for name in (host.name, host.node))


def _rank(candidate: Candidate, placing: str) -> tuple[int, ...]:
    """What to sort by: less is better. What it prefers, then how full it is, then how close."""
    free = {choice.deployable.id: sum(choice.free.values()) for choice in candidate.choices}
    room = sum(free.values())
    return candidate.order(room if placing == plans.PACK else -room)


class _Search:
    """Looks for one candidate of each part, so that together they do not take too much."""

    def __init__(self, offers: Sequence[_Offer], placing: str, tries: int) -> None:
        self._offers = offers
        self._placing = placing
        self._left = tries
        self._chosen: list[Candidate] = []

    def run(self) -> list[Candidate] | None:
        """One candidate of each part in their order; None if there are none."""
        return self._chosen if self._extend() else None

    def _extend(self) -> bool:
        if len(self._chosen) == len(self._offers):
            return True
        for candidate in self._ordered(self._offers[len(self._chosen)].candidates):
            if self._left == 0:
                return False
            self._left -= 1
            self._chosen.append(candidate)
            if self._has_room() and self._extend():
                return True
            self._chosen.pop()
        return False

    def _ordered(self, found: Sequence[Sequence[Candidate]]) -> Iterator[Candidate]:
        """Those on hosts of the parts before come first to pack them, and last to spread them."""
        hosts = {candidate.hostname for candidate in self._chosen}
        wanted = self._placing == plans.PACK
        for equal in found:
            yield from (each for each in equal if (each.hostname in hosts) == wanted)
            yield from (each for each in equal if (each.hostname in hosts) != wanted)

    def _has_room(self) -> bool:
        taken: collections.Counter[tuple[str, str]] = collections.Counter()
        groups: dict[int, RequestGroup] = {}
        choices: list[candidates.Choice] = []
        free: dict[tuple[str, str], int] = {}
        for choice, group in self._pairs():
            number = len(choices)
            groups[number] = group
            choices.append(dataclasses.replace(choice, group=number))
            for name, amount in group.resources.items():
                key = (choice.deployable.rp_uuid, name)
                taken[key] += amount
                free[key] = choice.free.get(name, 0)
        if any(amount > free[key] for key, amount in taken.items()):
            return False
        return not candidates.disagree(groups, choices)

    def _pairs(self) -> Iterator[tuple[candidates.Choice, RequestGroup]]:
        for offer, candidate in zip(self._offers, self._chosen, strict=False):
            for choice in candidate.choices:
                yield choice, offer.groups[choice.group]


def _plan(parts: plans.Alternative, chosen: Sequence[Candidate]) -> plans.Plan:
    first, places = 0, []
    for number, (part, candidate) in enumerate(zip(parts, chosen, strict=True)):
        places += [
            plans.Place(
                group_id=first + choice.group,
                part=number,
                group=part.groups[choice.group],
                profile_name=part.profile_name,
                profile_uuid=part.profile_uuid,
                hosts=part.hosts,
                provider=part.provider,
                hostname=candidate.hostname,
                rp_uuid=choice.deployable.rp_uuid,
                reprogram=choice.reprogram,
            )
            for choice in candidate.choices
        ]
        first += len(part.groups)
    return places
