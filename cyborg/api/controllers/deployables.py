# SPDX-License-Identifier: Apache-2.0
"""``/v2/deployables``: the parts of devices from which attach handles are given out."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from cyborg.api import arguments, declare, versions
from cyborg.api.controllers.operations import Operations
from cyborg.api.controllers.resource import Resource, lists, shows
from cyborg.api.representation import filled, self_link, timestamp_of_ms
from cyborg.api.request import Request, place
from cyborg.api.types import deployables as types
from cyborg.api.types import operations as operation_types
from cyborg.common.reasons import shown_words
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.inventory import attributes, query
from cyborg.policy.rules import deployable as policies
from cyborg.policy.rules import operation as operation_policies
from cyborg.programming import operations, program, withdrawal

_SINCE = versions.REGULAR
#: What is read by who may not see hosts.
_WITHHELD = "Placement has allocations that no accelerator request explains."


class Deployables(Resource):
    """Deployables."""

    collection = "deployables"
    kind = types.Deployable
    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "program": {"PATCH": "program", "POST": "start_program"}
    }

    def find_handler(
        self, request: Request, segments: Sequence[str]
    ) -> tuple[declare.Declared, list[str]]:
        """The operation that the request asks for, and its arguments from the path."""
        if len(segments) == 3 and segments[1:] == ["program", segments[0]]:
            # SDKs in the field say the uuid a second time.
            segments = segments[:2]
        return super().find_handler(request, segments)

    @lists(policies.GET_ALL, kind, "deployables", query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[query.ShownDeployable]:
        """List deployables."""
        return query.list_deployables(page, **wanted)

    @shows(policies.GET_ONE, kind, member=declare.Member())
    def get_one(self, request: Request, uuid: str) -> query.ShownDeployable:
        """Show a deployable."""
        return query.get_deployable(uuid)

    @shows(
        policies.PROGRAM,
        kind,
        member=declare.Member(),
        body=declare.Body(name="program_info", type=types.PROGRAM),
        faults=[409, 501, 502],
    )
    def program(self, request: Request, uuid: str, changes: Any) -> query.ShownDeployable:
        """Program a deployable with an image, and wait for the end."""
        operation = _ask(request, uuid, changes[0]["value"][0])
        with place(request.program_places, request.wait_places) as may_wait:
            seconds = request.conf.programming.answer_timeout if may_wait else 0
            operations.wait(request.caller, operation.uuid, seconds)
        return query.get_deployable(uuid)

    @declare.operation(
        policies.PROGRAM,
        since=_SINCE,
        member=declare.Member(kind="Deployable"),
        body=declare.Body(name="program", type=operation_types.Program),
        success=202,
        answer=operation_types.Operation,
        faults=[409, 501],
    )
    def start_program(self, request: Request, uuid: str, body: Any) -> dict[str, Any]:
        """Begin to program a deployable with an image or a function."""
        return Operations().view(request, _ask(request, uuid, body))

    def views(self, request: Request, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Deployables; who had them programmed is for callers who may list operations."""
        shown = super().views(request, rows)
        programs = [body["program"] for body in shown if body.get("program")]
        if programs and not request.caller.may(operation_policies.GET_ALL):
            for program in programs:
                program["programmed_by"] = None
        return shown

    def told(self, request: Request, deployable: query.ShownDeployable) -> dict[str, Any]:
        """The attributes and the program of a deployable, and both its links."""
        bookmark = f"{request.base_url}/deployables/{deployable.uuid}"
        return {
            **_attributes(request, deployable.attributes),
            "program": _program(deployable),
            "withheld_reason": shown_words(request.caller, _WITHHELD, deployable.withheld),
            "links": [
                self_link(request, self.collection, deployable.uuid),
                {"href": bookmark, "rel": "bookmark"},
            ],
        }


def _ask(request: Request, uuid: str, body: Mapping[str, str]) -> models.Operation:
    image = body.get("image_uuid")
    stored = {} if image is None else {"image_uuid": arguments.stored_uuid(image)}
    layout = body.get("layout")
    what = program.Program(**({**body, **stored} if layout is None else {"function_id": layout}))
    withdrawal.refuse_held(request.conf, uuid, what)
    by = f"user {request.caller.user_id}"
    return operations.ask(uuid, what, by, is_layout=layout is not None)


def _program(deployable: query.ShownDeployable) -> dict[str, Any] | None:
    """The program of a deployable; None if its driver does not program it."""
    if deployable.program_mode is None:
        return None
    told = {
        "mode": deployable.program_mode,
        "image_uuid": deployable.bitstream_id,
        "programmed_at": timestamp_of_ms(deployable.programmed_ms),
    }
    return filled(types.RunProgram, _SINCE, deployable, told)


def _attributes(request: Request, texts: Mapping[str, str]) -> dict[str, Any]:
    # Only one of the two is made, since a list has many of them.
    if request.version < versions.REGULAR:
        return {"attributes_list": _in_one_text(tuple(texts.items()))}
    return {"attributes": {key: attributes.shown(key, text) for key, text in texts.items()}}


@functools.lru_cache(maxsize=1024)
def _in_one_text(texts: tuple[tuple[str, str], ...]) -> str:
    # Most deployables of a list are of one model, and have the same attributes.
    return json.dumps([{key: value} for key, value in texts])
