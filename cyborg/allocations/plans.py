# SPDX-License-Identifier: Apache-2.0
"""What a consumer asks for, and what was chosen for it, as plain data."""

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
class Part:
    """Groups that one host serves together."""

    groups: Sequence[dict[str, str]]
    profile_name: str = INLINE
    profile_uuid: str | None = None
    #: Which hosts, by name; ``*`` matches any text, and None any host.
    hosts: str | None = None
    #: The only provider that may serve it; None if any may.
    provider: str | None = None
    #: Where it is in the request, for refusals.
    path: str = ""

    @property
    def key(self) -> Hashable:
        """What it asks for, and where: the same things can serve parts whose key is equal."""
        return tuple(group_key(group) for group in self.groups), self.hosts, self.provider


def group_key(group: Mapping[str, str]) -> Hashable:
    """What is equal for equal groups."""
    return frozenset(group.items())


#: Parts that are allocated together, each on one host.
Alternative = Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a consumer asks for: the first of its alternatives that there is room for."""

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
class Place:
    """What serves one group of an allocation."""

    #: The index of the group among all of the alternative, and of the part that it belongs to.
    group_id: int
    part: int
    group: dict[str, str]
    profile_name: str
    profile_uuid: str | None
    hosts: str | None
    #: The host's root provider, and the provider of the deployable.
    hostname: str
    rp_uuid: str
    #: Whether the deployable is programmed for the group.
    reprogram: bool = False
    #: The only provider that may serve it; None if any may.
    provider: str | None = None


#: What serves each group of an allocation.
Plan = Sequence[Place]


def store(plan: Plan) -> list[dict[str, Any]]:
    """The plan as it is stored."""
    return [dataclasses.asdict(place) for place in plan]


def load(stored: Iterable[Mapping[str, Any]]) -> Plan:
    """The plan that was stored."""
    return [Place(**fields) for fields in stored]


def parts(plan: Plan) -> list[Part]:
    """What the plan serves, to choose anew."""
    groups: dict[int, list[Place]] = {}
    for place in plan:
        groups.setdefault(place.part, []).append(place)
    return [
        Part(
            groups=[place.group for place in of_part],
            profile_name=of_part[0].profile_name,
            profile_uuid=of_part[0].profile_uuid,
            hosts=of_part[0].hosts,
            provider=of_part[0].provider,
        )
        for of_part in groups.values()
    ]


def amounts(plan: Plan) -> dict[str, dict[str, int]]:
    """How much of each resource class the plan takes, by provider."""
    found: dict[str, dict[str, int]] = {}
    for place in plan:
        of_provider = found.setdefault(place.rp_uuid, {})
        for name, amount in RequestGroup.parse(place.group).resources.items():
            of_provider[name] = of_provider.get(name, 0) + amount
    return found


def arqs(plan: Plan) -> list[service.NewArq]:
    """The ARQs that the plan takes."""
    return [
        service.NewArq(place.profile_name, place.profile_uuid, place.group_id, group, name)
        for place in plan
        for _, group, name in profiles.count_requests([place.group])
    ]
