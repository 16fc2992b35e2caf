# SPDX-License-Identifier: Apache-2.0
"""Device profiles, and the rules for their groups."""

from __future__ import annotations

from cyborg import profiles
from cyborg.api import arguments, declare, versions
from cyborg.api.schemas import fields

_DESCRIPTION_MAX = 65535

_NAME: fields.Schema = {
    "type": "string",
    "pattern": "^[a-zA-Z0-9_-]+$",
    "maxLength": arguments.TEXT_MAX,
    "refusal": {
        "type": "Device profile name must be a text of letters, digits, '-' and '_'.",
        "pattern": "Device profile name must be of the form ^[a-zA-Z0-9-_]+$: give a text of "
        "letters, digits, '-' and '_'.",
        "maxLength": "Device profile name must have at most {most} characters.",
    },
}

# Blanks around what follows a prefix are cut off, and so permitted.
_KEY: fields.Schema = {
    "maxLength": arguments.TEXT_MAX,
    "refusal": "Group keys must have at most {most} characters.",
    "allOf": [
        {
            "pattern": "^(resources|trait|accel):",
            "refusal": "Device profile group keys must be of the form ^(resources:|trait:|accel:)",
        },
        {
            "pattern": r"^(resources:\s*((FPGA|GPU|VGPU|PGPU)\s*$|CUSTOM_)|trait:|accel:)",
            "refusal": "Unsupported resource class {name}",
        },
        {
            "pattern": r"^(trait:\s*CUSTOM_|resources:|accel:)",
            "refusal": "Unsupported trait name format {name}, should start with CUSTOM_",
        },
    ],
}
_AMOUNT: fields.Schema = {
    **fields.WRITTEN,
    "pattern": r"^\s*0*([1-9][0-9]{0,2}|1000)\s*$",
    "minimum": 1,
    "maximum": profiles.MAX_REQUESTS,
    "refusal": "Resources number {value} is invalid: {field} must be a whole number from 1 to "
    f"{profiles.MAX_REQUESTS}.",
}
_TRAIT: fields.Schema = {
    "type": "string",
    "pattern": r"^\s*(required|forbidden)\s*$",
    "refusal": "Unsupported trait value {value}, the value must be one among "
    "['required', 'forbidden']",
}
_GROUP: fields.Schema = {
    "title": "DeviceProfileGroup",
    "type": "object",
    "propertyNames": _KEY,
    "patternProperties": {"^resources:": _AMOUNT, "^trait:": _TRAIT, "^accel:": fields.WRITTEN},
}
GROUPS: fields.Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": profiles.MAX_REQUESTS,
    "items": _GROUP,
    "refusal": f"groups must be a list of 1 to {profiles.MAX_REQUESTS} groups.",
}

_FIELDS: fields.Schema = {
    "name": _NAME,
    "groups": GROUPS,
    "description": {"type": ["string", "integer", "null"], "maxLength": _DESCRIPTION_MAX},
}
_SHARING: fields.Schema = {
    "visibility": {"enum": [profiles.PUBLIC, profiles.PRIVATE]},
    "projects": {
        "type": "array",
        "maxItems": profiles.MAX_PROJECTS,
        # MySQL takes texts that differ in blanks at their ends for one.
        "items": {
            **fields.TEXT,
            "minLength": 1,
            "pattern": r"^\S+$",
            "refusal": {"pattern": "{field} must be the id of a project, without blanks."},
        },
    },
}
_ONLY_PRIVATE: fields.Schema = {
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


def _profile(**properties: fields.Schema) -> fields.Schema:
    return {
        "title": "DeviceProfileRequest",
        "type": "object",
        "required": ["name", "groups"],
        "additionalProperties": False,
        "properties": properties,
        "refusal": {
            "type": "A device profile must be an object with a name and groups.",
            "required": "DeviceProfile {missing} needed.",
        },
    }


_NEW = _profile(**_FIELDS, uuid=fields.UUID)
CREATE = {
    versions.MIN: {
        "type": "array",
        "minItems": 1,
        "maxItems": 1,
        "items": _NEW,
        "refusal": "Only one device profile allowed per POST request for now: send a list of one.",
    },
    versions.REGULAR: _NEW,
    versions.PROFILE_VISIBILITY: {
        **_profile(**_FIELDS, **_SHARING, uuid=fields.UUID),
        **_ONLY_PRIVATE,
    },
}
REPLACE: fields.Schema = {
    **_profile(**_FIELDS, **_SHARING),
    **_ONLY_PRIVATE,
    "title": "DeviceProfileReplacement",
}

_IDENTITY: fields.Schema = {
    "uuid": fields.UUID,
    "name": fields.TEXT,
    "description": fields.TEXT_OR_NULL,
    "groups": {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
_HISTORY: fields.Schema = {
    "created_at": fields.TIME,
    "updated_at": fields.TIME_OR_NULL,
    "links": fields.LINKS,
}
_SHOWN = fields.shown("DeviceProfile", **_IDENTITY, **_HISTORY)
# Up to 2.3 a single profile is shown with other times, and "None" where there is none.
_SHOWN_ALONE = fields.shown(
    "DeviceProfileAlone",
    **_IDENTITY,
    created_at={"type": "string"},
    updated_at={"type": "string"},
    links=fields.LINKS,
)
# With which projects it is shared, only administrators see.
_SHOWN_SHARED: fields.Schema = {
    **fields.shown("DeviceProfile", **_IDENTITY, **_SHARING, **_HISTORY),
    "required": [*_IDENTITY, "visibility", *_HISTORY],
}

PROFILE = {versions.MIN: _SHOWN, versions.PROFILE_VISIBILITY: _SHOWN_SHARED}
ONE = {
    versions.MIN: fields.shown("OneDeviceProfile", device_profile=_SHOWN_ALONE),
    versions.REGULAR: _SHOWN,
    versions.PROFILE_VISIBILITY: _SHOWN_SHARED,
}
MANY = {
    versions.MIN: fields.listed("device_profiles", _SHOWN),
    versions.REGULAR: fields.paged("device_profiles", _SHOWN),
    versions.PROFILE_VISIBILITY: fields.paged("device_profiles", _SHOWN_SHARED),
}
_NAMES = fields.separated(fields.TEXT)
QUERY = {
    versions.MIN: {"name": _NAMES},
    versions.REGULAR: fields.paging(profiles.COLUMNS, name=_NAMES),
    versions.PROFILE_VISIBILITY: fields.paging(
        profiles.COLUMNS, name=_NAMES, visibility={"enum": [profiles.PUBLIC, profiles.PRIVATE]}
    ),
}
DELETE = {"value": _NAMES}
MEMBER = declare.Member(
    name="uuid_or_name",
    schema={
        **fields.TEXT,
        "refusal": "Device profile name must have at most {most} characters.",
    },
)

_CHOICE = fields.shown(
    "CandidateGroup",
    group={"type": "integer", "minimum": 0},
    rp_uuid=fields.UUID,
    deployable_uuid=fields.UUID,
    preferred={"type": "boolean"},
    reprogram={"type": "boolean"},
)
_CANDIDATE = fields.shown(
    "Candidate",
    hostname=fields.TEXT,
    reprogrammings={"type": "integer", "minimum": 0},
    groups={"type": "array", "items": _CHOICE},
)
CANDIDATES = fields.shown(
    "CandidateList", candidates={"type": "array", "items": _CANDIDATE}
)
CANDIDATES_QUERY = {"limit": fields.paging(())["limit"]}
