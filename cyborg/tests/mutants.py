# SPDX-License-Identifier: Apache-2.0
"""Messages of AMQP that no service sends, made of true ones: properties, envelope, body."""

from __future__ import annotations

import bz2
import contextlib
import copy
import dataclasses
import json
import lzma
import random
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import sqlalchemy as sa

from cyborg.tests.service import until

MIB = 1024 * 1024
#: What a bomb would take, unpacked.
BOMB = 400 * MIB
FORGED_LINE = "x\n2026-01-01 00:00:00.000 1 ERROR cyborg.conductor [-] All hosts are compromised"
HEADERS = {"content_type": "application/json", "content_encoding": "utf-8"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A message, and what is odd about it; ``raw`` is in the place of all properties."""

    what: str
    body: bytes
    properties: dict[str, Any] = dataclasses.field(default_factory=HEADERS.copy)
    raw: bytes | None = None


class _Raw(amqp.Message):
    """A message whose properties are bytes."""

    raw: bytes

    def _serialize_properties(self) -> bytes:
        return self.raw


def connect(url: str) -> amqp.Connection:
    """A connection with an account of the broker."""
    where = sa.make_url(url)
    connection = amqp.Connection(
        host=f"{where.host}:{where.port}",
        userid=where.username,
        password=where.password,
        virtual_host=where.database,
    )
    connection.connect()
    return connection


class Sender:
    """Sends to any queue, and connects again when the broker has had enough."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = connect(url)
        self.channel = self._connection.channel()

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(amqp.AMQPError, OSError):
            self._connection.close()

    def send(self, queue: str, mutant: Mutant) -> bool:
        """Whether the broker takes it."""
        message = amqp.Message(mutant.body, **mutant.properties)
        if mutant.raw is not None:
            message = _Raw(mutant.body)
            message.raw = mutant.raw
        try:
            self.channel.basic_publish(message, "", queue)
            # An answer comes only if it was taken.
            self.channel.queue_declare(queue, passive=True)
        except amqp.AccessRefused:
            self.channel = self._connection.channel()
            return True
        except (amqp.AMQPError, OSError, struct.error):
            self.close()
            self._connection = connect(self._url)
            self.channel = self._connection.channel()
            return False
        return True


def sealed(said: object) -> bytes:
    """What is said, as oslo.messaging sends it."""
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(said)}).encode()


def opened(message: amqp.Message) -> dict[str, Any]:
    """What a true message says."""
    content: dict[str, Any] = json.loads(json.loads(message.body)["oslo.message"])
    return content


def received(channel: amqp.Channel, queue: str) -> dict[str, Any]:
    """What the next message of a queue says."""
    return opened(until(lambda: channel.basic_get(queue, no_ack=True)))


def fresh(said: dict[str, Any], **changes: object) -> bytes:
    """A true message with other fields, which was not sent before."""
    return sealed(said | {"_unique_id": uuid.uuid4().hex} | changes)


