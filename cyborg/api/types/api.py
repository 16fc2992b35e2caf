# SPDX-License-Identifier: Apache-2.0
"""The documents about the API itself."""

from __future__ import annotations

from cyborg.api import versions
from cyborg.api.types.base import Field, Object, Value
from cyborg.api.types.fields import Link

_NUMBER = Value(str, type="string", pattern="^[0-9]+[.][0-9]+$")


class Version(Object):
    """A version of the API."""

    id = Field(str, "The name of the version.")
    status = Field(Value(str, const="CURRENT"), "``CURRENT``.")
    max_version = Field(_NUMBER, "The newest microversion served.")
    min_version = Field(_NUMBER, "The oldest microversion served.")
    links = Field([Link], "A link to the version itself.")


class Versions(Object):
    """Every version of the API."""

    name = Field(str, "The name of the API.")
    description = Field(str, "The purpose of the service.")
    versions = Field([Version], "Every version of the API.")
    default_version = Field(Version, "The version to use.")


OPENAPI = Value(
    dict,
    type="object",
    required=["openapi", "info", "paths"],
    properties={"openapi": {"const": "3.1.0"}},
    examples=[{"openapi": "3.1.0", "info": {"version": str(versions.MAX)}, "paths": {}}],
)
