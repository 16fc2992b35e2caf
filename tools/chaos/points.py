# SPDX-License-Identifier: Apache-2.0
"""Named points in Cyborg's processes at which one kills itself.

They are patched in from outside, into libraries and into functions of Cyborg; the product does
not know them. A point is named for what happens there and what the thread is doing: ``after commit
in bind``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import requests
from oslo_messaging import transport
from oslo_messaging.rpc import dispatcher
from sqlalchemy.engine import default

from cyborg import work
from cyborg.api import app
from cyborg.conductor import service as conductor
from cyborg.drivers import fake
from cyborg.rpc import client as rpc_client


def _around(thing: str, *activities: str) -> tuple[str, ...]:
    return tuple(
        f"{when} {thing} in {activity}" for activity in activities for when in ("before", "after")
    )


#: The points at which each kind of process is killed in turn.
NAMED = {
    "api": (
        *_around("commit", "POST", "PATCH", "DELETE"),
        *_around("message sent", "kick"),
    ),
    "conductor": (
        *_around("commit", work.BIND, work.HOST_STEP, work.PLACEMENT),
        *_around("commit", "claim", "finish", "back off", "renew", "report"),
        *_around("http request", work.NOVA_EVENT, work.PLACEMENT),
        *_around("message sent", work.HOST_STEP),
        *_around("message received", "report", "kick"),
    ),
    "agent": (
        *_around("message sent", "report"),
        *_around("message received", "host_step"),
        *_around("driver", "prepare", "clean"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Kill the process when it reaches the point for the ``times``-th time from now."""

    point: str
    times: int

    def write(self, path: Path) -> None:
        """Write it to the file that the process watches."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps([self.point, self.times]))
        draft.replace(path)


class Points:
    """The points of this process. While the file ``arm`` exists, it names the one to die at."""

    def __init__(self, arm: Path, steps: Path) -> None:
        self._arm = arm
        self._text = ""
        self._times = 0
        self._lock = threading.Lock()
        self._activity = threading.local()
        # Unbuffered, so that no line is lost.
        self._steps = steps.open("ab", buffering=0)

    def install(self) -> None:
        """Patch the libraries of this process, and Cyborg."""
        self._cut(default.DefaultDialect, "do_commit", "commit")
        self._cut(requests.Session, "send", "http request")
        self._cut(transport.Transport, "_send", "message sent")
        self._name(work, "take", "claim")
        self._name(work, "finish", "finish")
        self._name(work, "back_off", "back off")
        self._name(work, "renew", "renew")
        self._name(rpc_client.RpcClient, "report", "report")
        self._name(rpc_client.RpcClient, "_cast_kicks", "kick")
        self._name_handlers()
        self._name_messages()
        self._name_requests()
        self._cut_driver("prepare")
        self._cut_driver("clean")

    def _reach(self, when: str, thing: str) -> None:
        try:
            text = self._arm.read_text()
        except FileNotFoundError:
            return
        point, times = json.loads(text)
        if f"{when} {thing} in {getattr(self._activity, 'name', 'nothing')}" != point:
            return
        with self._lock:
            if text != self._text:
                self._text, self._times = text, 0
            self._times += 1
            if self._times >= times:
                os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def _doing(self, name: str) -> Iterator[None]:
        outer = getattr(self._activity, "name", "nothing")
        self._activity.name = name
        try:
            yield
        finally:
            self._activity.name = outer

    def _cut(self, owner: Any, name: str, thing: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def cut(*args: Any, **kwargs: Any) -> Any:
            self._reach("before", thing)
            result = original(*args, **kwargs)
            self._reach("after", thing)
            return result

        setattr(owner, name, cut)

    def _name(self, owner: Any, name: str, activity: str) -> None:
        setattr(owner, name, self._named(activity, getattr(owner, name)))

    def _named(self, activity: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def named(*args: Any, **kwargs: Any) -> Any:
            with self._doing(activity):
                return original(*args, **kwargs)

        return named

    def _name_handlers(self) -> None:
        original = conductor.handlers

        def handlers(conf: Any) -> dict[str, Any]:
            found = original(conf)
            return {
                # functools.wraps copies a name, which a partial does not have.
                kind: self._named(kind, functools.partial(handler))
                for kind, handler in found.items()
            }

        conductor.handlers = handlers

    def _name_messages(self) -> None:
        original = dispatcher.RPCDispatcher.dispatch

        def dispatch(receiver: Any, incoming: Any) -> Any:
            with self._doing(incoming.message.get("method", "")):
                self._reach("before", "message received")
                result = original(receiver, incoming)
                self._reach("after", "message received")
                return result

        dispatcher.RPCDispatcher.dispatch = dispatch

    def _name_requests(self) -> None:
        load = app.load

        def loaded(conf: Any) -> WSGIApplication:
            application = load(conf)

            def named(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
                with self._doing(environ["REQUEST_METHOD"]):
                    return application(environ, start)

            return named

        app.load = loaded

    def _cut_driver(self, action: str) -> None:
        """Patch a step of the driver with points before and after it, and record each step."""
        original = getattr(fake.FakeDriver, action)

        @functools.wraps(original)
        def step(driver: fake.FakeDriver, handle: Any) -> None:
            with self._doing(action):
                self._journal(action, handle, "begins")
                self._reach("before", "driver")
                try:
                    original(driver, handle)
                except Exception:
                    self._journal(action, handle, "failed")
                    raise
                self._journal(action, handle, "done")
                self._reach("after", "driver")

        setattr(fake.FakeDriver, action, step)

    def _journal(self, action: str, handle: Any, outcome: str) -> None:
        line = [time.monotonic(), dict(handle.attach_info), action, outcome]
        self._steps.write(json.dumps(line).encode() + b"\n")