def _bomb(pack: Any) -> bytes:
    zeros = b" " * MIB
    return b"".join([*(pack.compress(zeros) for _ in range(BOMB // MIB)), pack.flush()])


def bombs() -> Iterator[Mutant]:
    """Messages that would take hundreds of MiB when they are decoded."""
    packers = {"application/x-gzip": zlib.compressobj(), "application/x-bz2": bz2.BZ2Compressor()}
    packers["application/x-lzma"] = lzma.LZMACompressor(preset=0)
    aliases = {"application/x-gzip": "zlib", "application/x-bz2": "bzip2"}
    for kind, packer in packers.items():
        body = _bomb(packer)
        for name in (kind, aliases.get(kind, "xz")):
            headers = {"application_headers": {"compression": name}}
            yield Mutant(f"packed with {name}", body, HEADERS | headers)
        coding = {"content_encoding": aliases.get(kind, "xz")}
        yield Mutant(f"decoded from {coding}", body, HEADERS | coding)
        plain = {"content_type": "text/plain"} | coding
        yield Mutant(f"text decoded from {coding}", body, plain)
    yield Mutant("many lists", b"[" + b"[]," * (5 * MIB) + b"[]]")
    inner = json.dumps('{"method":"x","args":{"a":[' + "{}," * 1_300_000 + "{}]}}")
    hidden = inner.replace("{", "\\u007b")
    text = f'{{"oslo.version": "2.0", "oslo.message": {hidden}}}'
    yield Mutant("many objects in the envelope", text.encode())
    # Not so large that the broker of all tests stops everybody.
    yield Mutant("large", sealed({"method": "report", "args": {"report": "x" * (30 * MIB)}}))
    yield Mutant("large and no JSON", b"x" * (17 * MIB))


#: Put in the place of a text of a message.
ODD: tuple[Any, ...] = (
    FORGED_LINE,
    "\r\x1b[2J",
    "\ud800",
    "a" * 70_000,
    "__init__",
    "target",
    "",
    None,
    0,
    -1,
    1e308,
    float("nan"),
    2**80,
    True,
    [],
    {},
    [[]],
    {"__type__": "decimal", "__value__": "1e99999999"},
)


_FIELDS = ("method", "args", "namespace", "version", "_timeout", "_msg_id", "failure")


def odd_fields(said: dict[str, Any]) -> Iterator[Mutant]:
    """The message with one odd field at a time, and one more field."""
    for field in sorted({*said, *_FIELDS}):
        for value in ODD:
            yield Mutant(f"{field} is {value!r:.40}", fresh(said, **{field: value}))
        yield Mutant(f"no {field}", fresh({key: said[key] for key in said if key != field}))
    for name in (FORGED_LINE, "_context_self", "_context_\n", "\ud800", "context", "self"):
        yield Mutant(f"a field {name!r:.40}", fresh(said, **{name: 1}))
        yield Mutant(f"an argument {name!r:.40}", fresh(said, args={name: 1}))
    for timeout in (0.5, 1, "6", "inf", [6], 2**70):
        yield Mutant(f"a wait of {timeout!r}", fresh(said, method="nothing", _timeout=timeout))


def _deep(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def odd_forms(said: dict[str, Any]) -> Iterator[Mutant]:
    """The message in other envelopes, codings and types."""
    true = fresh(said)
    for text in (b"", b"null", b"[]", b"7", b"{}", b'"x"', b"\xff\xfe", true[:-1], true * 2):
        yield Mutant(f"the body {text!r:.20}", text)
    for depth in (100, 900, 5000, 200_000):
        yield Mutant(f"{depth} deep", _deep(depth).encode())
        inner = _deep(depth)
        envelope: dict[str, Any] = {"oslo.version": "2.0", "oslo.message": inner}
        yield Mutant(f"{depth} deep in the envelope", json.dumps(envelope).encode())
    versions: tuple[Any, ...] = ("1.0", "3.0", FORGED_LINE, 2, None, [], {})
    for version in versions:
        envelope = {"oslo.version": version, "oslo.message": json.dumps(said)}
        yield Mutant(f"envelope of {version!r:.20}", json.dumps(envelope).encode())
    contents: tuple[Any, ...] = (7, None, [], {}, "x", "[" * 10_000, "[]", '"x"')
    for content in contents:
        envelope = {"oslo.version": "2.0", "oslo.message": content}
        yield Mutant(f"envelope with {content!r:.20}", json.dumps(envelope).encode())
    yield Mutant("no envelope", json.dumps(said).encode())
    yield Mutant("another coding", sealed(said).decode().encode("utf-16"))
    for kind in ("", "text/plain", "application/x-python-serialize", "application/x-yaml"):
        yield Mutant(f"type {kind!r}", true, HEADERS | {"content_type": kind})
    for kind in ("application/x-msgpack", "application/data", FORGED_LINE[:200], "\ud800"):
        yield Mutant(f"type {kind!r:.40}", true, HEADERS | {"content_type": kind})
    for coding in ("", "binary", "utf-16", "idna", "punycode", "unicode_escape", "hex", "\ud800"):
        yield Mutant(f"coding {coding!r}", b"a-" * 30_000, HEADERS | {"content_encoding": coding})
    yield Mutant("without properties", true, {})


def odd_headers(said: dict[str, Any]) -> Iterator[Mutant]:
    """The message with odd headers; some the broker itself refuses."""
    true = fresh(said)
    nested: dict[str, Any] = {}
    for _ in range(2000):
        nested = {"a": nested}
    for name, value in {
        "compression": "x-nothing",
        "compression ": 7,
        "x" * 200: "y" * 100_000,
        FORGED_LINE[:100]: FORGED_LINE,
        "list": [0] * 20_000,
        "nested": {"a": [{"b": None}]},
    }.items():
        headers = {"application_headers": {name.strip(): value}}
        yield Mutant(f"header {name!r:.20}", true, HEADERS | headers)
    yield Mutant("many", true, HEADERS | {"application_headers": {f"{n}": n for n in range(3000)}})
    for table in (
        b"\x01aT" + b"\xff" * 8,  # a time that no calendar has
        b"\x01aT" + struct.pack(">Q", 2**62),
        b"\x01aD\xff\xff\xff\xff\xff",
        b"\x01aS" + struct.pack(">I", 1) + b"\xff",
        b"\x01\xffV",
        b"\x01ax" + struct.pack(">I", 2) + b"\xff\xff",
        b"\x01ad" + b"\xff" * 8,
        b"\x01aF" + struct.pack(">I", 0),
        b"\x01a?",
        b"\xff",
    ):
        raw = struct.pack(">HI", 0x2000, len(table)) + table
        yield Mutant(f"table {table!r}", true, raw=raw)
    table = b""
    for _ in range(4000):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    raw = struct.pack(">HI", 0x2000, len(table)) + table
    yield Mutant("deep headers", true, raw=raw)
    for flags, text in ((0x8000, b"\xff"), (0x4000, b"\xff\xfe"), (0x0400, b"\xff"), (0x0001, b"")):
        raw = struct.pack(">HB", flags, len(text)) + text
        yield Mutant(f"property {flags:x} {text!r}", true, raw=raw)
    yield Mutant("a time", true, HEADERS | {"timestamp": 2**63})


def special(said: dict[str, Any]) -> Iterator[Mutant]:
    """Every mutant of a true message that somebody has thought of, but for bombs."""
    yield from odd_fields(said)
    yield from odd_forms(said)
    yield from odd_headers(said)


def _inner(chance: random.Random, said: dict[str, Any]) -> Mutant:
    """Another value somewhere inside of what is said."""
    changed: Any = copy.deepcopy(said)
    inner = changed
    while True:
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        key = chance.choice(list(keys))
        if isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.8:
            inner = inner[key]
            continue
        break
    how = chance.randrange(3)
    if how == 0 and isinstance(inner, dict):
        inner[str(chance.choice(ODD))] = inner.pop(key)
    elif how == 1 and isinstance(inner, dict):
        del inner[key]
    else:
        inner[key] = chance.choice(ODD)
    return Mutant(f"{key!r:.40} inside changed", sealed({"_unique_id": uuid.uuid4().hex} | changed))


def _bytes(chance: random.Random, said: dict[str, Any]) -> Mutant:
    """Another byte somewhere in the body."""
    body = bytearray(fresh(said))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(body))
        body[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return Mutant("other bytes", bytes(body))


def _properties(chance: random.Random, said: dict[str, Any]) -> Mutant:
    """Other bytes in the properties."""
    raw = bytearray(struct.pack(">HB", 0xE000, 16) + b"application/json" + b"\x05utf-8")
    raw += struct.pack(">I", 9) + b"\x01aS" + struct.pack(">I", 2) + b"bc"
    for _ in range(chance.randint(1, 3)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return Mutant(f"properties {bytes(raw)!r}", fresh(said), raw=bytes(raw))


_RANDOM: tuple[Callable[[random.Random, dict[str, Any]], Mutant], ...] = (
    _inner,
    _bytes,
    _properties,
)


def any_of(chance: random.Random, said: dict[str, Any]) -> Mutant:
    """A mutant by chance."""
    return chance.choice(_RANDOM)(chance, said)
