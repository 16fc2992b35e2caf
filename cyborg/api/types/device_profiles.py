# SPDX-License-Identifier: Apache-2.0
"""Device profiles, the rules for their groups, and candidates."""

from __future__ import annotations

from typing import Any, ClassVar

from cyborg import profiles
from cyborg.api import arguments, versions
from cyborg.api.types import fields
from cyborg.api.types.base import Changed, Field, Narrowed, Object, Value, Versioned
from cyborg.common import request_groups

_REGULAR = versions.REGULAR
_NAME = Value(
    str,
    type="string",
    pattern="^[a-zA-Z0-9_-]+$",
    maxLength=arguments.TEXT_MAX,
    refusal={
        "type": "Device profile name must be a text of letters, digits, '-' and '_'.",
        "pattern": "Device profile name must be of the form ^[a-zA-Z0-9-_]+$: give a text of "
        "letters, digits, '-' and '_'.",
        "maxLength": "Device profile name must have at most {most} characters.",
    },
)
_WRITTEN = {"type": ["string", "integer"], "maxLength": arguments.TEXT_MAX}
_TEXT = {"type": "string", "maxLength": arguments.TEXT_MAX}
# Blanks around what follows a prefix are permitted: they are removed later.
_KINDS = [
    {
        "pattern": "^(resources|trait|accel):",
        "refusal": "Group key '{value}' must begin with resources:, trait: or accel:, for example "
        "resources:FPGA.",
    },
    {
        "pattern": r"^(resources:\s*((FPGA|GPU|VGPU|PGPU)\s*$|CUSTOM_)|trait:|accel:)",
        "refusal": "Unsupported resource class {name}: use FPGA, GPU, VGPU, PGPU, or a name "
        "that begins with CUSTOM_.",
    },
]
_OWN_TRAIT = {
    "pattern": r"^(trait:\s*CUSTOM_|resources:|accel:)",
    "refusal": "Unsupported trait name format {name}, should start with CUSTOM_",
}
#: From 2.4 on traits may also be standard ones that say what a device is.
_ANY_TRAIT = {
    "pattern": r"^(trait:\s*((CUSTOM|HW|MISC|STORAGE)_|OWNER_CYBORG\s*$)|resources:|accel:)",
    "refusal": "Unsupported trait {name}: it must begin with CUSTOM_, HW_, MISC_ or STORAGE_, "
    "or be OWNER_CYBORG.",
}
#: From 2.4 on a key that means nothing is refused: it is a typing error.
_KNOWN = {
    "pattern": r"^(?!accel:)|^accel:\s*("
    + "|".join(key.removeprefix("accel:") for key in request_groups.ACCEL_KEYS)
    + r")\s*$",
    "refusal": "Unknown group key '{value}': the known ones are "
    + ", ".join(request_groups.ACCEL_KEYS)
    + ".",
}
_AMOUNT = {
    **_WRITTEN,
    "pattern": r"^\s*0*([1-9][0-9]{0,2}|1000)\s*$",
    "minimum": 1,
    "maximum": profiles.MAX_REQUESTS,
    "refusal": "Resources number {value} is invalid: {field} must be a whole number from 1 to "
    f"{profiles.MAX_REQUESTS}.",
}
_TRAIT = {
    "type": "string",
    "pattern": r"^\s*(required|forbidden)\s*$",
    "refusal": "Unsupported trait value {value}, the value must be one among "
    "['required', 'forbidden']",
}


def _groups(accel: dict[str, Any], *rules: dict[str, str]) -> Narrowed:
    group = Value(
        dict,
        title="DeviceProfileGroup",
        type="object",
        propertyNames={
            "maxLength": arguments.TEXT_MAX,
            "refusal": "Group keys must have at most {most} characters.",
            "allOf": [*_KINDS, *rules],
        },
        patternProperties={"^resources:": _AMOUNT, "^trait:": _TRAIT, "^accel:": accel},
    )
    return Narrowed(
        [group],
        minItems=1,
        maxItems=profiles.MAX_REQUESTS,
        refusal=f"groups must be a list of 1 to {profiles.MAX_REQUESTS} groups.",
    )


GROUPS = Changed(
    {
        versions.MIN: _groups(_WRITTEN, _OWN_TRAIT),
        _REGULAR: _groups(_TEXT, _ANY_TRAIT, _KNOWN),
    }
)
_DESCRIPTION = fields.text("null", maxLength=fields.DESCRIPTION_MAX)
_VISIBLE = fields.one_of([profiles.PUBLIC, profiles.PRIVATE])
# MySQL considers texts equal that differ only in blanks at their ends.
_PROJECT = Value(
    str,
    type="string",
    maxLength=arguments.TEXT_MAX,
    minLength=1,
    pattern=r"^\S+$",
    refusal={"pattern": "{field} must be the id of a project, without blanks."},
)
#: Descriptions by name.
_EXTRA_MAX = 50
_EXTRA = Value(
    dict,
    type="object",
    maxProperties=_EXTRA_MAX,
    propertyNames={
        "minLength": 1,
        "maxLength": arguments.TEXT_MAX,
        "refusal": "extra: names must have 1 to {most} characters.",
    },
    additionalProperties={"type": "string", "maxLength": 1024},
    refusal={"maxProperties": f"extra must have at most {_EXTRA_MAX} names."},
)
_REFUSAL = {
    "refusal": {
        "type": "A device profile must be an object with a name and groups.",
        "required": "DeviceProfile {missing} needed.",
    }
}
_ONLY_PRIVATE = {
    "if": {
        "required": ["visibility"],
        "properties": {"visibility": {"const": profiles.PRIVATE}},
    },
    "else": {
        "properties": {
            "projects": {
                "maxItems": 0,
                "refusal": f"projects are for a profile whose visibility is {profiles.PRIVATE}.",
            }
        }
    },
}


