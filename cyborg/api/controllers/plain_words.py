# SPDX-License-Identifier: Apache-2.0
"""What drivers and administrators say of hardware, for those who may look at hosts.

It has paths, names of hosts, and instances of other projects. All others get a sentence that says
what is so, and not why. The reasons of requests, which belong to a project, are
:func:`cyborg.arqs.service.reason_for`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyborg.api.request import Request
from cyborg.policies import host

#: Fields of devices and deployables, with what others are told instead.
_SENTENCES = {
    "health_reason": "The device is unhealthy.",
    "disabled_reason": "An administrator has disabled the device.",
    "taint_reason": "An administrator has tainted the device.",
    "withheld_reason": "Placement has allocations that no accelerator request explains.",
}


def put(request: Request, bodies: Iterable[dict[str, Any]]) -> None:
    """Change in the bodies of an answer what the caller may not read."""
    said = [(body, name) for body in bodies for name in _SENTENCES if body.get(name) is not None]
    # A list of healthy devices asks for no rule.
    if said and not request.caller.may(host.GET_ONE):
        for body, name in said:
            body[name] = _SENTENCES[name]
