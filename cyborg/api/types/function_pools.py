# SPDX-License-Identifier: Apache-2.0
"""Function pools, and misses of functions."""

from __future__ import annotations

from cyborg.api import arguments
from cyborg.api.types import fields
from cyborg.api.types.base import Field, Narrowed, Object, Value
from cyborg.function_pools import pools

#: The most slots that one pool may want.
_SLOTS_MAX = 100000
_NAME = Value(str, type="string", minLength=1, maxLength=200, pattern=r"\S")
_DESCRIPTION = Value(str, type=["string", "null"], maxLength=fields.DESCRIPTION_MAX)
#: The ids that drivers may report; hyphens are ignored, so one needs something else as well.
_FUNCTION = Value(
    str,
    type="string",
    minLength=1,
    maxLength=128,
    pattern=r"^\s*-*[A-Za-z0-9_.][A-Za-z0-9_.-]*\s*$",
    refusal={
        "pattern": "{field} must be the id of a function. "
        "Use letters, digits, '_', '.' and '-', and not hyphens alone.",
    },
)
_HOSTS = Value(str, type=["string", "null"], minLength=1, maxLength=arguments.TEXT_MAX)
_TRAIT = Value(
    str,
    type="string",
    maxLength=arguments.TEXT_MAX,
    pattern="^[A-Z0-9_]+$",
    refusal={"pattern": "{field} must be the name of a trait: capitals, digits and '_'."},
)
_TRAITS = Narrowed([_TRAIT], maxItems=50)
_FREE = Value(int, type="integer", minimum=0, maximum=_SLOTS_MAX)
_MAX = Value(int, type="integer", minimum=1, maximum=_SLOTS_MAX)


class FunctionPool(Object):
    """A pool: how many free slots of a function there are to be, and how many there are."""

    _sent_title = "FunctionPoolRequest"

    uuid = Field(fields.UUID, "The UUID.", readonly=True)
    name = Field(fields.TEXT, "The name; no two pools have the same.", sent=_NAME, mandatory=True)
    description = Field(fields.TEXT_OR_NULL, "A text for people, or null.", sent=_DESCRIPTION)
    function_id = Field(fields.TEXT, "The id of the function.", sent=_FUNCTION, mandatory=True)
    image_uuid = Field(fields.UUID_OR_NULL, "The image to write; null for the newest one.")
    hosts = Field(fields.TEXT_OR_NULL, "Which hosts; ``*`` is anything, null is all.", sent=_HOSTS)
    traits = Field([fields.TEXT], "Traits that a deployable must have.", sent=_TRAITS)
    free = Field(fields.COUNT, "How many slots are to be free.", sent=_FREE, mandatory=True)
    max_devices = Field(fields.COUNT, "How many deployables may run it.", sent=_MAX, mandatory=True)
    misses = Field(fields.COUNT, "How many slots were missed lately.", readonly=True)
    wanted = Field(fields.COUNT, "How many slots are to be free now.", readonly=True)
    ready = Field(fields.COUNT, "How many could be given out now.", readonly=True)
    used = Field(fields.COUNT, "How many accelerator requests hold.", readonly=True)
    pending = Field(fields.COUNT, "How many are being programmed for the pool.", readonly=True)
    surplus = Field(fields.COUNT, "How many free ones are more than wanted.", readonly=True)
    devices = Field(fields.COUNT, "How many deployables run it, or are given it.", readonly=True)
    reason = Field(fields.TEXT_OR_NULL, "Why there are fewer than wanted, or null.", readonly=True)
    links = Field([fields.Link], "Links to the pool itself.", readonly=True)
    created_at = Field(fields.TIME, "When it was made, in UTC.", readonly=True)
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, or null.", readonly=True)


QUERY = fields.paging(
    pools.COLUMNS,
    name=Field(fields.TEXT, "Only the pool of this name."),
    function_id=Field(fields.TEXT, "Only pools of this function. Hyphens and case mean nothing."),
)


class FunctionMiss(Object):
    """A function was wanted, and no deployable had it."""

    _exactly_one = "Give function_id or device_profile_name, and not both."

    function_id = Field(_FUNCTION, "The function that was missed.")
    device_profile_name = Field(fields.TEXT, "The device profile that found no host.")


class FunctionPoolName(Object):
    """A function pool, by its name."""

    uuid = Field(fields.UUID, "The UUID.")
    name = Field(fields.TEXT, "The name.")
    links = Field([fields.Link], "Links to the pool itself.")


class FunctionMissed(Object):
    """The pools that the report of a miss has reached."""

    function_pools = Field([FunctionPoolName], "The pools that count the miss.")
