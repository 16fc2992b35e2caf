# SPDX-License-Identifier: Apache-2.0
"""``/v2/deployables``: the parts of devices from which attach handles are given out."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cyborg import rpc
from cyborg.api import arguments, declare, pages, versions
from cyborg.api.controllers.operations import view as operation_view
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import deployables as schemas
from cyborg.api.schemas import fields
from cyborg.api.schemas import operations as operation_schemas
from cyborg.db import models
from cyborg.inventory import attributes, query
from cyborg.policies import deployable as policies
from cyborg.policies import operation as operation_policies
from cyborg.programming import operations, program


class Deployables(Resource):
    """Deployables."""

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

    @declare.operation(policies.GET_ALL, query=schemas.QUERY, answer=schemas.DEPLOYABLES)
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List deployables."""
        wanted, page = pages.read(request, given)
        found = query.list_deployables(page, **wanted)
        view = functools.partial(_view, names=_may_be_named(request))
        return pages.answer(request, "deployables", "deployables", found, page, view)

    @declare.operation(policies.GET_ONE, member=fields.member(), answer=schemas.DEPLOYABLE)
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show a deployable."""
        return _view(request, query.get_deployable(uuid), names=_may_be_named(request))

    @declare.operation(
        policies.PROGRAM,
        member=fields.member(),
        body=declare.Body(name="program_info", schema=schemas.PROGRAM),
        answer=schemas.DEPLOYABLE,
        faults=[409, 501, 502],
    )
    def program(self, request: Request, uuid: str, changes: Any) -> dict[str, Any]:
        """Program a deployable with an image, and wait for the end."""
        operation = _ask(request, uuid, changes[0]["value"][0])
        operations.wait(operation.uuid, request.program_wait)
        return _view(request, query.get_deployable(uuid), names=_may_be_named(request))

    @declare.operation(
        policies.PROGRAM,
        since=versions.PROGRAMMING,
        member=fields.member("Deployable"),
        body=declare.Body(name="program", schema=operation_schemas.PROGRAM),
        success=202,
        answer=operation_schemas.OPERATION,
        faults=[409, 501],
    )
    def start_program(self, request: Request, uuid: str, body: Any) -> dict[str, Any]:
        """Begin to program a deployable with an image or a function."""
        return operation_view(request, _ask(request, uuid, body))


def _ask(
    request: Request, uuid: str, body: Mapping[str, str]
) -> models.Operation:
    image = body.get("image_uuid")
    stored = {} if image is None else {"image_uuid": arguments.stored_uuid(image)}
    what = program.Program(**{**body, **stored})
    operation = operations.ask(uuid, what, f"user {request.caller.user_id}")
    rpc.kick()
    return operation


def _may_be_named(request: Request) -> bool:
    """Whether the caller may know who had something programmed, as operations say that, too."""
    rule = operation_policies.GET_ALL
    return request.version >= versions.PROGRAMMING and request.caller.may(rule)


def _view(request: Request, deployable: models.Deployable, *, names: bool) -> dict[str, Any]:
    regular = request.version >= versions.REGULAR
    device_uuid = {"device_uuid": deployable.device.uuid} if regular else {}
    bookmark = f"{request.base_url}/deployables/{deployable.uuid}"
    return {
        "uuid": deployable.uuid,
        "parent_id": deployable.parent_id,
        "root_id": deployable.root_id,
        "name": deployable.name,
        "num_accelerators": deployable.num_accelerators,
        "device_id": deployable.device_id,
        **device_uuid,
        **_attributes(request, deployable.attributes),
        **_program(request, deployable, names=names),
        "rp_uuid": deployable.rp_uuid,
        "driver_name": deployable.driver_name,
        "bitstream_id": deployable.bitstream_id,
        "links": [
            self_link(request, "deployables", deployable.uuid),
            {"href": bookmark, "rel": "bookmark"},
        ],
        "created_at": timestamp(deployable.created_at),
        "updated_at": timestamp(deployable.updated_at),
    }


def _program(
    request: Request, deployable: models.Deployable, *, names: bool
) -> dict[str, Any]:
    """How it is programmed and what it runs; null where no driver programs it."""
    if request.version < versions.PROGRAMMING:
        return {}
    if deployable.program_mode is None:
        return {"program": None}
    at_ms = deployable.programmed_ms
    return {
        "program": {
            "mode": deployable.program_mode,
            "in_doubt": not deployable.is_settled,
            "image_uuid": deployable.bitstream_id,
            "function_id": deployable.function_id,
            "function_name": deployable.function_name,
            "programmed_at": None if at_ms is None else timestamp(operations.moment(at_ms)),
            "programmed_by": deployable.programmed_by if names else None,
            "verified_by": deployable.verified_by,
        }
    }


def _attributes(request: Request, rows: Sequence[models.Attribute]) -> dict[str, Any]:
    if request.version < versions.FACTS:
        texts = [{attribute.key: attribute.value} for attribute in rows]
        return {"attributes_list": json.dumps(texts)}
    return {"attributes": {each.key: attributes.shown(each.key, each.value) for each in rows}}
