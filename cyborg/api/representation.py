# SPDX-License-Identifier: Apache-2.0
"""Times and links as the bodies of all resources show them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from cyborg.api import versions
from cyborg.api.request import Request
from cyborg.api.types import base
from cyborg.programming.operations import moment

#: Times of a row, which all kinds of rows have alike.
_TIMES = {"created_at", "updated_at"}


def timestamp(stored: datetime.datetime | None) -> str | None:
    """A stored time, which is UTC, as ISO 8601 text."""
    return None if stored is None else f"{stored.isoformat()}+00:00"


def timestamp_of_ms(stored: int | None) -> str | None:
    """A time that is stored in milliseconds since the epoch, as ISO 8601 text."""
    return None if stored is None else timestamp(moment(stored))


def aware(stored: datetime.datetime) -> datetime.datetime:
    """A stored time with its zone."""
    return stored.replace(tzinfo=datetime.UTC)


def self_link(request: Request, collection: str, uuid: str) -> dict[str, str]:
    """The link by which a resource names itself."""
    return {"href": f"{request.base_url}/v2/{collection}/{uuid}", "rel": "self"}


def filled(
    kind: type[base.Object], version: versions.Version, row: object, told: Mapping[str, Any]
) -> dict[str, Any]:
    """An object of a type: what is told of it, and else what has the same name in the row."""
    names = kind.names(version)
    shown = {name: told[name] if name in told else getattr(row, name) for name in names}
    for name in _TIMES & shown.keys():
        shown[name] = timestamp(shown[name])
    return shown
