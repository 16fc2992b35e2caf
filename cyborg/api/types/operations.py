# SPDX-License-Identifier: Apache-2.0
"""Operations, which program deployables, and what asks for one."""

from __future__ import annotations

from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object
from cyborg.programming import operations

_STATE = fields.one_of(operations.STATES)


class OperationEvent(Object):
    """One entry of an operation's history."""

    at = Field(fields.TIME, "When it happened, in UTC.")
    text = Field(str, "The event, in a sentence.")


class Operation(Object):
    """A request to program a deployable, and what has become of it."""

    uuid = Field(fields.UUID, "The UUID.")
    deployable_uuid = Field(fields.UUID, "The deployable that is programmed.")
    state = Field(_STATE, "How far it is.")
    error = Field(fields.TEXT_OR_NULL, "Why it failed, or null.")
    image_uuid = Field(fields.UUID_OR_NULL, "The image that was asked for by UUID, or null.")
    image_name = Field(fields.TEXT_OR_NULL, "The image that was asked for by name, or null.")
    function_id = Field(
        fields.TEXT_OR_NULL, "The function that was asked for by id, or the layout, or null."
    )
    function_name = Field(fields.TEXT_OR_NULL, "The function that was asked for by name, or null.")
    instance_uuid = Field(fields.UUID_OR_NULL, "The instance for whose binding it is, or null.")
    asked_by = Field(
        fields.TEXT, "The user or the instance that asked for it, ``recovery`` or ``cleaning``."
    )
    history = Field([OperationEvent], "The events so far.")
    links = Field([fields.Link], "Links to the operation itself.")
    created_at = Field(fields.TIME, "When it was asked for, in UTC.")
    ended_at = Field(fields.TIME_OR_NULL, "When it succeeded or failed, in UTC, or null.")


QUERY = fields.paging(
    operations.COLUMNS,
    deployable_uuid=Field(fields.UUID, "Only operations on this deployable."),
    instance_uuid=Field(fields.UUID, "Only operations for the binding of this instance."),
    state=Field(_STATE, "Only operations in this state."),
)


class Program(Object):
    """The program that a deployable is to run."""

    _exactly_one = "Send exactly one of {known}."

    image_uuid = Field(fields.UUID, "The UUID of an image.")
    image_name = Field(fields.WORDS, "The name of an image.")
    function_id = Field(fields.WORDS, "The id of a function: its newest image is written.")
    function_name = Field(fields.WORDS, "The name of a function: its newest image is written.")
    layout = Field(fields.WORDS, "The name of a layout of a card.")
