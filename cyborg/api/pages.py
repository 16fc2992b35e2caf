# SPDX-License-Identifier: Apache-2.0
"""Lists: from microversion 2.4 each is filtered, sorted and cut by plain query arguments."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cyborg.api import versions
from cyborg.api.controllers import filters
from cyborg.api.request import Request
from cyborg.common import errors
from cyborg.db import paging

_MARKER = "marker"


def read(request: Request, given: dict[str, Any]) -> tuple[dict[str, Any], paging.Page]:
    """The values that narrow a list, and the page that the query arguments ask for.

    :raises Invalid: a value is not valid for its argument
    """
    if request.version < versions.REGULAR:
        wanted, page = filters.read(given)
        # One more than may be shown, to know whether the list is too long.
        longest = request.conf.api.max_whole_list + 1
        limit = longest if page.limit is None else min(page.limit, longest)
        return wanted, replace(page, limit=limit)
    wanted = dict(given)
    page = paging.Page(
        # One more than is shown, to know whether there is a next page.
        limit=min(wanted.pop("limit", request.max_limit), request.max_limit) + 1,
        marker=wanted.pop(_MARKER, None),
        sort_key=wanted.pop("sort_key", "id"),
        descending=wanted.pop("sort_dir", "asc") == "desc",
    )
    return wanted, page


def cut(
    request: Request, collection: str, rows: Sequence[Any], page: paging.Page
) -> tuple[Sequence[Any], list[dict[str, str]]]:
    """The rows that the page shows, and the link to the next page if there is one.

    :raises Invalid: the microversion has no pages, and the list is too long
    """
    if request.version < versions.REGULAR and len(rows) > request.conf.api.max_whole_list:
        raise errors.Invalid(
            f"The list has more than {request.conf.api.max_whole_list} items. Ask for microversion "
            f"{versions.REGULAR} or a later one, in which it has pages; see [api] max_whole_list."
        )
    if request.version < versions.REGULAR or len(rows) != page.limit:
        return rows, []
    shown = rows[:-1]
    # Pairs, since an argument that names several items may be given once for each.
    query = [pair for pair in request.GET.items() if pair[0] != _MARKER]
    query.append((_MARKER, shown[-1].uuid))
    href = f"{request.base_url}/v2/{collection}?{urllib.parse.urlencode(query)}"
    return shown, [{"rel": "next", "href": href}]
