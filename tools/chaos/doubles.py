# SPDX-License-Identifier: Apache-2.0
"""Sends copies of messages through the broker, some time after the originals.

A copy has an id of its own; otherwise the receiving library would drop it as a duplicate.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import kombu
from kombu import exceptions

#: Maximum seconds between a message and its copy.
DELAY = 8.0
_HEADER = "x-chaos-copy"
#: The default of ``[DEFAULT] rpc_exchange``.
_EXCHANGE = "cyborg"


class Doubler:
    """Copies every message to these queues while it runs, and sends all copies before it ends."""

    def __init__(self, url: str, queues: Iterable[str], rng: random.Random) -> None:
        self._url = url.replace("rabbit://", "amqp://", 1)
        self._queues = list(queues)
        self._rng = rng
        self._due: list[tuple[float, int, kombu.Message]] = []
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doubler", daemon=True)
        self.copies = 0

    def start(self) -> None:
        """Start copying."""
        self._thread.start()

    def stop(self) -> None:
        """Copy no more messages; the copies already made are still sent."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the last copy is sent, or the connection is lost and the rest with it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        lost = (exceptions.OperationalError, OSError)
        with contextlib.suppress(*lost), kombu.Connection(self._url, connect_timeout=2) as broker:
            lost += broker.connection_errors + broker.channel_errors
            with contextlib.suppress(*lost):
                self._copy(broker)

    def _copy(self, broker: kombu.Connection) -> None:
        exchange = kombu.Exchange(_EXCHANGE, type="topic", passive=True)
        bindings = [kombu.binding(exchange, routing_key=name) for name in self._queues]
        tap = kombu.Queue(exclusive=True, auto_delete=True, bindings=bindings, durable=False)
        producer = kombu.Producer(broker.channel())
        consumer = kombu.Consumer(broker, [tap], on_message=self._take)
        with consumer:
            while not self._stop.is_set():
                self._drain(broker)
                self._send(producer)
        while self._due:
            time.sleep(0.05)
            self._send(producer)

    def _drain(self, broker: kombu.Connection) -> None:
        with contextlib.suppress(socket.timeout):
            broker.drain_events(timeout=0.1)

    def _take(self, message: kombu.Message) -> None:
        message.ack()
        if _HEADER not in message.headers:
            due = time.monotonic() + self._rng.uniform(0, DELAY)
            heapq.heappush(self._due, (due, next(self._numbers), message))

    def _send(self, producer: kombu.Producer) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            message = heapq.heappop(self._due)[2]
            limit = message.properties.get("expiration")
            producer.publish(
                _renamed(message.body),
                exchange=_EXCHANGE,
                routing_key=message.delivery_info["routing_key"],
                headers={**message.headers, _HEADER: True},
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                expiration=int(limit) / 1000 if limit else None,
            )
            self.copies += 1


def _renamed(body: Any) -> bytes:
    envelope = json.loads(body)
    message = json.loads(envelope["oslo.message"])
    message["_unique_id"] = uuid.uuid4().hex
    return json.dumps(envelope | {"oslo.message": json.dumps(message)}).encode()
