# SPDX-License-Identifier: Apache-2.0
"""Allocations: what a consumer asks for by one request, and what it has."""

from __future__ import annotations

from typing import ClassVar

from cyborg import profiles
from cyborg.allocations import plans, service, wishes
from cyborg.api import arguments, versions
from cyborg.api.types import accelerator_requests, device_profiles, fields
from cyborg.api.types.base import Field, Narrowed, Object, Value, Versioned
from cyborg.states import allocation_states as states
from cyborg.states import arq_states

#: What a dry run finds, in the place of a state.
POSSIBLE = "Possible"
IMPOSSIBLE = "Impossible"

_LEASE_MAX = 365 * 86400
_TYPE = Value(
    str,
    type="string",
    minLength=1,
    maxLength=100,
    pattern="^[A-Z0-9_]+$",
    refusal={"pattern": "{field} must have capitals, digits and '_' only, such as PROXY."},
)
_NAME = Value(str, type=["string", "null"], maxLength=arguments.TEXT_MAX)
#: As NVMe writes names, and as long as it permits.
_NQN = Value(
    str,
    type=["string", "null"],
    maxLength=223,
    pattern=r"^nqn\.[0-9]{4}-[0-9]{2}\.[!-~]+$",
    refusal={"pattern": "{field} must be an NVMe qualified name, such as nqn.2014-08.org:one."},
)
_LEASE = Value(int, type=["integer", "null"], minimum=1, maximum=_LEASE_MAX)
_COUNT = Value(int, type="integer", minimum=1, maximum=wishes.MAX_PARTS)
_AT_MOST = f"1 to {profiles.MAX_REQUESTS} accelerators in all."
_GROUPS_DOC = f"Groups like those of a device profile; {_AT_MOST}"
_PARTS_DOC = f"Parts, each from one of several hosts: all of them, or nothing; {_AT_MOST}"
_PLACING = fields.one_of([plans.PACK, plans.SPREAD])


def _one_of(*names: str) -> Versioned:
    return {
        versions.MIN: {
            "oneOf": [{"required": [name]} for name in names],
            "refusal": {"oneOf": f"Give one of {', '.join(names)}, and not several of them."},
        }
    }


class Consumer(Object):
    """The consumer of accelerators; Nova's instances ask otherwise."""

    _sent_title = "ConsumerRequest"

    uuid = Field(fields.UUID, "The UUID, which is that of the allocation too.", mandatory=True)
    type = Field(fields.TEXT, "The type of the consumer.", sent=_TYPE, mandatory=True)
    name = Field(fields.TEXT_OR_NULL, "A name for people, or null.", sent=_NAME)
    nqn = Field(
        fields.TEXT_OR_NULL,
        "Under which name its host connects to remote accelerators, or null.",
        sent=_NQN,
    )


class AllocationPart(Object):
    """The part that one host is to give."""

    _rules: ClassVar[Versioned] = _one_of("device_profile_name", "groups")

    device_profile_name = Field(fields.TEXT, "The device profile that says what is needed.")
    groups = Field(device_profiles.GROUPS, _GROUPS_DOC)
    hosts = Field(fields.WORDS, "On which host; ``*`` matches any text.")
    count = Field(_COUNT, "How often it is wanted, on one host or several; 1 without it.")
    device_rp_uuid = Field(fields.UUID, "The resource provider that is to serve all of it.")


class AllocationAlternative(Object):
    """One way in which the consumer could be served."""

    _rules: ClassVar[Versioned] = _one_of("device_profile_name", "groups", "parts")

    device_profile_name = Field(fields.TEXT, "The device profile that says what is needed.")
    groups = Field(device_profiles.GROUPS, _GROUPS_DOC)
    parts = Field(Narrowed([AllocationPart], minItems=1, maxItems=wishes.MAX_PARTS), _PARTS_DOC)
    hosts = Field(fields.WORDS, "On which host, if the parts do not say; ``*`` matches any text.")


