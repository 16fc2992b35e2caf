# SPDX-License-Identifier: Apache-2.0
"""``/v2/deployables``: the parts of devices from which attach handles are given out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cyborg import errors
from cyborg.api import declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import deployables as schemas
from cyborg.api.schemas import fields
from cyborg.db import models
from cyborg.inventory import facts, query
from cyborg.policies import deployable as policies


class Deployables(Resource):
    """Deployables."""

    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {"program": {"PATCH": "program"}}

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
        return pages.answer(request, "deployables", "deployables", found, page, _view)

    @declare.operation(policies.GET_ONE, member=fields.member(), answer=schemas.DEPLOYABLE)
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show a deployable."""
        return _view(request, query.get_deployable(uuid))

    @declare.operation(
        policies.PROGRAM,
        member=fields.member(),
        body=declare.Body(name="program_info", schema=schemas.PROGRAM),
        answer=schemas.DEPLOYABLE,
        faults=[501],
    )
    def program(self, request: Request, uuid: str, operations: Any) -> dict[str, Any]:
        """Program a deployable with an image."""
        query.get_deployable(uuid)
        raise errors.NotOffered(
            f"Deployable {uuid} cannot be programmed: no driver of this release programs devices."
        )


def _view(request: Request, deployable: models.Deployable) -> dict[str, Any]:
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


def _attributes(request: Request, attributes: Sequence[models.Attribute]) -> dict[str, Any]:
    if request.version < versions.FACTS:
        texts = [{attribute.key: attribute.value} for attribute in attributes]
        return {"attributes_list": json.dumps(texts)}
    return {"attributes": {each.key: facts.shown(each.key, each.value) for each in attributes}}
