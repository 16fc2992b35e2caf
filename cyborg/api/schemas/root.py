# SPDX-License-Identifier: Apache-2.0
"""The documents about the API itself."""

from __future__ import annotations

from cyborg.api.schemas import fields

_NUMBER: fields.Schema = {"type": "string", "pattern": "^[0-9]+[.][0-9]+$"}
_VERSION: fields.Schema = {
    "id": {"type": "string"},
    "status": {"const": "CURRENT"},
    "max_version": _NUMBER,
    "min_version": _NUMBER,
    "links": fields.LINKS,
}
VERSION = fields.shown("Version", **_VERSION)
VERSIONS = fields.shown(
    "Versions",
    name={"type": "string"},
    description={"type": "string"},
    versions={"type": "array", "items": VERSION},
    default_version=VERSION,
)
OPENAPI: fields.Schema = {
    "type": "object",
    "required": ["openapi", "info", "paths"],
    "properties": {"openapi": {"const": "3.1.0"}},
}
