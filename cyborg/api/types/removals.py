# SPDX-License-Identifier: Apache-2.0
"""Remains of a removal or a forced release, for an administrator to clean up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cyborg.api.types import fields, hosts
from cyborg.api.types.base import Field, Object
from cyborg.handles import giving_up
from cyborg.states import arq_states


class GivenUpRequest(Object):
    """An accelerator request that was given up."""

    uuid = Field(fields.UUID, "The UUID of the accelerator request.")
    state = Field(fields.one_of(sorted(arq_states.SHOWN)), "The state it was in.")
    project_id = Field(fields.TEXT_OR_NULL, "The project that it belonged to.")
    instance_uuid = Field(fields.UUID_OR_NULL, "The instance that had it, or null.")
    hostname = Field(fields.TEXT_OR_NULL, "The host it was bound to, or null.")
    device_rp_uuid = Field(fields.UUID_OR_NULL, "The resource provider it was bound to, or null.")
    attach_handle_uuid = Field(fields.UUID_OR_NULL, "The attach handle it had, or null.")
    host_step = Field(fields.one_of(["prepare", "clean", None]), "The host step not done, or null.")
    last_error = Field(fields.TEXT_OR_NULL, "Why that step failed last, or null.")


class GivenUp(Object):
    """The things that were given up."""

    arqs = Field([GivenUpRequest], "The accelerator requests.")
    devices = Field([fields.UUID], "The UUIDs of the devices.")
    resource_providers = Field([fields.UUID], "The UUIDs of the resource providers.")
    not_excluded = Field([str], "Steps asked before that the host may still do.")


class Removal(Object):
    """The answer of a removal."""

    given_up = Field(GivenUp, "All that was given up.")


def answer(given_up: giving_up.GivenUp) -> dict[str, Any]:
    """The things that were given up, as answers show them."""
    return {"given_up": asdict(given_up)}


QUERY: fields.Query = {"force": Field(bool, "Give up what is refused otherwise.")}
#: The declaration of the removal of hardware, which has no body.
OF_HARDWARE: Mapping[str, Any] = {
    "query": {**QUERY, "reason": Field(hosts.REASON, "Why, in the administrator's words.")},
    "success": 202,
    "answer": Removal,
    "faults": [409],
}
