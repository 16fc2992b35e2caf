# SPDX-License-Identifier: Apache-2.0
"""The key of this host, and what its agent takes from conductors.

The private key never leaves the host. A second one can wait beside it until it is enrolled, so that
there is no time without a key that is good.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import threading
import time

from oslo_config import cfg

from cyborg.common import errors
from cyborg.rpc import signing

LOG = logging.getLogger(__name__)

#: Seconds after which the draft of a file is left over.
_DRAFT_AGE_MAX = 3600


class HostSigner:
    """Signs for this host, and checks what conductors say."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._folder = pathlib.Path(conf.state_path, "keys")
        self._counter = _Counter(self._folder / "counter")
        self._taken = _TakenMessages(self._folder / "taken")

    def start(self) -> None:
        """Make the key of this host if there is none.

        :raises Misconfigured: there can be none, or no key of conductors, and both are required
        """
        required = self._conf.agent.require_host_keys
        for text in self._conf.agent.conductor_public_keys:
            try:
                signing.fingerprint(text)
            except errors.Invalid as exc:
                raise errors.Misconfigured(f"[agent] conductor_public_keys: {exc}") from exc
        if required and not self._conf.agent.conductor_public_keys:
            raise errors.Misconfigured(
                "[agent] require_host_keys needs conductor_public_keys, or no conductor is obeyed."
            )
        if not required:
            LOG.warning(
                "[agent] require_host_keys is off: everybody who may send messages to this agent "
                "can order steps on host %s",
                self._conf.host,
            )
        try:
            LOG.info("The key of host %s is %s", self._conf.host, self.public())
        except (OSError, errors.Misconfigured) as exc:
            if required:
                raise errors.Misconfigured(f"This host has no key: {exc}") from exc
            LOG.warning("Messages are not signed, as this host has no key: %s", exc)

    def public(self, name: str = "host") -> str:
        """The public part of a key: ``host`` is in use, ``next`` waits. It is made if need be.

        :raises OSError, Misconfigured: it cannot be made, or its file cannot be read
        """
        path = self._path(name)
        if not path.exists():
            _make(path)
        return signing.public_text(signing.load(path))

    def switch(self) -> str:
        """Sign with the key that waits from now on, and forget the former one; its public part.

        :raises Misconfigured: none waits
        """
        try:
            self._path("next").replace(self._path("host"))
        except FileNotFoundError as exc:
            raise errors.Misconfigured(
                "No key waits: make one with `cyborg-agent key --next`, and enrol it."
            ) from exc
        return self.public()

    def sign(self, said: signing.Said) -> signing.Signature | None:
        """The signature of what the host says; None if it has no key that can be read."""
        try:
            key = signing.load(self._path("host"))
        except (OSError, errors.Misconfigured) as exc:
            LOG.debug("A message is not signed, as the key of this host cannot be read: %s", exc)
            return None
        sender, now_ms = self._conf.host, _now_ms()
        counter = self._counter.next(now_ms) if said.counted else 0
        return signing.sign(key, said, sender=sender, counter=counter, time_ms=now_ms)

    def check(self, said: signing.Said, signature: object) -> None:
        """Raise MessageRefused if no conductor of this cloud says it now and for the first time."""
        known = {signing.fingerprint(key): key for key in self._conf.agent.conductor_public_keys}
        required = self._conf.agent.require_host_keys
        if not required and (signature is None or not known):
            return
        one = signing.Signature.from_wire(signature)
        if one.key not in known:
            raise signing.MessageRefused(
                signing.UNKNOWN_KEY,
                f"Key {one.key:.8} is not among [agent] conductor_public_keys of host "
                f"{self._conf.host}.",
            )
        one.check(known[one.key], said)
        now_ms = _now_ms()
        one.check_time(now_ms)
        if said.counted:
            self._taken.take(one, now_ms)

    def _path(self, name: str) -> pathlib.Path:
        return self._folder / f"{name}.pem"


class _Counter:
    """Numbers messages, upwards even from one agent to the next.

    It begins with the time, so that it goes up if its file is lost, too.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._last: int | None = None

    def next(self, now_ms: int) -> int:
        """The next number."""
        with self._lock:
            if self._last is None:
                self._last = max(self._stored(), now_ms)
            self._last += 1
            try:
                _write(self._path, str(self._last).encode())
            except OSError:
                LOG.warning("The counter of messages is kept in memory only", exc_info=True)
            return self._last

    def _stored(self) -> int:
        try:
            return int(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            LOG.warning("The counter of messages cannot be read", exc_info=True)
            return 0


class _TakenMessages:
    """The messages of conductors that may not come again, neither to this agent nor to the next.

    An older one is refused for its time.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        #: When each was signed.
        self._times: dict[str, int] | None = None

    def take(self, one: signing.Signature, now_ms: int) -> None:
        """Note that the message is taken.

        :raises MessageRefused: it was taken already
        """
        with self._lock:
            known = self._stored() if self._times is None else self._times
            oldest = now_ms - signing.AGE_MAX
            times = {name: sent for name, sent in known.items() if sent >= oldest}
            name = f"{one.sender} {one.counter}"
            if name in times:
                raise signing.MessageRefused(signing.REPLAYED, "The message was taken already.")
            self._times = {**times, name: one.time_ms}
            try:
                _write(self._path, json.dumps(self._times).encode())
            except OSError:
                LOG.warning("Times of conductors' messages are in memory only", exc_info=True)

    def _stored(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): int(sent) for name, sent in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            LOG.warning("The times of conductors' messages cannot be read", exc_info=True)
            return {}


def _make(path: pathlib.Path) -> None:
    """Make a key, unless somebody else has made it meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path)
    draft = _draft(path, signing.make_private(), lasting=True)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _remove_stale(path: pathlib.Path) -> None:
    """Remove what processes have left that died while they made the file."""
    for draft in path.parent.glob(f"{path.name}.*.new"):
        # A younger one may be in the making.
        with contextlib.suppress(FileNotFoundError):
            if draft.lstat().st_mtime < time.time() - _DRAFT_AGE_MAX:
                draft.unlink()


def _write(path: pathlib.Path, content: bytes) -> None:
    """Replace a file that only this user may read."""
    _draft(path, content).replace(path)


def _draft(path: pathlib.Path, content: bytes, *, lasting: bool = False) -> pathlib.Path:
    """A file with that content beside ``path``; if ``lasting``, a power cut leaves it whole."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if lasting:
            file.flush()
            os.fsync(descriptor)
    return draft


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