class DeviceProfile(Object):
    """A profile, by whose name consumers ask for accelerators."""

    _sent_title = "DeviceProfileRequest"
    _rules: ClassVar[Versioned] = {versions.MIN: _REFUSAL, _REGULAR: _REFUSAL | _ONLY_PRIVATE}

    name = Field(fields.TEXT, "The name.", sent=_NAME, mandatory=True)
    groups = Field(
        [{str: str}],
        "Groups of resources, traits and properties that are asked for together.",
        sent=GROUPS,
        mandatory=True,
    )
    description = Field(fields.TEXT_OR_NULL, "A text for people, or null.", sent=_DESCRIPTION)
    visibility = Field(_VISIBLE, "``public``, or ``private`` to some projects.", since=_REGULAR)
    # Only administrators are shown it.
    projects = Field(
        Narrowed([_PROJECT], maxItems=profiles.MAX_PROJECTS),
        "The ids of the projects with which a private profile is shared.",
        since=_REGULAR,
        optional=True,
    )
    enabled = Field(bool, "Whether requests can be made of it.", since=_REGULAR, readonly=True)
    extra = Field({str: str}, "Descriptions by name.", sent=_EXTRA, since=_REGULAR)
    in_use = Field(
        fields.COUNT,
        "How many of the accelerator requests that you may see were made of it.",
        since=_REGULAR,
        readonly=True,
    )
    warnings = Field([str], "Reasons for failing binds.", since=_REGULAR, readonly=True)
    fits = Field(
        bool,
        "Whether there are devices like those it asks for, free or not.",
        since=_REGULAR,
        readonly=True,
    )
    uuid = Field(fields.UUID, "The UUID; without it one is made.")
    created_at = Field(fields.TIME, "When it was made, in UTC.", readonly=True)
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, or null.", readonly=True)
    links = Field([fields.Link], "Links to the profile itself.", readonly=True)


class DeviceProfileReplacement(DeviceProfile):
    """The new content of a profile, which keeps its UUID."""

    _sent_title = "DeviceProfileReplacement"

    uuid = Field(fields.UUID, "The UUID.", readonly=True)


class DeviceProfileAlone(DeviceProfile):
    """A single profile up to 2.3: with ``None`` if it has never been changed."""

    created_at = Field(str, "When it was made, in UTC.")
    updated_at = Field(str, "When it was last changed, in UTC, or ``None``.")


class OneDeviceProfile(Object):
    """The envelope of a single profile up to 2.3."""

    device_profile = Field(DeviceProfileAlone, "The profile.")


NEW = Changed(
    {
        versions.MIN: Narrowed([DeviceProfile],
            minItems=1,
            maxItems=1,
            refusal="Only one device profile allowed per POST request for now: send a list of "
            "one.",
        ),
        _REGULAR: DeviceProfile,
    }
)
ONE = Changed({versions.MIN: OneDeviceProfile, _REGULAR: DeviceProfile})
QUERY = fields.paging(
    profiles.COLUMNS,
    name=Field(fields.NAMES, "Only profiles of these names, separated by commas."),
    visibility=Field(_VISIBLE, "Only profiles of this visibility.", since=_REGULAR),
    enabled=Field(bool, "Only profiles that are enabled, or are not.", since=_REGULAR),
)
DELETE: fields.Query = {
    "value": Field(fields.NAMES, "Names or UUIDs, separated by commas.", mandatory=True)
}
#: The segment of a path that names a profile.
UUID_OR_NAME = Value(
    str,
    type="string",
    maxLength=arguments.TEXT_MAX,
    refusal="Device profile name must have at most {most} characters.",
)


class CandidateGroup(Object):
    """The deployable that would serve one group of the profile."""

    group = Field(fields.COUNT, "The number of the group, counted from 0.")
    rp_uuid = Field(fields.UUID, "The deployable's resource provider in Placement.")
    deployable_uuid = Field(fields.UUID, "The deployable.")
    deployable_name = Field(fields.TEXT, "The name of the deployable.")
    preferred = Field(
        Value(bool, type=["boolean", "null"]),
        "Whether it has everything that the group prefers; null if the group prefers nothing.",
    )
    reprogram = Field(bool, "Whether it would be programmed for the group.")


class Candidate(Object):
    """A host on which what the profile asks for could be bound."""

    hostname = Field(fields.TEXT, "The name of the host's root resource provider.")
    rank = Field(fields.COUNT, "0 for the best; equally good ones have the same.")
    reprogrammings = Field(fields.COUNT, "How many deployables would be programmed.")
    groups = Field([CandidateGroup], "The deployable for each group.")


class CandidateList(Object):
    """The places where a profile could be bound, best first."""

    candidates = Field([Candidate], "The candidates, the best first.")
    reason = Field(fields.TEXT_OR_NULL, "Why there is none; null if there are.")


CANDIDATES_QUERY: fields.Query = {"limit": Field(fields.LIMIT, "At most so many candidates.")}
