# SPDX-License-Identifier: Apache-2.0
"""Signatures of messages: keys as text and as files, what is signed, and why one is refused.

A key is an Ed25519 key. Its public part is written as ``openssl pkey -pubout`` writes it, without
the first and the last line. Nothing here knows whose key is whose: that is for the caller to say.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from cyborg.common import errors
from cyborg.drivers import base

#: Milliseconds that the clock of the sender may be ahead, and that a message may be old.
AHEAD_MAX = 60_000
AGE_MAX = 300_000

#: The first thing that is signed; it changes when what is signed changes.
_FORMAT = "cyborg message 1"
_COUNTER_MAX = 2**63 - 1
_NAME_MAX = 255
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")

#: Why a message is refused, for metrics.
UNSIGNED, UNREADABLE, UNKNOWN_KEY, REVOKED = "unsigned", "unreadable", "unknown_key", "revoked"
FORGED, CLOCK, REPLAYED = "forged", "clock", "replayed"


class MessageRefused(errors.Forbidden):
    """A message is not taken. ``reason`` is one of the words above."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Said:
    """The signed text: a method, what is said with it, and the host that says or is told it.

    Unless ``counted`` it needs no number, since it can be taken only once anyway.
    """

    host: str
    method: str
    body: Any
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature as it travels beside its message.

    ``sender`` numbers its messages by ``counter``, which never goes back. ``key`` is the
    fingerprint of the key.
    """

    key: str
    sender: str
    counter: int
    time_ms: int
    value: str

    def to_wire(self) -> dict[str, Any]:
        """The signature as plain data."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: object) -> Signature:
        """The signature of a message.

        :raises MessageRefused: there is none, or it is no signature
        """
        if data is None:
            raise MessageRefused(UNSIGNED, "The message is not signed.")
        try:
            one = cls(**{name: data[name] for name in cls.__slots__})  # type: ignore[index]
        except (KeyError, TypeError) as exc:
            raise MessageRefused(UNREADABLE, "The signature cannot be read.") from exc
        key: object = one.key
        texts: tuple[object, ...] = (one.sender, one.value)
        numbers: tuple[object, ...] = (one.counter, one.time_ms)
        named = isinstance(key, str) and _FINGERPRINT.fullmatch(key) is not None
        if not (named and all(isinstance(each, str) and len(each) <= _NAME_MAX for each in texts)):
            raise MessageRefused(UNREADABLE, "The signature has no key, sender or value.")
        if not all(type(each) is int and 0 <= each <= _COUNTER_MAX for each in numbers):
            raise MessageRefused(UNREADABLE, "The signature has no counter or time.")
        return one

    def check(self, public_key: str, said: Said) -> None:
        """Raise MessageRefused if the key has not signed exactly this."""
        signed = _signed(said, self.sender, self.counter, self.time_ms)
        try:
            value = base64.b64decode(self.value, validate=True)
            _read_public(public_key).verify(value, signed)
        except (InvalidSignature, binascii.Error, ValueError) as exc:
            raise MessageRefused(FORGED, "The signature is not that of this message.") from exc

    def check_time(self, now_ms: int) -> None:
        """Raise MessageRefused if the message is not of now, by the receiver's clock."""
        if self.time_ms > now_ms + AHEAD_MAX:
            ahead = (self.time_ms - now_ms) // 1000
            raise MessageRefused(
                CLOCK, f"The clock of {self.sender} is {ahead} seconds ahead; set the clocks."
            )
        if self.time_ms < now_ms - AGE_MAX:
            age = (now_ms - self.time_ms) // 1000
            raise MessageRefused(
                CLOCK,
                f"The message is {age} seconds old, or the clock of {self.sender} is behind; set "
                "the clocks.",
            )


def sign(
    private_key: ed25519.Ed25519PrivateKey, said: Said, *, sender: str, counter: int, time_ms: int
) -> Signature:
    """The signature of a message."""
    value = private_key.sign(_signed(said, sender, counter, time_ms))
    return Signature(
        key=fingerprint(public_text(private_key)),
        sender=sender,
        counter=counter,
        time_ms=time_ms,
        value=base64.b64encode(value).decode(),
    )


def _signed(said: Said, sender: str, counter: int, time_ms: int) -> bytes:
    body = hashlib.sha256(base.canonical_json(said.body).encode()).hexdigest()
    signed = [_FORMAT, said.host, said.method, body, sender, counter, time_ms]
    return base.canonical_json(signed).encode()


def answer_to(said: Said, asked: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> Said:
    """The signed text of an answer: also what was asked, so that it answers nothing else."""
    body = {"asked": said.body, "signature": asked, "answer": answer}
    # No two signatures are the same, so what answers one of them answers no other question.
    return Said(said.host, f"{said.method} answer", body, counted=asked is None)


def public_text(private_key: ed25519.Ed25519PrivateKey) -> str:
    """The public part of a key."""
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return base64.b64encode(private_key.public_key().public_bytes(encoding, form)).decode()


def fingerprint(public_key: str) -> str:
    """A short name of a key.

    :raises Invalid: it is no public key
    """
    _read_public(public_key)
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()


@functools.lru_cache(maxsize=64)
def _read_public(text: str) -> ed25519.Ed25519PublicKey:
    try:
        data = base64.b64decode(text, validate=True)
        key = serialization.load_der_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise errors.Invalid(_NO_PUBLIC_KEY) from exc
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise errors.Invalid(_NO_PUBLIC_KEY)
    # Without the bit that says which of two points it is.
    point = int.from_bytes(key.public_bytes_raw(), "little") % 2**255
    if point >= _PRIME or min(point, _PRIME - point) in _WEAK:
        raise errors.Invalid("public_key: anybody can sign for this key; make another one.")
    return key


#: The prime of Ed25519, and the points, up to their signs, for which signatures can be made up:
#: those whose order divides 8. Numbers from the prime on write a point in another way.
_PRIME = 2**255 - 19
_WEAK = {0, 1, 0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826}


_NO_PUBLIC_KEY = (
    "public_key: this is no Ed25519 public key; `cyborg-agent key` prints one, and for a file "
    "`openssl pkey -pubout`, in one line of 60 characters."
)


def make_private() -> bytes:
    """A new private key, as the content of a file."""
    return ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load(path: os.PathLike[str] | str) -> ed25519.Ed25519PrivateKey:
    """The private key of a file, which is read again when it has changed.

    :raises OSError: it cannot be read
    :raises Misconfigured: it holds no such key
    """
    found = pathlib.Path(path).stat()
    return _load(os.fspath(path), found.st_mtime_ns, found.st_ino)


@functools.lru_cache(maxsize=8)
def _load(path: str, _changed: int, _inode: int) -> ed25519.Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(pathlib.Path(path).read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise errors.Misconfigured(f"{path} is not the file of a private key.") from exc
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise errors.Misconfigured(f"{path} holds a key that is not of type Ed25519.")
    return key
