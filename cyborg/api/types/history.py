# SPDX-License-Identifier: Apache-2.0
"""The history of accelerators."""

from __future__ import annotations

from cyborg import history
from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object

_KIND = fields.one_of(history.KINDS)


class HistoryEntry(Object):
    """Something that began and perhaps ended. Null is what the entry is not about."""

    uuid = Field(fields.UUID, "The UUID of the entry.")
    kind = Field(_KIND, "The kind of event.")
    device_uuid = Field(fields.UUID_OR_NULL, "The device, which may be gone.")
    attach_handle_uuid = Field(fields.UUID_OR_NULL, "The attach handle.")
    resource_class = Field(fields.TEXT_OR_NULL, "The resource class that was used.")
    device_profile_name = Field(
        fields.TEXT_OR_NULL, "The profile of the accelerator request, as long as it is there."
    )
    attach_handle_info = Field(
        {str: str}, "The content of the attach handle; empty if that is gone."
    )
    project_id = Field(fields.TEXT_OR_NULL, "The project that it belongs to.")
    instance_uuid = Field(fields.UUID_OR_NULL, "The instance.")
    arq_uuid = Field(fields.UUID_OR_NULL, "The accelerator request.")
    hostname = Field(fields.TEXT_OR_NULL, "The host; for administrators only.")
    image_uuid = Field(fields.UUID_OR_NULL, "The image that was written.")
    function_id = Field(fields.TEXT_OR_NULL, "The function that was written.")
    reason = Field(fields.TEXT_OR_NULL, "Why: in full for administrators only.")
    actor = Field(fields.TEXT_OR_NULL, "The user who has done it; for administrators only.")
    started_at = Field(fields.TIME, "When it began, in UTC.")
    ended_at = Field(fields.TIME_OR_NULL, "When it ended, in UTC, or null.")


_ABOUT = {
    "kind": Field(_KIND, "Only entries of this kind."),
    "instance_uuid": Field(fields.UUID, "Only entries about this instance."),
    "project_id": Field(fields.TEXT, "Only entries of this project."),
}
QUERY = fields.paging(
    history.COLUMNS, device_uuid=Field(fields.UUID, "Only entries about this device."), **_ABOUT
)
OF_DEVICE = fields.paging(history.COLUMNS, **_ABOUT)
