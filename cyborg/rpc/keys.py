# SPDX-License-Identifier: Apache-2.0
"""The keys of this process: every message that it sends or receives goes through here.

An agent signs as its host and checks conductors; a conductor signs for the deployment and checks
hosts. cyborg-standalone sends in memory, and has none.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from cyborg import metrics
from cyborg.rpc import lines, signing

LOG = logging.getLogger(__name__)

HOST, CONDUCTOR = "host", "conductor"

#: Under this name a signature is in the context of a message, and in an answer.
FIELD = "signature"


class Keys(Protocol):
    """The keys with which one side signs, and checks the other."""

    def sign(self, said: signing.Said) -> signing.Signature | None:
        """The signature of what this side says; None if it has no key."""

    def check(self, said: signing.Said, signature: object) -> None:
        """Raise Refused if the other side does not say it now."""


#: More than a true host or conductor of a fleet could be refused in a minute.
_REFUSED_MAX = 200

_keys: dict[str, Keys] = {}


def use(side: str, keys: Keys | None) -> None:
    """Sign as this side with these keys from now on, or with none."""
    if keys is None:
        _keys.pop(side, None)
    else:
        _keys[side] = keys


def sign(side: str, said: signing.Said) -> dict[str, Any] | None:
    """The signature of a message of this side, as it travels; None if it is not signed."""
    keys = _keys.get(side)
    signature = None if keys is None else keys.sign(said)
    return None if signature is None else signature.to_wire()


def check(side: str, said: signing.Said, signature: object) -> None:
    """Raise Refused if this side is not to take a message of the other one; that is logged."""
    keys = _keys.get(side)
    if keys is None:
        return
    try:
        keys.check(said, signature)
    except signing.Refused as exc:
        metrics.count(metrics.MESSAGES_REFUSED, method=said.method, reason=exc.reason)
        text = "Refused message %r of host %.255r: %s"
        lines.warn(LOG, text, said.method, said.host, exc, most=_REFUSED_MAX)
        raise
