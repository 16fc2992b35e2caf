# SPDX-License-Identifier: Apache-2.0
"""Services: the agents and the conductors."""

from __future__ import annotations

from cyborg import liveness
from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object

_BINARY = fields.one_of([liveness.AGENT, liveness.CONDUCTOR])
_STATE = fields.one_of([liveness.UP, liveness.DOWN])


class Service(Object):
    """An agent or a conductor."""

    uuid = Field(fields.UUID, "The UUID.")
    binary = Field(_BINARY, "Which of the two it is.")
    host = Field(fields.TEXT, "The host it runs on.")
    hostname = Field(fields.TEXT_OR_NULL, "The host's root resource provider; of an agent only.")
    state = Field(_STATE, "Whether it gives signs of life.")
    last_seen = Field(fields.TIME, "When it last gave a sign of life, in UTC.")
    driver_errors = Field(
        {str: str}, "Errors of the last report, by driver; and messages that were refused."
    )
    devices = Field(fields.COUNT_OR_NULL, "How many devices its host has; null for a conductor.")
    not_offered = Field(
        fields.COUNT_OR_NULL,
        "How many accelerators of its host no driver offers; null if that is not known.",
    )
    not_offered_reasons = Field(
        [str], "Why they are not, a sentence for those of one product, and the remedies."
    )
    links = Field([fields.Link], "Links to the service itself.")
    created_at = Field(fields.TIME, "When it was first seen, in UTC.")


QUERY = fields.paging(
    liveness.COLUMNS,
    binary=Field(_BINARY, "Only agents or only conductors."),
    host=Field(fields.TEXT, "Only the services of this host."),
    state=Field(_STATE, "Only services in this state."),
)
