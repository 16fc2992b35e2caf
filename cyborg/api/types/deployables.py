# SPDX-License-Identifier: Apache-2.0
"""Deployables, and what asks for one to be programmed."""

from __future__ import annotations

from cyborg.api import versions
from cyborg.api.types import fields
from cyborg.api.types.base import Field, Narrowed, Object, Value
from cyborg.common import program_modes
from cyborg.inventory import query

_REGULAR = versions.REGULAR
_ATTRIBUTES = Value(
    dict,
    title="AttributesByKey",
    type="object",
    additionalProperties={"type": ["string", "integer"]},
)
_LIST = Value(str, type="string", examples=['[{"rc": "FPGA"}, {"memory_mib": "8192"}]'])


class RunProgram(Object):
    """The program of a deployable."""

    mode = Field(fields.one_of(list(program_modes.ALL)), "How its driver programs it.")
    in_doubt = Field(bool, "Whether it is being written or was lost; it is not offered then.")
    image_uuid = Field(fields.UUID_OR_NULL, "The image it runs, or null.")
    function_id = Field(
        fields.TEXT_OR_NULL, "The id of the function it runs, or its layout, or null."
    )
    function_name = Field(fields.TEXT_OR_NULL, "The name of the function it runs, or null.")
    programmed_at = Field(fields.TIME_OR_NULL, "When it was programmed, in UTC, or null.")
    programmed_by = Field(fields.TEXT_OR_NULL, "The user who asked for that, or null.")
    verified_by = Field(fields.TEXT_OR_NULL, "How the host knows what is loaded, or null.")


#: Null if its driver does not program it.
_PROGRAM = Narrowed(RunProgram, type=["object", "null"])


class Deployable(Object):
    """A part of a device from which attach handles are given out."""

    uuid = Field(fields.UUID, "The UUID.")
    parent_id = Field(fields.ID_OR_NULL, "The number of the deployable it is a part of, or null.")
    root_id = Field(fields.ID_OR_NULL, "The number of the deployable at the root, or null.")
    name = Field(fields.TEXT, "The name, which is also its resource provider's.")
    num_accelerators = Field(fields.COUNT, "How many accelerators it has in all.")
    device_id = Field(fields.ID, "The number of the device it is a part of.")
    device_uuid = Field(fields.UUID, "The device it is a part of.", since=_REGULAR)
    attributes_list = Field(_LIST, "JSON: a list of objects with one key each.", until=_REGULAR)
    attributes = Field(_ATTRIBUTES, "The value of each attribute by its key.", since=_REGULAR)
    program = Field(_PROGRAM, "The program that it runs, or null.", since=_REGULAR)
    rp_uuid = Field(fields.UUID, "Its resource provider in Placement.")
    driver_name = Field(fields.TEXT, "The driver that found it.")
    bitstream_id = Field(fields.TEXT_OR_NULL, "The image it is programmed with, or null.")
    withheld_reason = Field(
        fields.TEXT_OR_NULL, "Why nothing of it is given out, or null.", since=_REGULAR
    )
    links = Field([fields.Link], "Links to the deployable itself.")
    created_at = Field(fields.TIME, "When it was first reported, in UTC.")
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, in UTC, or null.")


QUERY = fields.paging(
    query.DEPLOYABLE_COLUMNS,
    **fields.FILTERS,
    name=Field(fields.TEXT, "Only the deployable of this name.", since=_REGULAR),
    device_id=Field(fields.ID, "Only deployables of the device of this number.", since=_REGULAR),
    device_uuid=Field(fields.UUID, "Only deployables of this device.", since=_REGULAR),
    rp_uuid=Field(fields.UUID, "Only the deployable of this resource provider.", since=_REGULAR),
    driver_name=Field(fields.TEXT, "Only deployables of this driver.", since=_REGULAR),
    hostname=Field(fields.TEXT, "Only deployables of this host.", since=_REGULAR),
)

_IMAGE = Value(
    dict,
    type="object",
    required=["image_uuid"],
    additionalProperties=False,
    properties={"image_uuid": {"type": "string", "format": "uuid"}},
)


class ProgramOperation(Object):
    """An operation in the form of a JSON patch, as SDKs in the field send it."""

    path = Field(Value(str, const="/program"), "``/program``.", mandatory=True)
    op = Field(fields.one_of(["replace", "add"]), "Both mean the same.", mandatory=True)
    value = Field(Narrowed([_IMAGE], minItems=1, maxItems=1), "The image to write.", mandatory=True)


PROGRAM = Narrowed([ProgramOperation],
    minItems=1,
    maxItems=1,
    refusal="Invalid input for field/attribute program_info: send a list of one operation.",
)
