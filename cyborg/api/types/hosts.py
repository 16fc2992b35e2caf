# SPDX-License-Identifier: Apache-2.0
"""Hosts, and why something is taken out of service."""

from __future__ import annotations

from cyborg import liveness
from cyborg.api.types import fields
from cyborg.api.types.base import Field, Object, Value
from cyborg.programming import operations
from cyborg.states import arq_states

ENROLLED, REVOKED = "enrolled", "revoked"
REASON = Value(str, type="string", minLength=1, maxLength=1000)


class Reason(Object):
    """The reason why something is taken out of service."""

    reason = Field(REASON, "Why, in the administrator's words.")


class EnrolKey(Object):
    """A public key that a host has."""

    public_key = Field(
        fields.WORDS, "The public key, as `cyborg-agent key` prints it.", mandatory=True
    )
    node = Field(
        fields.WORDS, "The name of its node, if that is not the host's with or without a domain."
    )


class HostKey(Object):
    """A public key with which a host signs its messages."""

    fingerprint = Field(fields.TEXT, "The name of the key, a hash of it.")
    public_key = Field(fields.TEXT, "The public key.")
    state = Field(fields.one_of([ENROLLED, REVOKED]), "Whether it is good.")
    revoked_at = Field(fields.TIME_OR_NULL, "When it was revoked, in UTC, or null.")
    used_at = Field(fields.TIME_OR_NULL, "When a message was last taken, in UTC, or null.")
    created_at = Field(fields.TIME, "When it was enrolled, in UTC.")


class HostKeys(Object):
    """The public keys of a host."""

    keys = Field([HostKey], "The keys, the first one first; also the revoked ones.")


REVOKED_KEY: fields.Query = {
    "fingerprint": Field(fields.TEXT, "Only this key; without it, every key of the host.")
}


class HostUser(Object):
    """An accelerator request that uses a device of a host, or is being bound to one."""

    arq_uuid = Field(fields.UUID, "The UUID of the accelerator request.")
    state = Field(fields.one_of(sorted(arq_states.SHOWN)), "The state that it is in.")
    project_id = Field(fields.TEXT_OR_NULL, "The project that it belongs to.")
    instance_uuid = Field(fields.UUID_OR_NULL, "The instance that has it, or null.")
    device_uuid = Field(fields.UUID, "The device.")


class HostOperation(Object):
    """An operation that programs a device of a host, and has not ended."""

    uuid = Field(fields.UUID, "The UUID of the operation.")
    deployable_uuid = Field(fields.UUID, "The deployable.")
    state = Field(fields.one_of(operations.STATES), "How far it is.")
    asked_by = Field(fields.TEXT, "The user who has asked for it.")


class Host(Object):
    """A host, and who uses its devices."""

    name = Field(fields.TEXT, "The name of the host.")
    hostname = Field(fields.TEXT, "The name of its root resource provider.")
    state = Field(fields.one_of([liveness.UP, liveness.DOWN]), "Whether its agent reports.")
    drained = Field(bool, "Whether nothing new of it is given out.")
    drain_reason = Field(fields.TEXT_OR_NULL, "Why it is drained, or null.")
    drained_at = Field(fields.TIME_OR_NULL, "Since when it is drained, in UTC, or null.")
    tainted = Field(bool, "Whether only profiles that tolerate it are given new.")
    taint_reason = Field(fields.TEXT_OR_NULL, "Why it is tainted, or null.")
    in_use = Field(fields.COUNT, "How many accelerator requests use its devices.")
    users = Field([HostUser], "The oldest of them.")
    programming = Field(fields.COUNT, "How many operations program its devices, or are to.")
    operations = Field([HostOperation], "The oldest of them.")