class AllocationRequest(Object):
    """The request of a consumer."""

    _rules: ClassVar[Versioned] = _one_of(
        "device_profile_name", "groups", "parts", "alternatives"
    )

    consumer = Field(Consumer, "The consumer that asks.", mandatory=True)
    device_profile_name = Field(fields.TEXT, "The device profile that says what is needed.")
    groups = Field(device_profiles.GROUPS, _GROUPS_DOC)
    parts = Field(Narrowed([AllocationPart], minItems=1, maxItems=wishes.MAX_PARTS), _PARTS_DOC)
    alternatives = Field(
        Narrowed([AllocationAlternative], minItems=1, maxItems=16),
        "Of these the first for which there is room.",
    )
    hosts = Field(
        fields.WORDS, "On which host, where nothing else is said; ``*`` matches any text."
    )
    placing = Field(
        _PLACING, "``pack`` fills what is in use first, ``spread`` what is free; ``pack`` without."
    )
    lease_seconds = Field(_LEASE, "It is released after so long without renewal; null: never.")
    dry_run = Field(bool, "Only say whether there is room, and where.")


class AllocatedAccelerator(Object):
    """An accelerator that a consumer has by one accelerator request."""

    arq_uuid = Field(fields.UUID_OR_NULL, "The accelerator request; null in a dry run.")
    state = Field(
        fields.one_of([*sorted(arq_states.ALL), None]), "Its state; null in a dry run."
    )
    device_profile_name = Field(fields.TEXT_OR_NULL, "Its device profile; null for own groups.")
    group = Field(fields.COUNT, "Its group in the alternative, counted from 0.")
    hostname = Field(fields.TEXT_OR_NULL, "The host; null until it is bound.")
    device_rp_uuid = Field(fields.UUID_OR_NULL, "The resource provider; null until it is bound.")
    attach_handle_type = Field(fields.TEXT, "The kind of attach handle; empty until it is Bound.")
    attach_handle_uuid = Field(fields.UUID_OR_NULL, "The attach handle; null until it is Bound.")
    attach_handle_info = Field({str: str}, "How to reach it; empty until it is Bound.")
    health = Field(
        accelerator_requests.HEALTH, "Whether its device is healthy; null until it is Bound."
    )


class Allocation(Object):
    """All that a consumer has, or is about to have."""

    uuid = Field(fields.UUID, "The UUID of the consumer.")
    consumer = Field(Consumer, "The consumer that has it.")
    project_id = Field(fields.TEXT_OR_NULL, "The project it belongs to.")
    state = Field(fields.one_of([*sorted(states.ALL), POSSIBLE, IMPOSSIBLE]), "The state.")
    state_reason = Field(fields.TEXT_OR_NULL, "Why it is in its state, or null.")
    alternative = Field(
        fields.COUNT_OR_NULL,
        "The alternative that was chosen, counted from 0; null if none were given, or fit.",
    )
    hosts = Field([fields.TEXT], "The hosts that its accelerators are on.")
    accelerators = Field([AllocatedAccelerator], "Its accelerators.")
    lease_seconds = Field(fields.COUNT_OR_NULL, "How long a lease lasts, or null.")
    lease_ends_at = Field(fields.TIME_OR_NULL, "When it ends unless it is renewed, or null.")
    links = Field([fields.Link], "Links to the allocation itself.")
    created_at = Field(fields.TIME_OR_NULL, "When it was made, in UTC; null in a dry run.")
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, in UTC, or null.")


class Renewal(Object):
    """The new length of a lease."""

    lease_seconds = Field(
        Value(int, type="integer", minimum=1, maximum=_LEASE_MAX),
        "Seconds; as long as before without it.",
    )


QUERY = fields.paging(
    service.COLUMNS,
    state=Field(fields.one_of(sorted(states.ALL)), "Only allocations in this state."),
    consumer_type=Field(fields.TEXT, "Only those of consumers of this type."),
    consumer_name=Field(fields.TEXT, "Only those of consumers of this name."),
    project_id=Field(fields.TEXT, "Only those of this project."),
)
