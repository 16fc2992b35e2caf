# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, with its device profiles looked up."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cyborg import profiles
from cyborg.allocations import plans
from cyborg.common import errors
from cyborg.db import models
from cyborg.policy.context import RequestContext

#: The most parts that all alternatives of a request may have together.
MAX_PARTS = 64

_Body = Mapping[str, Any]


def read(ctx: RequestContext, consumer_uuid: str, body: _Body) -> plans.Wish:
    """The wish of a request that has passed the schema of the API.

    :raises NotFound: the caller may use no profile of a name
    :raises Conflict: a profile is disabled
    :raises Invalid: it has too many parts, or an alternative asks for no accelerator or too many
    """
    asked = [_parts_of(each) for each in body.get("alternatives", [body])]
    _refuse_many("alternatives" if "alternatives" in body else "parts", asked)
    known = _profiles(ctx, asked)
    alternatives = [
        _alternative(f"alternatives[{number}]" if "alternatives" in body else "", *each, known)
        for number, each in enumerate(
            zip(body.get("alternatives", [body]), _hosts_of(body), strict=True)
        )
    ]
    consumer = body["consumer"]
    return plans.Wish(
        uuid=consumer_uuid,
        consumer_type=consumer["type"],
        consumer_name=consumer.get("name"),
        consumer_nqn=consumer.get("nqn"),
        alternatives=alternatives,
        placing=body.get("placing", plans.PACK),
        lease_seconds=body.get("lease_seconds"),
        request={key: value for key, value in body.items() if key != "dry_run"},
    )


def has_groups(body: _Body) -> bool:
    """Whether a request has groups of its own, and not only those of device profiles."""
    asked = [_parts_of(each) for each in body.get("alternatives", [body])]
    return any("groups" in part for parts in asked for part in parts)


def _parts_of(alternative: _Body) -> Sequence[_Body]:
    parts: Sequence[_Body] = alternative.get("parts", [alternative])
    return parts


def _hosts_of(body: _Body) -> Iterator[str | None]:
    """The hosts of each alternative, for those of its parts that do not say."""
    for alternative in body.get("alternatives", [body]):
        yield alternative.get("hosts", body.get("hosts"))


def normal(request: _Body) -> dict[str, Any]:
    """The same for requests that ask for the same, however they are written."""
    consumer = request["consumer"]
    return {
        "consumer": [consumer["type"], consumer.get("name"), consumer.get("nqn")],
        "placing": request.get("placing", plans.PACK),
        "lease_seconds": request.get("lease_seconds"),
        "alternatives": [
            [
                _normal_part(part, hosts)
                for part in _parts_of(alternative)
                for _ in range(part.get("count", 1))
            ]
            for alternative, hosts in zip(
                request.get("alternatives", [request]), _hosts_of(request), strict=True
            )
        ],
    }


def _normal_part(part: _Body, hosts: str | None) -> dict[str, Any]:
    provider = part.get("device_rp_uuid")
    return {
        "profile": None if "groups" in part else part["device_profile_name"],
        "groups": part.get("groups"),
        "hosts": part.get("hosts", hosts),
        "provider": None if provider is None else str(uuid.UUID(provider)),
    }


def _refuse_many(field: str, asked: Sequence[Sequence[_Body]]) -> None:
    number = sum(part.get("count", 1) for parts in asked for part in parts)
    if number > MAX_PARTS:
        raise errors.Invalid(
            f"{field}: there are {number} parts in all, each counted as often as it is wanted; "
            f"the most is {MAX_PARTS}."
        )


def _profiles(
    ctx: RequestContext, asked: Sequence[Sequence[_Body]]
) -> dict[str, models.DeviceProfile]:
    every = (part for parts in asked for part in parts)
    names = {part["device_profile_name"] for part in every if "groups" not in part}
    found = profiles.list_profiles(ctx, names=names) if names else []
    known = {profile.name: profile for profile in found}
    for name in sorted(names):
        if name not in known:
            raise errors.NotFound.of("Device Profile", name=name)
        profiles.refuse_disabled(known[name])
    return known


def _alternative(
    path: str, asked: _Body, hosts: str | None, known: Mapping[str, models.DeviceProfile]
) -> plans.Alternative:
    """An alternative that is at that place of the request."""
    found: list[plans.Part] = []
    for number, part in enumerate(_parts_of(asked)):
        places = [path, *([f"parts[{number}]"] if "parts" in asked else [])]
        read = _part(part, known, hosts, ".".join(filter(None, places)))
        found += [read] * part.get("count", 1)
    total = sum(len(profiles.count_requests(part.groups)) for part in found)
    if not 0 < total <= profiles.MAX_REQUESTS:
        written = next(name for name in ("parts", "groups", "device_profile_name") if name in asked)
        raise errors.Invalid(
            f"{path or written}: {total} accelerators are asked for in all; ask for 1 to "
            f"{profiles.MAX_REQUESTS}."
        )
    return found


def _part(
    part: _Body, known: Mapping[str, models.DeviceProfile], hosts: str | None, path: str
) -> plans.Part:
    where = part.get("hosts", hosts)
    named = part.get("device_rp_uuid")
    provider = None if named is None else str(uuid.UUID(named))
    if "groups" in part:
        with refusals_at(path):
            own = profiles.read_groups(part["groups"])
        return plans.Part(groups=own, hosts=where, provider=provider, path=path)
    profile = known[part["device_profile_name"]]
    return plans.Part(
        groups=profile.groups,
        profile_name=profile.name,
        profile_uuid=profile.uuid,
        hosts=where,
        provider=provider,
        path=f"{path}.device_profile_name".removeprefix("."),
    )


def parts(wish: plans.Wish) -> Iterator[plans.Part]:
    """All parts of a wish, one of those that are equal because of a count."""
    for alternative in wish.alternatives:
        yield from {part.path: part for part in alternative}.values()


@contextlib.contextmanager
def refusals_at(path: str) -> Iterator[None]:
    """Have refusals say which part of the request they are about."""
    try:
        yield
    except errors.Invalid as exc:
        raise errors.Invalid(f"{path}: {exc.message}".removeprefix(": ")) from exc
