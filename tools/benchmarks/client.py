# SPDX-License-Identifier: Apache-2.0
"""What a client asks of any Cyborg: boots as Nova asks for them, and lists."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import statistics
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

#: Asks an API for something by method and path, with a body.
Ask = Callable[..., Any]

SECONDS = 120.0
#: How often a list is asked for.
_LISTS = 5


class Failed(Exception):
    """Why it cannot be measured, as a sentence."""


def until(what: str, find: Callable[[], T], seconds: float = SECONDS, pause: float = 0.1) -> T:
    """Call ``find`` until it returns something true; return that."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} seconds")
        time.sleep(pause)
    return found


@dataclass(frozen=True)
class Target:
    """Where an ARQ is bound: the host's root provider by its name, and a device's by its uuid."""

    host: str
    provider: str


class Client:
    """Asks one API, each time over a connection of its own, as services do."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self.name = name
        self._url = urllib.parse.urlsplit(url.rstrip("/"))
        self._headers = {"Content-Type": "application/json", **headers}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, or None while it says 423.

        :raises Failed: it says anything else that is no success
        """
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=600)
        with contextlib.closing(connection):
            data = json.dumps(body) if body is not None else None
            connection.request(method, f"{self._url.path}{path}", data, self._headers)
            response = connection.getresponse()
            said = response.read()
        if response.status == 423:
            return None
        if response.status >= 300:
            raise Failed(f"{self.name}: {method} {path}: {response.status} {said!r}")
        return json.loads(said) if said else {}


def boot(
    ask: Ask,
    profile: str,
    targets: Sequence[Target],
    made: Callable[[Sequence[str]], Callable[[], None]] = lambda _arqs: lambda: None,
) -> None:
    """What Nova asks for a server, from its making to its end.

    ``made`` is called with the uuids of the ARQs; what it returns waits for their events.
    """
    answer = ask("POST", "/accelerator_requests", {"device_profile_name": profile})
    arqs = [arq["uuid"] for arq in answer["arqs"]]
    try:
        _use(ask, arqs, targets, made(arqs))
    except Failed:
        # Somebody else may need what it holds.
        with contextlib.suppress(Failed):
            ask("DELETE", f"/accelerator_requests?arqs={','.join(arqs)}")
        raise


def _use(
    ask: Ask, arqs: Sequence[str], targets: Sequence[Target], await_events: Callable[[], None]
) -> None:
    instance = str(uuid.uuid4())
    patch = {arq: _patch(target, instance) for arq, target in zip(arqs, targets, strict=True)}
    ask("PATCH", "/accelerator_requests", patch)
    await_events()
    path = f"/accelerator_requests?instance={instance}"
    resolved = f"{path}&bind_state=resolved"
    found = until("resolved", lambda: ask("GET", resolved), pause=0.01)
    if [arq["state"] for arq in found["arqs"]] != ["Bound"] * len(arqs):
        raise Failed(f"not all are bound: {found}")
    ask("DELETE", path)


def listed(ask: Ask, path: str, key: str) -> float | None:
    """Milliseconds that a list of 1,000 takes: for each thousand, if there are others."""
    taken = []
    for _ in range(_LISTS):
        begin = time.perf_counter()
        found = len(ask("GET", path)[key])
        if not found:
            return None
        taken.append(1000 * (time.perf_counter() - begin) * 1000 / found)
    return statistics.median(taken)


def _patch(target: Target, instance: str) -> list[dict[str, str]]:
    values = {
        "hostname": target.host,
        "device_rp_uuid": target.provider,
        "instance_uuid": instance,
    }
    return [{"path": f"/{key}", "op": "add", "value": text} for key, text in values.items()]


def at_once(call: Callable[[int], None], count: int, total: int) -> list[float]:
    """Make ``total`` calls, ``count`` at a time, each with a number below that; seconds of each."""
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(count):
        slots.put(slot)

    def one(_number: int) -> float:
        slot = slots.get()
        begin = time.perf_counter()
        try:
            call(slot)
        finally:
            slots.put(slot)
        return time.perf_counter() - begin

    with futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(total)))
