# SPDX-License-Identifier: Apache-2.0
"""The key of the deployment, and what conductors take from hosts."""

from __future__ import annotations

import itertools
import logging
import time
import uuid

from oslo_config import cfg

from cyborg import host_keys, liveness, rpc
from cyborg.common import errors
from cyborg.common.reasons import Reason
from cyborg.rpc import signing

LOG = logging.getLogger(__name__)

#: Seconds until a refusal that is shown with a host is replaced by another one.
_NOTED_AGAIN = 60.0


class DeploymentSigner:
    """Signs for the deployment, and checks what hosts say."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        # Each process numbers its messages for itself.
        self._sender = f"cyborg-conductor {uuid.uuid4()}"
        self._counter = itertools.count(1)
        #: When a refusal was last written with a host, in seconds of the monotonic clock.
        self._noted: dict[str, float] = {}

    def start(self) -> None:
        """Raise Misconfigured if there is no key, and it is required, or its file holds none.

        Warn if messages need no signature.
        """
        path, required = self._conf.conductor.signing_key_file, self._required()
        if path is not None:
            try:
                public = signing.public_text(signing.load(path))
            except OSError as exc:
                raise errors.Misconfigured(f"[conductor] signing_key_file: {exc}") from exc
            LOG.info("Orders to hosts are signed with %s", public)
        elif required:
            raise errors.Misconfigured(
                "[agent] require_host_keys needs [conductor] signing_key_file, or agents obey no "
                "order."
            )
        if not required:
            LOG.warning(
                "[agent] require_host_keys is off: everybody who may send messages to conductors "
                "can report for every host without an enrolled key"
            )

    def _required(self) -> bool:
        return bool(self._conf.agent.require_host_keys)

    def sign(self, said: signing.Said) -> signing.Signature | None:
        """The signature of what this conductor says; None without ``signing_key_file``."""
        path = self._conf.conductor.signing_key_file
        if path is None:
            return None
        now_ms = time.time_ns() // 1_000_000
        return signing.sign(
            signing.load(path),
            said,
            sender=self._sender,
            counter=next(self._counter),
            time_ms=now_ms,
        )

    def check(self, said: signing.Said, signature: object) -> None:
        """Raise MessageRefused if the host itself does not say it; that is kept with the host."""
        try:
            host_keys.check(said, signature, required=self._required())
        except signing.MessageRefused as exc:
            if rpc.is_host_name(said.host):
                what = "a message in its name was refused"
                self._note(said.host, Reason.of(liveness.FORGED, what, exc))
            raise

    def _note(self, host_name: str, why: Reason) -> None:
        """Show a refusal with the host. It is one, too, if that cannot be stored.

        Another sentence replaces it once a minute, so that who forges messages with many costs
        the database no more than who forges one.
        """
        now = time.monotonic()
        self._noted = {host: at for host, at in self._noted.items() if at > now - _NOTED_AGAIN}
        try:
            if liveness.note_refusal(host_name, why, instead=host_name not in self._noted):
                self._noted = {**self._noted, host_name: now}
        except errors.DatabaseUnreachable:
            LOG.debug("Not shown with host %s that a message was refused", host_name)
        except Exception:
            LOG.exception("Cannot show with host %s that a message was refused", host_name)
