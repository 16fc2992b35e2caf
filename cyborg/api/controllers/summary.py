# SPDX-License-Identifier: Apache-2.0
"""``/v2/summary``: how many accelerators hosts have, how many are free, and how many fail."""

from __future__ import annotations

import urllib.parse
from typing import Any

from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.request import Request
from cyborg.api.types import summary as types
from cyborg.handles import summary
from cyborg.policy.rules import summary as policies


class Summary(Resource):
    """The summary."""

    collection = "summary"
    kind = types.SummaryRow

    @declare.operation(
        policies.GET_ALL, since=versions.REGULAR, query=types.QUERY, answer=types.Summary
    )
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """Show the accelerators in numbers, by host and resource class."""
        wanted = dict(given)
        limit = min(wanted.pop("limit", request.max_limit), request.max_limit)
        marker = wanted.pop("marker", None)
        # One more than is shown, to know whether there is a next page.
        rows = summary.list_rows(limit + 1, marker, **wanted)
        answer = {"summary": rows[:limit], "totals": summary.list_totals(**wanted)}
        if len(rows) > limit:
            query = urllib.parse.urlencode(given | {"marker": summary.marker_of(rows[limit - 1])})
            href = f"{request.base_url}/v2/{self.collection}?{query}"
            answer["summary_links"] = [{"rel": "next", "href": href}]
        return answer
