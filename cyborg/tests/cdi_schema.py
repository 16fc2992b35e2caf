# SPDX-License-Identifier: Apache-2.0
"""What a file of the Container Device Interface may have, as its specification says it.

Written from SPEC.md and the JSON schema of github.com/cncf-tags/container-device-interface, for the
versions 0.3.0 to 0.8.0, and stricter: nothing else may be there, and the rules for names are among
it, which the published schema leaves to code.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jsonschema

_PATH = {"type": "string", "pattern": "^/"}
_KIND = "^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?$"
_TEXTS = {"type": "array", "items": {"type": "string"}}


def _object(required: list[str], **properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_NODE = _object(
    ["path"],
    path=_PATH,
    hostPath=_PATH,
    type={"enum": ["b", "c", "u", "p"]},
    major={"type": "integer"},
    minor={"type": "integer"},
    fileMode={"type": "integer"},
    permissions={"type": "string", "pattern": "^[rwm]{1,3}$"},
    uid={"type": "integer", "minimum": 0},
    gid={"type": "integer", "minimum": 0},
)
_MOUNT = _object(
    ["hostPath", "containerPath"],
    hostPath=_PATH,
    containerPath=_PATH,
    options=_TEXTS,
    type={"type": "string"},
)
_HOOK = _object(
    ["hookName", "path"],
    hookName={"type": "string"},
    path=_PATH,
    args=_TEXTS,
    env=_TEXTS,
    timeout={"type": "integer", "minimum": 1},
)
#: A device without any edit is refused.
_EDITS = {
    **_object(
        [],
        env={"type": "array", "items": {"type": "string", "pattern": "^[^=]+=[^\\n]*$"}},
        deviceNodes={"type": "array", "items": _NODE},
        mounts={"type": "array", "items": _MOUNT},
        hooks={"type": "array", "items": _HOOK},
    ),
    "minProperties": 1,
}
_DEVICE = _object(
    ["name", "containerEdits"],
    name={"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
    containerEdits=_EDITS,
)
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_object(
        ["cdiVersion", "kind", "devices"],
        cdiVersion={"enum": [f"0.{number}.0" for number in range(3, 9)]},
        kind={"type": "string", "pattern": _KIND},
        devices={"type": "array", "items": _DEVICE, "minItems": 1},
    ),
}


def read(path: pathlib.Path) -> Any:
    """The content of a file, which is as it must be."""
    found = json.loads(path.read_text())
    check(found)
    return found


def check(found: Any) -> None:
    """Check a content, and that it says the first version that has all that it uses."""
    jsonschema.Draft7Validator(SCHEMA).validate(found)
    needed = "0.3.0"
    for device in found["devices"]:
        nodes = device["containerEdits"].get("deviceNodes", [])
        mounts = device["containerEdits"].get("mounts", [])
        if any("type" in mount for mount in mounts):
            needed = max(needed, "0.4.0")
        if not device["name"][0].isalpha() or any("hostPath" in node for node in nodes):
            needed = max(needed, "0.5.0")
    assert found["cdiVersion"] == needed
