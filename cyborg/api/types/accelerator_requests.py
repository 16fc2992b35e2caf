# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests (ARQs)."""

from __future__ import annotations

from typing import ClassVar

from cyborg.api import arguments, versions
from cyborg.api.types import fields
from cyborg.api.types.base import Changed, Field, Narrowed, Object, Value, Versioned
from cyborg.arqs import service
from cyborg.inventory import query
from cyborg.states import arq_states

_REGULAR = versions.REGULAR
#: From 2.4 an administrator may ask for those whose deletion waits for their host.
_STATE = Changed(
    {
        versions.MIN: fields.one_of(sorted(arq_states.ALL)),
        versions.REGULAR: fields.one_of(sorted(arq_states.SHOWN)),
    }
)
#: Of the device of an attach handle, if there is one.
HEALTH = fields.one_of([query.HEALTHY, query.UNHEALTHY, None])


class AcceleratorRequest(Object):
    """A request for one attach handle."""

    uuid = Field(fields.UUID, "The UUID.")
    state = Field(_STATE, "The state.")
    state_reason = Field(fields.TEXT_OR_NULL, "Why it is in its state, or null.", since=_REGULAR)
    device_profile_name = Field(fields.TEXT, "The name of its device profile.")
    device_profile_group_id = Field(fields.COUNT, "Its group in the profile, counted from 0.")
    hostname = Field(fields.TEXT_OR_NULL, "The host it is bound to, or null.")
    device_rp_uuid = Field(fields.UUID_OR_NULL, "The resource provider it is bound to, or null.")
    instance_uuid = Field(fields.UUID_OR_NULL, "The instance it is bound to, or null.")
    project_id = Field(fields.TEXT_OR_NULL, "The project it belongs to.")
    attach_handle_type = Field(fields.TEXT, "The kind of attach handle; empty until it is Bound.")
    attach_handle_uuid = Field(fields.UUID_OR_NULL, "The attach handle; null until it is Bound.")
    attach_handle_info = Field({str: str}, "The device for the guest; empty until it is Bound.")
    health = Field(HEALTH, "Whether its device is healthy; null until it is Bound.", since=_REGULAR)
    links = Field([fields.Link], "Links to the request itself.")
    created_at = Field(fields.TIME, "When it was made, in UTC.")
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, in UTC, or null.")


class AccessKey(Object):
    """The secret with which an attach handle is used."""

    arq_uuid = Field(fields.UUID, "The accelerator request.")
    attach_handle_uuid = Field(fields.UUID, "The attach handle.")
    dhchap_key = Field(fields.TEXT, "The DH-HMAC-CHAP key with which the consumer connects.")


QUERY = fields.paging(
    service.COLUMNS,
    instance=Field(fields.UUID, "Only requests of this instance."),
    bind_state=Field(fields.one_of(["resolved"]), "Only requests that are Bound or BindFailed."),
    state=Field(_STATE, "Only requests in this state.", since=_REGULAR),
    hostname=Field(fields.TEXT, "Only requests bound to this host.", since=_REGULAR),
    device_profile_name=Field(fields.TEXT, "Only requests of this profile.", since=_REGULAR),
    device_rp_uuid=Field(fields.UUID, "Only requests bound to this provider.", since=_REGULAR),
    project_id=Field(fields.TEXT, "Only requests of this project.", since=_REGULAR),
    all_projects=Field(bool, "Requests of all projects, for administrators.", since=_REGULAR),
)
#: Which ARQs to delete: one of the two.
DELETE: fields.Query = {
    "arqs": Field(fields.NAMES, "The UUIDs of the requests."),
    "instance": Field(fields.UUID, "The instance whose requests are deleted."),
}


class NewAcceleratorRequests(Object):
    """The accelerator requests to create."""

    _needed = "DeviceProfile name needed: send an object with device_profile_name."
    _rules: ClassVar[Versioned] = {
        versions.MIN: {
            "refusal": {
                "type": _needed,
                "required": _needed,
                "additionalProperties": "Unknown attribute {extra}: send device_profile_name only.",
            }
        }
    }

    device_profile_name = Field(fields.TEXT, "The name of a device profile.", mandatory=True)
    device_profile_group_id = Field(fields.ANY, "Sent by clients in the field; changes nothing.")
    image_uuid = Field(fields.ANY, "Sent by clients in the field; changes nothing.")


_UUID_PATHS = ("device_rp_uuid", "instance_uuid")
_PATHS = ("hostname", *_UUID_PATHS, "project_id")
_PATH = Value(
    str,
    type="string",
    enum=[slash + path for slash in ("/", "") for path in _PATHS],
    refusal={"enum": "Invalid path in patch {value}"},
)
_OP = Value(
    str,
    type="string",
    enum=["add", "remove"],
    refusal={"enum": "Every op must be add or remove"},
)
_VALUE = Value(str, type=["string", "null"], minLength=1, maxLength=arguments.TEXT_MAX)
_TAKES_A_UUID = {
    "if": {
        "properties": {
            "path": {"enum": [slash + path for slash in ("/", "") for path in _UUID_PATHS]}
        }
    },
    "then": {"properties": {"value": {"format": "uuid"}}},
}


class BindOperation(Object):
    """An operation in the form of a JSON patch."""

    _rules: ClassVar[Versioned] = {
        versions.MIN: {
            "if": {"properties": {"op": {"const": "add"}}},
            "then": {"required": ["value"], **_TAKES_A_UUID},
        }
    }

    path = Field(_PATH, "The field that is set or cleared.", mandatory=True)
    op = Field(_OP, "``add`` to bind or ``remove`` to unbind.", mandatory=True)
    value = Field(_VALUE, "The value of the field; needed to bind.")


_OPERATIONS = Narrowed(
    [BindOperation],
    minItems=1,
    refusal="the operations of {field} must be a list of at least one",
)
#: Lists of operations by the uuid of an ARQ.
PATCH = Narrowed(
    {str: _OPERATIONS},
    title="Binding",
    minProperties=1,
    refusal="the body must map the uuid of at least one ARQ to a list of operations",
)
