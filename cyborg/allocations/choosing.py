# SPDX-License-Identifier: Apache-2.0
"""Choice of the place of an alternative: the best of Placement's candidates for all its parts."""

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
from cyborg.handles import taking

#: Candidates that Placement is asked for, for each part.
_MOST = 1000
#: Hosts that Placement is asked for one by one, of those that a part names. Of more, those that
#: have room for each of its groups by Cyborg's own record, until so many of them have it by
#: Placement's too; and more of them only if it may know of candidates that it has not named.
_MOST_HOSTS = 20
_MOST_WITH_ROOM = 200
#: Combinations of the candidates of several parts that are looked at for one request.
_MOST_TRIES = 10_000


@dataclasses.dataclass(slots=True)
class Chooser:
    """Chooses for the alternatives of one request; what they have in common is looked for once."""

    conf: cfg.ConfigOpts
    placing: str
    alternatives: int
    #: The project of the consumer.
    project_id: str | None = None
    #: Providers that are not chosen.
    without: Collection[str] = frozenset()
    #: By the keys of parts.
    offers: dict[Hashable, _Offer] = dataclasses.field(default_factory=dict)

    def choose(self, parts: plans.Alternative) -> plans.Plan | None:
        """The plan that serves all parts together; None if there is no room for them.

        :raises NotOffered: there is no Placement
        :raises ServiceUnavailable: Placement cannot be asked
        """
        offers = [self._offer(part) for part in parts]
        # Each has its share, so that one that is hard to serve takes no other's tries.
        search = _Search(offers, self.placing, _MOST_TRIES // self.alternatives)
        return _plan(parts, search.chosen) if search.extend() else None

    def _offer(self, part: plans.Part) -> _Offer:
        if part.key not in self.offers:
            found = _find(self.conf, part)
            cards = [choice.deployable for each in found for choice in each.choices]
            without = {*self.without, *taking.of_other_projects(cards, self.project_id)}
            open_ = (each for each in found if _may_be_chosen(each, part.provider, without))
            ranked = sorted(open_, key=lambda each: _rank(each, self.placing))
            self.offers[part.key] = _Offer(
                groups=[RequestGroup.parse(group) for group in part.groups],
                candidates=[
                    list(equal) for _, equal in itertools.groupby(ranked, lambda each: each.lack)
                ],
            )
        return self.offers[part.key]


@dataclasses.dataclass(frozen=True, slots=True)
class _Offer:
    """The groups of a part, and what can serve them."""

    groups: Sequence[RequestGroup]
    #: The best first; those together that lack as much of what is preferred.
    candidates: Sequence[Sequence[Candidate]]


def _may_be_chosen(
    candidate: Candidate, only: str | None, without: Collection[str]
) -> bool:
    providers = {each.deployable.rp_uuid for each in candidate.choices}
    return providers.isdisjoint(without) and (only is None or providers == {only})


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


def _on_each(conf: cfg.ConfigOpts, part: plans.Part, roots: Sequence[str]) -> Iterator[Candidate]:
    fitting = 0
    for root in roots:
        found = _keep(candidates.find(conf, part.groups, most=_MOST, host=root), part)
        yield from found
        fitting += bool(found)
        if fitting == _MOST_HOSTS:
            return


def _keep(found: Sequence[Candidate], part: plans.Part) -> list[Candidate]:
    return [each for each in found if part.hosts is None or _is_on(each, part.hosts)]


def _roots(part: plans.Part, most: int, *conditions: sa.ColumnElement[bool]) -> Sequence[str]:
    """The root providers of the hosts that are named, and have a deployable like that."""
    host, deployable = models.Host, models.Deployable
    query = sa.select(host.node).join(models.Device, models.Device.host_id == host.id)
    query = query.join(models.Device.deployables).where(*conditions)
    if part.hosts is not None:
        query = query.where(shortages.is_on(part.hosts))
    if part.provider is not None:
        query = query.where(deployable.rp_uuid == part.provider)
    return db.read_all(query.distinct().order_by(host.node).limit(most))


def _is_on(candidate: Candidate, pattern: str) -> bool:
    host = candidate.choices[0].deployable.device.host
    # Of what fnmatch knows only "*" means something here. Its expressions never backtrack.
    escaped = re.sub(r"[\[?]", r"[\g<0>]", pattern)
    like = re.compile(fnmatch.translate(escaped), re.IGNORECASE)
    return any(like.match(name) for name in (host.name, host.node))


def _rank(candidate: Candidate, placing: str) -> tuple[int, ...]:
    """The order of candidates: by what they prefer, then how full they are, then how close."""
    free = {choice.deployable.id: sum(choice.free.values()) for choice in candidate.choices}
    room = sum(free.values())
    return candidate.order(room if placing == plans.PACK else -room)


@dataclasses.dataclass(slots=True)
class _Search:
    """Looks for one candidate of each part, so that together they do not take too much."""

    offers: Sequence[_Offer]
    placing: str
    tries: int
    #: In the order of the parts.
    chosen: list[Candidate] = dataclasses.field(default_factory=list)

    def extend(self) -> bool:
        """Choose for the parts that are left; False if there is no room for all of them."""
        if len(self.chosen) == len(self.offers):
            return True
        for candidate in self._ordered(self.offers[len(self.chosen)].candidates):
            if self.tries == 0:
                return False
            self.tries -= 1
            self.chosen.append(candidate)
            if self._has_room() and self.extend():
                return True
            self.chosen.pop()
        return False

    def _ordered(self, found: Sequence[Sequence[Candidate]]) -> Iterator[Candidate]:
        """Those on hosts of the parts before come first to pack them, and last to spread them."""
        hosts = {candidate.hostname for candidate in self.chosen}
        wanted = self.placing == plans.PACK
        for equal in found:
            yield from (each for each in equal if (each.hostname in hosts) == wanted)
            yield from (each for each in equal if (each.hostname in hosts) != wanted)

    def _has_room(self) -> bool:
        taken: collections.Counter[tuple[str, str]] = collections.Counter()
        groups: dict[int, RequestGroup] = {}
        choices: list[candidates.Chosen] = []
        for choice, group in self._pairs():
            groups[len(choices)] = group
            choices.append(dataclasses.replace(choice, group=len(choices)))
            for name, amount in group.resources.items():
                key = (choice.deployable.rp_uuid, name)
                taken[key] += amount
                if taken[key] > choice.free.get(name, 0):
                    return False
        return not candidates.disagree(groups, choices)

    def _pairs(self) -> Iterator[tuple[candidates.Chosen, RequestGroup]]:
        for offer, candidate in zip(self.offers, self.chosen, strict=False):
            for choice in candidate.choices:
                yield choice, offer.groups[choice.group]


def _plan(parts: plans.Alternative, chosen: Sequence[Candidate]) -> plans.Plan:
    first, mappings = 0, []
    for number, (part, candidate) in enumerate(zip(parts, chosen, strict=True)):
        mappings += [
            plans.GroupMapping(
                group_id=first + choice.group,
                part=number,
                group=part.groups[choice.group],
                hostname=candidate.hostname,
                rp_uuid=choice.deployable.rp_uuid,
                reprogram=choice.reprogram,
                **part.origin(),
            )
            for choice in candidate.choices
        ]
        first += len(part.groups)
    return mappings
