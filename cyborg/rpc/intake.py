# SPDX-License-Identifier: Apache-2.0
"""Messages from RabbitMQ, checked before a library decodes any of them.

Whoever has an account of the broker can send anything here, with any properties. kombu would
unpack and decode what they say, and oslo.messaging trip over the rest, before anybody has looked at
a signature. So the transport of kombu that oslo.messaging uses is this one: a message that none of
its clients sends is dropped, so that it is not delivered again, with one line in the log.
"""

from __future__ import annotations

import bz2
import json
import logging
import re
import struct
import threading
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import amqp
import kombu.transport
from amqp import method_framing
from kombu.transport import pyamqp
from oslo_config import cfg
from oslo_messaging._drivers import amqpdriver, impl_rabbit

from cyborg import metrics
from cyborg.rpc import lines, signing

LOG = logging.getLogger(__name__)

#: Bytes of a message, also unpacked: what RabbitMQ 4 takes at most, unless told otherwise.
MESSAGE_MAX = 16 * 1024 * 1024
#: Bytes of all properties; those of a true message have a hundred.
_PROPERTIES_MAX = 16 * 1024
#: Values in a message, each of which costs up to two hundred bytes of memory, and their depth.
_VALUES_MAX = 1_000_000
_DEPTH_MAX = 64
#: Bytes that all messages may take whose work has not ended, and those of a value. The library
#: takes messages as fast as they come, and its threads would hold each at the same time.
_IN_WORK_MAX, _VALUE = 512 * 1024 * 1024, 200

_HEADER, _BODY = 2, 3
_JSON = ("application/json", "utf-8")
_VERSION, _CONTENT = "oslo.version", "oslo.message"
_UNPACKERS: dict[object, Callable[[], Any]] = {"application/x-gzip": zlib.decompressobj}
_UNPACKERS["application/x-bz2"] = bz2.BZ2Decompressor
#: In the place of the type of the content where nothing of a message is kept.
_LARGE, _ODD = b"it is too large", b"its properties cannot be read"
_ID = r"[A-Za-z0-9-]{1,64}"
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_TEXT = r"[ -~]{0,255}"
#: What each field of a call, an answer and a notification looks like, if it is there.
_FORM = {"method": _NAME, "namespace": _NAME, "version": r"\d{1,4}(\.\d{1,4}){1,2}"}
_FORM |= {"_msg_id": _ID, "_unique_id": _ID, "_reply_q": r"reply_[!-~]{1,249}"}
_FORM |= {"failure": r"(?s).{0,65536}", "priority": r"[A-Za-z]{1,20}", "event_type": _TEXT}
_FORM |= {"publisher_id": _TEXT, "message_id": _TEXT, "timestamp": _TEXT}
#: What one of them has, other than null but for the result and the failure.
_KINDS = ({"method"}, {"event_type"}, {"_msg_id", "result", "failure", "ending"})
_WAIT_MAX = 86400
#: Of the context of a message; others are left out.
_CONTEXT = {"_context_request_id", "_context_signature"}
#: Loggers of the library that say something of a message.
_TALKERS = ("_drivers.amqpdriver", "notify.dispatcher", "rpc.dispatcher", "rpc.server")

_conf: cfg.ConfigOpts = cfg.CONF

#: The bytes of each message that somebody still has.
_in_work: weakref.WeakKeyDictionary[Message, int] = weakref.WeakKeyDictionary()
_weighing = threading.Lock()


class OddMessage(ValueError):
    """A message is none of what services and Nova send."""


def install(conf: cfg.ConfigOpts) -> None:
    """Let oslo.messaging get everything through here, and hold nothing for who does not wait."""
    global _conf  # noqa: PLW0603 - kombu makes the transport
    _conf = conf
    ours = dict.fromkeys(("amqp", "pyamqp"), f"{__name__}:Transport")
    kombu.transport.TRANSPORT_ALIASES.update(ours)
    # A receiver that is gone held a thread for a minute. One that comes back asks again.
    cfg.set_defaults(impl_rabbit.rabbit_opts, kombu_missing_consumer_retry_timeout=0)
    amqpdriver.ObsoleteReplyQueuesCache.TTL = 0
    impl_rabbit.LOG.logger.addFilter(lines.in_one)
    for name in _TALKERS:
        logging.getLogger(f"oslo_messaging.{name}").addFilter(lines.in_one)


def read(message: amqp.Message) -> dict[str, Any]:
    """The content of a message, which is weighed.

    :raises OddMessage: it cannot be read, or is too large, by itself or beside others
    """
    properties = message.properties
    kind = properties.get("content_type")
    if (kind, properties.get("content_encoding")) != _JSON:
        raise OddMessage(kind if kind in (_LARGE.decode(), _ODD.decode()) else "it is not JSON")
    packed = (properties.get("application_headers") or {}).pop("compression", None)
    body = message.body if packed is None else _unpacked(message.body, packed)
    text = str(body, "utf-8", "replace") if body else ""
    data = _parsed(text)
    if data.keys() >= {_VERSION, _CONTENT}:
        text = data[_CONTENT]
        if not isinstance(text, str) or not str(data[_VERSION]).startswith("2."):
            raise OddMessage("the version of its envelope is not 2")
        data = _parsed(text)
    message.weight = _weight(text)
    _check(data)
    odd = {key for key in data if key.startswith("_context_")} - _CONTEXT
    return {key: value for key, value in data.items() if key not in odd}


