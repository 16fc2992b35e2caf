# SPDX-License-Identifier: Apache-2.0
"""The signers of this process: every message that it sends or receives goes through here.

An agent signs as its host and checks conductors; a conductor signs for the deployment and checks
hosts. cyborg-standalone sends in memory, and has no signer.
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


class Signer(Protocol):
    """The keys with which one side signs, and checks the other."""

    def sign(self, said: signing.Said) -> signing.Signature | None:
        """The signature of what this side says; None if it has no key."""

    def check(self, said: signing.Said, signature: object) -> None:
        """Raise MessageRefused if the other side does not say it now."""


#: More than a true host or conductor of a fleet could be refused in a minute.
_REFUSED_MAX = 200

_signers: dict[str, Signer] = {}


def use(side: str, signer: Signer | None) -> None:
    """Sign as this side with that signer from now on, or not at all."""
    if signer is None:
        _signers.pop(side, None)
    else:
        _signers[side] = signer


def sign(side: str, said: signing.Said) -> dict[str, Any] | None:
    """The signature of a message of this side, as it travels; None if it is not signed."""
    signer = _signers.get(side)
    signature = None if signer is None else signer.sign(said)
    return None if signature is None else signature.to_wire()


def check(side: str, said: signing.Said, signature: object) -> None:
    """Raise MessageRefused if this side must not take the message; the refusal is logged."""
    signer = _signers.get(side)
    if signer is None:
        return
    try:
        signer.check(said, signature)
    except signing.MessageRefused as exc:
        metrics.count(metrics.MESSAGES_REFUSED, method=said.method, reason=exc.reason)
        text = "Refused message %r of host %.255r: %s"
        lines.warn(LOG, text, said.method, said.host, exc, most=_REFUSED_MAX)
        raise
