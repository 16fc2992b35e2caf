# SPDX-License-Identifier: Apache-2.0
"""A host with an account of the broker and a key of its own."""

from __future__ import annotations

import itertools
import pathlib
import time
import uuid
from typing import Any

from oslo_config import cfg

from cyborg import host_keys, metrics
from cyborg.agent import host_signer
from cyborg.conductor import deployment_signer
from cyborg.rpc import signing
from cyborg.tests import signed
from cyborg.tests.signed import HOST

#: Others share the broker, on which it has an account.
EVIL = f"evil-{uuid.uuid4().hex}.example"
#: One more host, whose agent is slow to answer.
SLOW = "slow.example"
MINUTE = 60_000


class Keys:
    """What there is to sign with, and what was signed before."""

    def __init__(self, conf: cfg.ConfigOpts, folder: pathlib.Path) -> None:
        self.victim = host_signer.HostSigner(conf)
        self.deployment = deployment_signer.DeploymentSigner(conf)
        evil, stranger, stolen = (folder / f"{name}.pem" for name in ("evil", "new", "stolen"))
        host_keys.enrol(HOST, self.victim.public())
        self.evil_public = signed.new_key(evil)
        host_keys.enrol(EVIL, self.evil_public)
        signed.new_key(stranger)
        stolen_public = signed.new_key(stolen)
        host_keys.enrol(HOST, stolen_public)
        host_keys.revoke(HOST, signing.fingerprint(stolen_public))
        slow, slow_stolen = folder / "slow.pem", folder / "slow_stolen.pem"
        host_keys.enrol(SLOW, signed.new_key(slow))
        slow_public = signed.new_key(slow_stolen)
        host_keys.enrol(SLOW, slow_public)
        host_keys.revoke(SLOW, signing.fingerprint(slow_public))
        self._private = {
            "evil": evil,
            "new": stranger,
            "stolen": stolen,
            "slow": slow,
            "slow and stolen": slow_stolen,
        }
        self._counter = itertools.count(time.time_ns() // 1_000_000 + MINUTE)

    def forge(
        self, said: signing.Said, *, key: str = "evil", sender: str = HOST, off: int = 0
    ) -> dict[str, Any]:
        """A signature that only looks like that of the other side."""
        now_ms = time.time_ns() // 1_000_000 + off
        private = signing.load(self._private[key])
        counter = next(self._counter)
        return signing.sign(
            private, said, sender=sender, counter=counter, time_ms=now_ms
        ).to_wire()

    def true(self, said: signing.Said, *, of_conductor: bool) -> dict[str, Any]:
        """The other side's own signature, which was overheard."""
        signature = (self.deployment if of_conductor else self.victim).sign(said)
        assert signature is not None
        return signature.to_wire()


def refusals() -> float:
    """How many messages this process has refused so far."""
    (family,) = metrics.MESSAGES_REFUSED.collect()
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
