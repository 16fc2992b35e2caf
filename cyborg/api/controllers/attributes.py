# SPDX-License-Identifier: Apache-2.0
"""``/v2/attributes``: facts about deployables, from their drivers and from administrators."""

from __future__ import annotations

from typing import Any

from cyborg.api import arguments, declare, versions
from cyborg.api.controllers.resource import Resource, lists, shows
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.types import attributes as types
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.inventory import attributes
from cyborg.policy.rules import attribute as policies

#: SDKs in the field wrap an attribute in an object with this key.
_WRAPPER = "attribute"


class Attributes(Resource):
    """Attributes."""

    collection = "attributes"
    kind = types.Attribute

    @lists(policies.GET_ALL, kind, "attributes", query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[models.Attribute]:
        """List attributes."""
        return attributes.list_attributes(page, **wanted)

    @shows(policies.GET_ONE, kind, member=declare.Member())
    def get_one(self, request: Request, uuid: str) -> models.Attribute:
        """Show an attribute."""
        return attributes.get_attribute(uuid)

    @declare.operation(
        policies.CREATE,
        body=declare.Body(name="req_attr", type=types.MADE, wrapper=_WRAPPER),
        answer=types.MADE,
        success=201,
        faults=[409],
    )
    def post(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Give a deployable an attribute, or several deployables several."""
        several = body.get("attributes")
        new = [_stored(each) for each in ([body] if several is None else several)]
        shown = self.views(request, attributes.create_attributes(new))
        return shown[0] if several is None else {"attributes": shown}

    @declare.operation(
        policies.DELETE, member=declare.Member(kind="Attribute"), success=204, faults=[409]
    )
    def delete_one(self, request: Request, uuid: str) -> None:
        """Delete an attribute that an administrator made."""
        attributes.delete_attribute(uuid)

    def view(self, request: Request, attribute: models.Attribute) -> dict[str, Any]:
        """An attribute, from 2.4 with a number as a number."""
        typed = request.version >= versions.REGULAR
        return {
            "uuid": attribute.uuid,
            "deployable_id": attribute.deployable_id,
            "deployable_uuid": attribute.deployable.uuid,
            "key": attribute.key,
            "value": attributes.shown(attribute.key, attribute.value) if typed else attribute.value,
            "created_at": timestamp(attribute.created_at),
            "updated_at": timestamp(attribute.updated_at),
            "links": [self_link(request, self.collection, attribute.uuid)],
        }


def _stored(body: dict[str, Any]) -> attributes.NewAttribute:
    """The fields of a new attribute as they are stored."""
    stored: dict[str, Any] = {field: arguments.as_text(body[field]) for field in ("key", "value")}
    for field in {"uuid", "deployable_uuid"} & body.keys():
        stored[field] = arguments.stored_uuid(body[field])
    if "deployable_id" in body:
        stored["deployable_id"] = int(body["deployable_id"])
    return attributes.NewAttribute(**stored)
