# SPDX-License-Identifier: Apache-2.0
"""Messages in memory, between the services of one process, delivered at once.

oslo.messaging's own listener looks for messages every 50 ms.
"""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import oslo_messaging as messaging
from oslo_messaging._drivers import base, impl_fake

#: Seconds after which a listener looks by itself.
_LOOK_AGAIN = 1.0


class _Exchange(impl_fake.FakeExchange):
    """Queues, and how to wait until there is something in one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.arrived = threading.Condition()

    def deliver_message(self, *given: Any, **named: Any) -> None:
        """Put a message into its queues."""
        super().deliver_message(*given, **named)
        self.tell()

    def tell(self) -> None:
        """Have those look who wait."""
        with self.arrived:
            self.arrived.notify_all()


class _Exchanges(impl_fake.FakeExchangeManager):
    """The exchanges of the process."""

    _exchanges: ClassVar[dict[str, _Exchange]] = {}

    def get_exchange(self, name: str | None) -> _Exchange:
        """The exchange of that name."""
        wanted = name or self._default_exchange
        with self._exchanges_lock:
            return self._exchanges.setdefault(wanted, _Exchange(wanted))


class _Listener(impl_fake.FakeListener):
    """Takes messages as they come. All of its targets are of one exchange."""

    @property
    def _exchange(self) -> _Exchange:
        exchange: _Exchange = self._exchange_manager.get_exchange(self._targets[0].exchange)
        return exchange

    @base.batch_poll_helper
    def poll(self, timeout: float | None = None) -> Any:
        """The next message; None if there is none in time."""
        exchange = self._exchange
        end = None if timeout is None else time.monotonic() + timeout
        with exchange.arrived:
            while not self._stopped.is_set():
                for target in self._targets:
                    message = exchange.poll(target, self._pool)
                    if message[1] is not None:
                        return impl_fake.FakeIncomingMessage(*message)
                left = _LOOK_AGAIN if end is None else min(_LOOK_AGAIN, end - time.monotonic())
                if left <= 0:
                    break
                exchange.arrived.wait(left)
        return None

    def stop(self) -> None:
        """Take no more."""
        super().stop()
        self._exchange.tell()


class _MemoryDriver(impl_fake.FakeDriver):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._exchange_manager = _Exchanges(self._default_exchange)

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> Any:
        """Receive what is sent to a server, and to its topic."""
        exchange = target.exchange or self._default_exchange
        targets = [
            messaging.Target(topic=target.topic, server=target.server, exchange=exchange),
            messaging.Target(topic=target.topic, exchange=exchange),
        ]
        listener = _Listener(self._exchange_manager, targets)
        return base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)


def deliver_at_once(transport: Any, url: messaging.TransportURL) -> None:
    """Have a transport in memory, which nobody has used yet, keep no message waiting."""
    transport._driver = _MemoryDriver(  # noqa: SLF001 - a driver of a name needs an entry point
        transport.conf, url, default_exchange=transport.conf.control_exchange
    )
