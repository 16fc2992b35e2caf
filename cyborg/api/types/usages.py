# SPDX-License-Identifier: Apache-2.0
"""The accelerators that projects use and have used."""

from __future__ import annotations

from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object, Value

_HOURS = Value(float, type="number", minimum=0)


class Usage(Object):
    """The use that a project makes and has made of one resource class."""

    project_id = Field(fields.TEXT_OR_NULL, "The project.")
    resource_class = Field(fields.TEXT_OR_NULL, "The resource class.")
    in_use = Field(fields.COUNT, "How many accelerators it has now.")
    hours = Field(_HOURS, "The accelerator-hours in the period.")


class Usages(Object):
    """The usages of a period."""

    usages = Field([Usage], "By project and resource class.")
    known_since = Field(
        fields.TIME_OR_NULL,
        "Uses that ended before are forgotten and do not count; null if none is.",
    )


QUERY: fields.Query = {
    "start": Field(fields.TIME, "The begin of the period."),
    "end": Field(fields.TIME, "The end of the period."),
    "project_id": Field(fields.TEXT, "Only this project."),
    "all_projects": Field(bool, "All projects; for administrators."),
}
