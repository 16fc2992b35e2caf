# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables."""

from __future__ import annotations

from typing import ClassVar

from cyborg.api import arguments, versions
from cyborg.api.types import fields
from cyborg.api.types.base import Changed, Field, Object, OneOrMany, Value, Versioned
from cyborg.inventory import attributes

_REGULAR = versions.REGULAR
_NEW_KEY = fields.text(maxLength=arguments.TEXT_MAX, minLength=1)
_NEW_VALUE = Value(str, type=["string", "integer"], maxLength=65535)
#: The number of a row, which may also be sent as a text.
_NUMBER = Value(
    int,
    type=["integer", "string"],
    pattern="^[0-9]{1,9}$",
    minimum=0,
    maximum=arguments.ID_MAX,
    refusal="deployable_id must be a whole number, not '{value}'.",
)


class Attribute(Object):
    """A fact about a deployable."""

    _sent_title = "NewAttribute"
    _rules: ClassVar[Versioned] = {
        versions.MIN: {"required": ["deployable_id", "key", "value"]},
        _REGULAR: {
            "oneOf": [{"required": ["deployable_uuid"]}, {"required": ["deployable_id"]}],
            "refusal": {"oneOf": "Send either deployable_uuid or deployable_id."},
        },
    }

    deployable_id = Field(fields.ID, "The number of the deployable.", sent=_NUMBER)
    key = Field(fields.TEXT, "The name of the fact.", sent=_NEW_KEY, mandatory=True)
    value = Field(
        Changed({versions.MIN: str, _REGULAR: fields.TEXT_OR_NUMBER}),
        "The fact; from 2.4 a number if the fact is one.",
        sent=_NEW_VALUE,
        mandatory=True,
    )
    uuid = Field(fields.UUID, "The UUID; without it one is made.")
    deployable_uuid = Field(fields.UUID, "The UUID of the deployable.", since=_REGULAR)
    created_at = Field(fields.TIME, "When it was made, in UTC.", readonly=True)
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, or null.", readonly=True)
    links = Field([fields.Link], "Links to the attribute itself.", readonly=True)


#: What is made: one or, from 2.4, several at once.
MADE = Changed(
    {
        versions.MIN: Attribute,
        _REGULAR: OneOrMany(
            Attribute,
            "attributes",
            minItems=1,
            maxItems=attributes.MAX_ATTRIBUTES,
            refusal=f"attributes must be a list of 1 to {attributes.MAX_ATTRIBUTES} attributes.",
        ),
    }
)
QUERY = fields.paging(
    attributes.COLUMNS,
    deployable_id=Field(fields.ID, "Only attributes of the deployable of this number."),
    deployable_uuid=Field(fields.UUID, "Only attributes of this deployable.", since=_REGULAR),
    key=Field(fields.TEXT, "Only attributes of this key."),
    value=Field(fields.TEXT, "Only attributes of this value, exactly.", since=_REGULAR),
)
