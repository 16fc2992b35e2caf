# SPDX-License-Identifier: Apache-2.0
"""Attach handles, with their states."""

from __future__ import annotations

from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object
from cyborg.handles import listing

_STATE = fields.one_of(listing.STATES)


class AttachHandle(Object):
    """A part of a device as a guest is given it."""

    uuid = Field(fields.UUID, "The UUID.")
    state = Field(_STATE, "Whether it can be given out.")
    state_reason = Field(fields.TEXT_OR_NULL, "Why it has that state, where that is known.")
    attach_handle_type = Field(fields.TEXT, "How a guest is given it.")
    attach_handle_info = Field({str: str}, "The device for a guest, such as a PCI address.")
    resource_class = Field(fields.TEXT, "The resource class as which it is offered.")
    device_uuid = Field(fields.UUID, "The device.")
    deployable_uuid = Field(fields.UUID, "The deployable.")
    hostname = Field(fields.TEXT, "The host.")
    arq_uuid = Field(fields.UUID_OR_NULL, "The request that holds it, which may be deleted.")
    instance_uuid = Field(fields.UUID_OR_NULL, "The instance that has it, or null.")
    project_id = Field(fields.TEXT_OR_NULL, "The project that has it, or null.")
    created_at = Field(fields.TIME, "When it was first reported, in UTC.")
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, in UTC, or null.")


QUERY = fields.paging(
    listing.COLUMNS,
    state=Field(_STATE, "Only handles in this state."),
    device_uuid=Field(fields.UUID, "Only handles of this device."),
    deployable_uuid=Field(fields.UUID, "Only handles of this deployable."),
    hostname=Field(fields.TEXT, "Only handles of this host."),
    instance_uuid=Field(fields.UUID, "Only handles of this instance."),
)
