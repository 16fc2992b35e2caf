# SPDX-License-Identifier: Apache-2.0
"""Wishes read from requests, with their device profiles looked up."""

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
    asked = _unfolded(body)
    _refuse_many("alternatives" if "alternatives" in body else "parts", asked)
    known = _profiles(ctx, asked)
    alternatives = [
        _alternative(f"alternatives[{number}]" if "alternatives" in body else "", *each, known)
        for number, each in enumerate(zip(_alternatives(body), asked, strict=True))
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
    """The request has groups of its own, and not only those of device profiles."""
    return any("groups" in part for parts in _unfolded(body) for part in parts)


def _alternatives(body: _Body) -> Sequence[_Body]:
    found: Sequence[_Body] = body.get("alternatives", [body])
    return found


def _unfolded(body: _Body) -> list[list[_Body]]:
    """The parts of each alternative, which have the hosts of it or of all unless they say some.

    The provider of a part is there in the one way in which uuids are written.
    """
    return [
        [
            {"hosts": each.get("hosts", body.get("hosts")), **part, "provider": _provider(part)}
            for part in each.get("parts", [each])
        ]
        for each in _alternatives(body)
    ]


def _provider(part: _Body) -> str | None:
    named = part.get("device_rp_uuid")
    return None if named is None else str(uuid.UUID(named))


def normal(request: _Body) -> dict[str, Any]:
    """The same for requests that ask for the same, however they are written."""
    consumer = request["consumer"]
    return {
        "consumer": [consumer["type"], consumer.get("name"), consumer.get("nqn")],
        "placing": request.get("placing", plans.PACK),
        "lease_seconds": request.get("lease_seconds"),
        "alternatives": [
            [_normal_part(part) for part in parts for _ in range(part.get("count", 1))]
            for parts in _unfolded(request)
        ],
    }


def _normal_part(part: _Body) -> dict[str, Any]:
    return {
        "profile": None if "groups" in part else part["device_profile_name"],
        "groups": part.get("groups"),
        "hosts": part["hosts"],
        "provider": part["provider"],
    }


def _refuse_many(field: str, asked: Sequence[Sequence[_Body]]) -> None:
    number = sum(part.get("count", 1) for parts in asked for part in parts)
    if number > MAX_PARTS:
        raise errors.Invalid(
            f"{field}: there are {number} parts in all, each times its count; "
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
    path: str,
    asked: _Body,
    parts: Sequence[_Body],
    known: Mapping[str, models.DeviceProfile],
) -> plans.Alternative:
    """An alternative that is at that place of the request."""
    found: list[plans.Part] = []
    for number, part in enumerate(parts):
        places = [path, *([f"parts[{number}]"] if "parts" in asked else [])]
        read = _part(part, known, ".".join(filter(None, places)))
        found += [read] * part.get("count", 1)
    total = sum(len(profiles.count_requests(part.groups)) for part in found)
    if not 0 < total <= profiles.MAX_REQUESTS:
        written = next(name for name in ("parts", "groups", "device_profile_name") if name in asked)
        raise errors.Invalid(
            f"{path or written}: {total} accelerators are asked for in all; ask for 1 to "
            f"{profiles.MAX_REQUESTS}."
        )
    return found


def _part(part: _Body, known: Mapping[str, models.DeviceProfile], path: str) -> plans.Part:
    place = {"hosts": part["hosts"], "provider": part["provider"]}
    if "groups" in part:
        with refusals_at(path):
            own = profiles.read_groups(part["groups"])
        return plans.Part(groups=own, path=path, **place)
    profile = known[part["device_profile_name"]]
    return plans.Part(
        groups=profile.groups,
        profile_name=profile.name,
        profile_uuid=profile.uuid,
        path=f"{path}.device_profile_name".removeprefix("."),
        **place,
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
