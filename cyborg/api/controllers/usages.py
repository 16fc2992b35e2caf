# SPDX-License-Identifier: Apache-2.0
"""``/v2/usages``: what projects use now, and have used in a period."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

from cyborg import history
from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import timestamp_of_ms
from cyborg.api.request import Request
from cyborg.api.types import usages as types
from cyborg.common import errors
from cyborg.policy.rules import usage as policies


class Usages(Resource):
    """Usages."""

    collection = "usages"
    kind = types.Usage

    @declare.operation(
        policies.GET_ALL, since=versions.REGULAR, query=types.QUERY, answer=types.Usages
    )
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """Show what projects use and have used."""
        start, end = (_milliseconds(given, name) for name in ("start", "end"))
        if start is not None and end is not None and end < start:
            raise errors.Invalid("end: the period ends before it starts.")
        project = _project(request, given)
        # Another project is as if it had used nothing.
        is_visible = project in {None, request.caller.project_scope or project}
        found = history.sum_uses(project, start, end) if is_visible else []
        return {
            "usages": [asdict(usage) for usage in found],
            "known_since": timestamp_of_ms(history.known_since(request.conf)),
        }


def _project(request: Request, given: dict[str, Any]) -> str | None:
    """The project that is asked for; None for all, which only administrators may ask for."""
    caller = request.caller
    if not given.get("all_projects", False):
        return str(given.get("project_id", caller.project_id or ""))
    if not caller.is_admin:
        raise errors.Forbidden("all_projects is for administrators; leave it out.")
    found: str | None = given.get("project_id")
    return found


def _milliseconds(given: dict[str, Any], name: str) -> int | None:
    """A time of the query since the epoch; one without a zone is UTC."""
    if name not in given:
        return None
    try:
        found = datetime.datetime.fromisoformat(given[name])
    except ValueError as exc:
        raise errors.Invalid(f"{name}: this is no time; send one like 2026-11-21T10:00Z.") from exc
    zoned = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return round(zoned.timestamp() * 1000)
