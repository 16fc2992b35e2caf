# SPDX-License-Identifier: Apache-2.0
"""``/v2/attributes``: facts about deployables, from their drivers and from administrators."""

from __future__ import annotations

from typing import Any

from cyborg.api import arguments, declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import attributes as schemas
from cyborg.api.schemas import fields
from cyborg.db import models
from cyborg.inventory import admin, attributes
from cyborg.policies import attribute as policies

#: SDKs in the field wrap an attribute in an object with this key.
_WRAPPER = "attribute"


class Attributes(Resource):
    """Attributes."""

    @declare.operation(policies.GET_ALL, query=schemas.QUERY, answer=schemas.ATTRIBUTES)
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List attributes."""
        wanted, page = pages.read(request, given)
        found = admin.list_attributes(page, **wanted)
        return pages.answer(request, "attributes", "attributes", found, page, _view)

    @declare.operation(policies.GET_ONE, member=fields.member(), answer=schemas.ATTRIBUTE)
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show an attribute."""
        return _view(request, admin.get_attribute(uuid))

    @declare.operation(
        policies.CREATE,
        body=declare.Body(name="req_attr", schema=schemas.CREATE, wrapper=_WRAPPER),
        success=201,
        answer=schemas.ATTRIBUTE,
        faults=[409],
    )
    def post(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Give a deployable an attribute."""
        return _view(request, admin.create_attribute(**_stored(body)))

    @declare.operation(
        policies.DELETE, member=fields.member("Attribute"), success=204, faults=[409]
    )
    def delete_one(self, request: Request, uuid: str) -> None:
        """Delete an attribute that an administrator made."""
        admin.delete_attribute(uuid)


def _stored(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a new attribute in the types in which they are stored."""
    stored: dict[str, Any] = {field: arguments.as_text(body[field]) for field in ("key", "value")}
    for field in {"uuid", "deployable_uuid"} & body.keys():
        stored[field] = arguments.stored_uuid(body[field])
    if "deployable_id" in body:
        stored["deployable_id"] = int(body["deployable_id"])
    return stored


def _view(request: Request, attribute: models.Attribute) -> dict[str, Any]:
    regular = request.version >= versions.REGULAR
    deployable_uuid = {"deployable_uuid": attribute.deployable.uuid} if regular else {}
    typed = request.version >= versions.FACTS
    return {
        "uuid": attribute.uuid,
        "deployable_id": attribute.deployable_id,
        **deployable_uuid,
        "key": attribute.key,
        "value": attributes.shown(attribute.key, attribute.value) if typed else attribute.value,
        "created_at": timestamp(attribute.created_at),
        "updated_at": timestamp(attribute.updated_at),
        "links": [self_link(request, "attributes", attribute.uuid)],
    }