def _unpacked(body: bytes, packed: object) -> bytes:
    if not _conf.oslo_messaging_rabbit.kombu_compression:
        raise OddMessage("it is packed, and [oslo_messaging_rabbit] kombu_compression is not set")
    try:
        unpacker = _UNPACKERS[packed]()
        data: bytes = unpacker.decompress(body, MESSAGE_MAX)
    except (KeyError, TypeError, OSError, ValueError, zlib.error) as exc:
        raise OddMessage("it cannot be unpacked as gzip or bzip2") from exc
    if not unpacker.eof:
        raise OddMessage("it is too large, unpacked, or has no end")
    return data


def _weight(text: str) -> int:
    """The bytes that a text takes with its values. Before or in each of them there is a sign."""
    values = sum(text.count(sign) for sign in ",[{")
    if values > _VALUES_MAX:
        raise OddMessage(f"it has more than {_VALUES_MAX} values")
    return len(text) + values * _VALUE


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object that it is, if there is room for it."""
    weight = _weight(text)
    with _weighing:
        if sum(_in_work.values()) + weight > _IN_WORK_MAX:
            raise OddMessage("those that came before it are too large to take it too")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise OddMessage("it is not JSON") from exc
    inner: list[Any] = [data]
    for _ in range(_DEPTH_MAX):
        # The values of each object and list.
        found = (each.values() if isinstance(each, dict) else each for each in inner)
        inner = [one for some in found for one in some if isinstance(one, dict | list)]
    if inner or not isinstance(data, dict):
        raise OddMessage("it is not an object, or it is nested too deeply")
    return data


def _check(data: dict[str, Any]) -> None:
    """Raise OddMessage if it is no call, answer or notification, or something in it is odd."""
    if not any(data.keys() >= kind and data[min(kind)] is not None for kind in _KINDS):
        raise OddMessage("it is not a call, an answer or a notification")
    for name in data.keys() & _FORM:
        if data[name] is not None and not _fits(_FORM[name], data[name]):
            raise OddMessage(f"its {name} is not valid")
    _check_call(data.get("_timeout"), data.get("args", {}))


def _check_call(wait: object, arguments: object) -> None:
    """Raise OddMessage if the time-out or the arguments of a call are none."""
    if wait is not None and not (type(wait) is int and 0 <= wait <= _WAIT_MAX):
        raise OddMessage("its _timeout is not valid")
    if not (isinstance(arguments, dict) and all(_fits(_NAME, each) for each in arguments)):
        raise OddMessage("its args are not valid")


def _fits(form: str, value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(form, value) is not None


class Message(pyamqp.Message):
    """A message that is read already."""

    def __init__(self, msg: amqp.Message, channel: Any = None, **given: Any) -> None:
        super().__init__(msg, channel, **given)  # type: ignore[no-untyped-call]
        self._said: dict[str, Any] = msg.said
        # The library keeps this one for as long as the content, if nobody gives that up before.
        with _weighing:
            _in_work[self] = msg.weight

    @property
    def payload(self) -> dict[str, Any]:
        """The content that was read."""
        return self._said

    def forget(self) -> None:
        """Give the content up."""
        self._said = {}
        with _weighing:
            _in_work.pop(self, None)


class Channel(pyamqp.Channel):
    """Hands on only what can be read."""

    Message = Message

    def __init__(self, *given: Any, **named: Any) -> None:
        # Decoding would be done as the message says.
        super().__init__(*given, auto_decode=False, **named)

    def basic_consume(self, *given: Any, callback: Callable[..., Any], **named: Any) -> Any:
        """Begin to consume a queue."""

        def take(message: amqp.Message) -> None:
            try:
                message.said = read(message)
            except Exception as exc:  # noqa: BLE001 - what stays would come again for ever
                self.basic_reject(message.delivery_tag, requeue=False)
                # Not the exception, whose frames would keep it, and so the message.
                why = str(exc) if isinstance(exc, OddMessage) else type(exc).__name__
                labels = {"method": "unknown", "reason": signing.UNREADABLE}
                metrics.count(metrics.MESSAGES_REFUSED, **labels)
                lines.warn(LOG, "Dropped a message of the broker: %s", why)
            else:
                message.body = b""
                callback(message)

        return super().basic_consume(*given, callback=take, **named)


def frames(connection: amqp.Connection, callback: Callable[..., Any]) -> Callable[..., bool]:
    """The handler of frames: of a message that is too large, or is odd, nothing stays.

    An exception of the library would leave the connection in between two frames, and the message
    would come again.
    """
    take = method_framing.frame_handler(connection, callback)
    passed_over: dict[int, int] = {}

    def on_frame(frame: tuple[int, int, Any]) -> bool:
        kind, channel, data = frame
        if kind == _HEADER:
            # The channel of a message that has not come whole may be another one by now.
            passed_over.pop(channel, None)
            size = struct.unpack_from(">Q", data, 4)[0]
            unfit = _unfit(data, size)
            if unfit:
                passed_over[channel] = size
                kind_of_content = struct.pack(">HB", 0x8000, len(unfit)) + unfit
                data = struct.pack(">HHQ", amqp.Message.CLASS_ID, 0, 0) + kind_of_content
        elif kind == _BODY and passed_over.get(channel):
            passed_over[channel] -= len(data)
            connection.bytes_recv += 1
            return False
        return bool(take((kind, channel, data)))

    return on_frame


def _unfit(header: Any, size: int) -> bytes:
    """The reason why nothing of a message is kept, by its header."""
    if size > MESSAGE_MAX or len(header) > _PROPERTIES_MAX:
        return _LARGE
    try:
        amqp.Message().inbound_header(header)
    except Exception:  # noqa: BLE001 - the library has many for bytes that it does not expect
        return _ODD
    return b""


class AmqpConnection(pyamqp.Connection):
    """A connection to the broker."""

    Channel = Channel

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, frame_handler=frames, **named)


class Transport(pyamqp.Transport):
    """The transport that kombu uses for ``amqp://``."""

    Connection = AmqpConnection
