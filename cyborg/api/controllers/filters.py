# SPDX-License-Identifier: Apache-2.0
"""``filters.field`` and ``filters.value``: pairs that sort, cut and narrow a list up to 2.3."""

from __future__ import annotations

import itertools
from typing import Any

from cyborg.common import errors
from cyborg.db import paging

_FIELD, _VALUE = "filters.field", "filters.value"
_LIMIT_MAX = 1_000_000_000


def read(given: dict[str, Any]) -> tuple[dict[str, Any], paging.Page]:
    """The values that narrow a list, and the order that the filters ask for.

    Only the filters below have an effect; ``name`` has none on a resource without a name.

    :raises Invalid: a value is not valid for its field
    """
    wanted = dict(given)
    pairs = itertools.zip_longest(wanted.pop(_FIELD, ()), wanted.pop(_VALUE, ()))
    filters = {field: value or "" for field, value in pairs if field is not None}
    if not filters:
        return wanted, paging.ALL
    if "name" in filters:
        wanted["name"] = filters["name"]
    direction = filters.get("sort_dir", "desc")
    if direction not in {"asc", "desc"}:
        raise errors.Invalid(f"sort_dir must be one of asc, desc, not '{direction}'.")
    page = paging.Page(
        sort_key=filters.get("sort_key", "created_at"),
        descending=direction == "desc",
        limit=_limit(filters["limit"]) if "limit" in filters else None,
    )
    return wanted, page


def _limit(value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) <= _LIMIT_MAX):
        raise errors.Invalid(f"limit must be a whole number, not '{value}'.")
    return int(value)
