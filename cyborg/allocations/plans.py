# SPDX-License-Identifier: Apache-2.0
"""Wishes of consumers, and what was chosen for them, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cyborg import profiles
from cyborg.arqs import service
from cyborg.common.request_groups import RequestGroup

#: Whether what is used most comes first, or what is used least.
PACK = "pack"
SPREAD = "spread"

#: The name of the device profile in ARQs whose groups were sent with the request; no profile can
#: have it.
INLINE = "(inline)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The profile and the place that a part asks for, and so each of its groups."""

    profile_name: str = INLINE
    profile_uuid: str | None = None
    #: Which hosts, by name; ``*`` matches any text, and None any host.
    hosts: str | None = None
    #: The only provider that may serve it; None if any may.
    provider: str | None = None

    def origin(self) -> dict[str, Any]:
        """These fields, for a part of a place, or a place of a part."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(_Asked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(_Asked):
    """Groups that one host serves together."""

    groups: Sequence[dict[str, str]]
    #: Where it is in the request, for refusals.
    path: str = ""

    @property
    def key(self) -> Hashable:
        """The wish and its place: the same things can serve parts whose key is equal."""
        return tuple(group_key(group) for group in self.groups), self.hosts, self.provider


def group_key(group: Mapping[str, str]) -> Hashable:
    """A key that equal groups share."""
    return frozenset(group.items())


#: Parts that are allocated together, each on one host.
Alternative = Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The wish of a consumer: the first of its alternatives that there is room for."""

    uuid: str
    consumer_type: str
    consumer_name: str | None
    consumer_nqn: str | None = None
    alternatives: Sequence[Alternative]
    placing: str = PACK
    lease_seconds: int | None = None
    #: All that was asked for, to tell whether it is asked for again.
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMapping(_Asked):
    """The provider that serves one group of an allocation."""

    #: The index of the group among all of the alternative, and of the part that it belongs to.
    group_id: int
    part: int
    group: dict[str, str]
    #: The host's root provider, and the provider of the deployable.
    hostname: str
    rp_uuid: str
    #: Whether the deployable is programmed for the group.
    reprogram: bool = False


#: What serves each group of an allocation.
Plan = Sequence[GroupMapping]


def store(plan: Plan) -> list[dict[str, Any]]:
    """The plan as it is stored."""
    return [dataclasses.asdict(mapping) for mapping in plan]


def load(stored: Iterable[Mapping[str, Any]]) -> Plan:
    """The plan that was stored."""
    return [GroupMapping(**fields) for fields in stored]


def parts(plan: Plan) -> list[Part]:
    """The parts that the plan serves, to choose anew."""
    groups: dict[int, list[GroupMapping]] = {}
    for mapping in plan:
        groups.setdefault(mapping.part, []).append(mapping)
    return [
        Part(groups=[mapping.group for mapping in of_part], **of_part[0].origin())
        for of_part in groups.values()
    ]


def amounts(plan: Plan) -> dict[str, dict[str, int]]:
    """The amount of each resource class that the plan takes, by provider."""
    found: dict[str, dict[str, int]] = {}
    for mapping in plan:
        of_provider = found.setdefault(mapping.rp_uuid, {})
        for name, amount in RequestGroup.parse(mapping.group).resources.items():
            of_provider[name] = of_provider.get(name, 0) + amount
    return found


def arqs(plan: Plan) -> list[service.NewArq]:
    """The ARQs that the plan takes."""
    return [
        service.NewArq(mapping.profile_name, mapping.profile_uuid, mapping.group_id, group, name)
        for mapping in plan
        for _, group, name in profiles.count_requests([mapping.group])
    ]
