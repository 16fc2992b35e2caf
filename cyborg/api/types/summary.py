# SPDX-License-Identifier: Apache-2.0
"""The accelerators of all hosts in numbers."""

from __future__ import annotations

from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object


class ClassTotal(Object):
    """The accelerators of one resource class on all hosts."""

    resource_class = Field(fields.TEXT, "The resource class.")
    total = Field(
        fields.COUNT, "All but those that are gone and unused; the other numbers add up to it."
    )
    used = Field(fields.COUNT, "Accelerators that a consumer has.")
    free = Field(fields.COUNT, "Accelerators that a consumer can get now.")
    preparing = Field(
        fields.COUNT, "Accelerators that are cleaned or programmed, or await their program."
    )
    out_of_service = Field(
        fields.COUNT,
        "Accelerators that are unhealthy, disabled or withheld, or on a host that is down or "
        "drained.",
    )


class SummaryRow(ClassTotal):
    """The accelerators of one resource class on one host."""

    hostname = Field(fields.TEXT, "The host.")


class Summary(Object):
    """The accelerators by host and resource class."""

    summary = Field([SummaryRow], "A row for each host and resource class, in that order.")
    totals = Field([ClassTotal], "All hosts together, also those on other pages.")
    summary_links = Field(
        [fields.Link], "A link to the next page; absent on the last page.", optional=True
    )


QUERY: fields.Query = {
    "hostname": Field(fields.TEXT, "Only this host."),
    "resource_class": Field(fields.TEXT, "Only this resource class."),
    "limit": Field(fields.LIMIT, "The most rows that the answer may have."),
    "marker": Field(fields.TEXT, "The place where the page begins; links have it."),
}
