# SPDX-License-Identifier: Apache-2.0
"""Clients: each boots and deletes guests with accelerators, and checks every answer.

A client behaves like Nova: it claims allocations in Placement, creates ARQs, binds them, waits
until all are resolved, and finally releases everything. It repeats a request without an answer.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import threading
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

import requests
from cloud import Cloud, Provider
from ledger import Ledger

#: Accelerators of one guest.
SIZES = (1, 2, 4)
#: Seconds between two requests of one client.
_POLL = 0.4
#: Seconds that a client waits for an answer.
_PATIENCE = 10.0


class Stopped(Exception):
    """The suite is ending."""


class Caller:
    """Sends requests to the APIs, again and again until they answer."""

    def __init__(
        self, cloud: Cloud, ledger: Ledger, stop: threading.Event, patience: float = _PATIENCE
    ) -> None:
        self.cloud = cloud
        self.ledger = ledger
        self._stop = stop
        self._patience = patience
        self._session = requests.Session()

    def ask(
        self, method: str, path: str, body: object = None, *, well: Collection[int]
    ) -> tuple[requests.Response, bool]:
        """Send a request to Cyborg until the status is in ``well``.

        Returns the answer, and whether it was the first attempt's. Any other status but 503 is
        recorded as a violation.
        """
        first = True
        while True:
            answer = self._once(method, self.cloud.url + path, body)
            if answer is None:
                self.ledger.count("API requests without an answer")
            elif answer.status_code in well:
                self.ledger.count("API requests answered")
                return answer, first
            elif answer.status_code == 503:
                self.ledger.count("API requests answered 503")
                if "losing races" in answer.text:
                    self.ledger.violate(f"{method} {path}: {answer.text}")
            else:
                what = f"{method} {path} {json.dumps(body)}: {answer.status_code} {answer.text}"
                self.ledger.violate(what[:1000])
            first = False
            self.pause()

    def _once(self, method: str, url: str, body: object) -> requests.Response | None:
        try:
            return self._session.request(method, url, json=body, timeout=self._patience)
        except requests.RequestException:
            return None

    def placement(self, method: str, path: str, body: object = None) -> requests.Response:
        """Send a request to Placement until it answers with a status below 500."""
        while True:
            with contextlib.suppress(requests.RequestException):
                answer = self.cloud.placement(method, path, body)
                if answer.status_code < 500:
                    return answer
            self.pause()

    def pause(self) -> None:
        """Wait a moment.

        :raises Stopped: the suite is ending
        """
        if self._stop.wait(_POLL):
            raise Stopped


class Guest:
    """One instance and its ARQs."""

    def __init__(self, caller: Caller, rng: random.Random, size: int) -> None:
        self.uuid = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self.size = size
        self.arqs: list[str] = []
        #: The status of each resolved ARQ's event, by the ARQ's uuid.
        self.outcome: dict[str, str] = {}
        self._caller = caller
        self._ledger = caller.ledger
        self._rng = rng
        self._providers: list[Provider] = []

    def claim(self, providers: list[Provider]) -> bool:
        """Claim accelerators of one host in Placement; False if it has not enough."""
        host = self._rng.choice(sorted({provider.hostname for provider in providers}))
        local = [provider for provider in providers if provider.hostname == host]
        self._providers = [self._rng.choice(local) for _ in range(self.size)]
        wanted = {
            provider.uuid: {"resources": {"FPGA": self._providers.count(provider)}}
            for provider in self._providers
        }
        body = {
            "allocations": wanted,
            "consumer_generation": None,
            "project_id": "p",
            "user_id": "u",
        }
        # If Placement is killed in the middle, it may have stored the consumer without its
        # allocation. It then refuses that consumer for ever, so another guest is booted.
        answer = self._caller.placement("PUT", f"/allocations/{self.uuid}", body)
        return answer.status_code == 204 or self._has_claimed()

    def _has_claimed(self) -> bool:
        """Whether Placement stored the claim although it did not answer."""
        answer = self._caller.placement("GET", f"/allocations/{self.uuid}")
        return bool(answer.json()["allocations"])

    def create(self) -> None:
        """Create the ARQs; an attempt without an answer may leave others that no client knows."""
        body = {"device_profile_name": f"chaos-{self.size}"}
        answer, _ = self._caller.ask("POST", "/accelerator_requests", body, well={201})
        self.arqs = [arq["uuid"] for arq in answer.json()["arqs"]]
        self._ledger.count("ARQs created", len(self.arqs))

    def bind(self) -> None:
        """Bind all ARQs."""
        body = {
            arq: [
                {"op": "add", "path": "/hostname", "value": provider.hostname},
                {"op": "add", "path": "/device_rp_uuid", "value": provider.uuid},
                {"op": "add", "path": "/instance_uuid", "value": self.uuid},
            ]
            for arq, provider in zip(self.arqs, self._providers, strict=True)
        }
        asked = time.monotonic()
        self._patch(body)
        self._ledger.count("binds asked for")
        if self._rng.random() < 0.1:
            self._patch(body)
        self._asked = asked

    def _patch(self, body: object) -> None:
        self._caller.ask("PATCH", "/accelerator_requests", body, well={202})

    def wait_until_resolved(self) -> None:
        """Wait until every ARQ is Bound or BindFailed, and record it."""
        self.outcome.clear()
        path = f"/accelerator_requests?instance={self.uuid}&bind_state=resolved"
        while True:
            answer, _ = self._caller.ask("GET", path, well={200, 423})
            if answer.status_code == 200:
                break
            self._caller.pause()
        self._ledger.wait(time.monotonic() - self._asked)
        arqs = answer.json()["arqs"]
        if sorted(arq["uuid"] for arq in arqs) != sorted(self.arqs):
            self._ledger.violate(f"Instance {self.uuid} has ARQs {arqs}, not {self.arqs}.")
        for arq in arqs:
            bound = arq["state"] == "Bound"
            self.outcome[arq["uuid"]] = "completed" if bound else "failed"
            if bound:
                self._ledger.bound(arq)
            else:
                self._refused(arq)

    def _refused(self, arq: dict[str, Any]) -> None:
        """Record a BindFailed ARQ; it is a violation unless the host has steps that can fail."""
        self._ledger.count("ARQs refused")
        steps = {provider.hostname for provider in self._providers if provider.steps}
        if arq["hostname"] not in steps:
            self._ledger.violate(f"Claimed but not bound: {arq}")

    def states(self) -> set[str]:
        """The present states of its ARQs."""
        path = f"/accelerator_requests?instance={self.uuid}"
        answer, _ = self._caller.ask("GET", path, well={200})
        return {arq["state"] for arq in answer.json()["arqs"]}

    def is_bound(self) -> bool:
        """Whether every ARQ was seen Bound."""
        return set(self.outcome.values()) == {"completed"}

    def wait_for_events(self, events: Events) -> None:
        """Wait until the sink has taken the event of each ARQ."""
        wanted = {(self.uuid, arq, status) for arq, status in self.outcome.items()}
        while not wanted <= events.taken().keys():
            self._caller.pause()
        self._ledger.count("events checked", len(wanted))

    def unbind(self) -> None:
        """Unbind all ARQs, and check that they are."""
        self._ledger.leaving(self.arqs)
        fields = ("/hostname", "/device_rp_uuid", "/instance_uuid")
        remove = [{"op": "remove", "path": path} for path in fields]
        self._patch(dict.fromkeys(self.arqs, remove))
        answer, _ = self._caller.ask("GET", f"/accelerator_requests/{self.arqs[0]}", well={200})
        if answer.json()["state"] != "Unbound":
            self._ledger.violate(f"Unbound, but shown as: {answer.text}")
        self._ledger.count("ARQs unbound", len(self.arqs))

    def leave(self) -> None:
        """Delete the ARQs in one of the possible ways, and release the claim."""
        self._ledger.leaving(self.arqs)
        self._rng.choice((self._delete_by_instance, self._delete_by_list, self._delete_each))()
        path = f"/accelerator_requests?instance={self.uuid}"
        answer, _ = self._caller.ask("GET", path, well={200})
        if answer.json()["arqs"]:
            self._ledger.violate(f"Deleted, but listed: {answer.text}")
        self._ledger.count("ARQs deleted", len(self.arqs))
        self.release()

    def release(self) -> None:
        """Release the claim."""
        while self._caller.placement("DELETE", f"/allocations/{self.uuid}").status_code not in {
            204,
            404,
        }:
            self._caller.pause()

    def _delete_by_instance(self) -> None:
        path = f"/accelerator_requests?instance={self.uuid}"
        self._caller.ask("DELETE", path, well={204})

    def _delete_by_list(self) -> None:
        self._delete(f"/accelerator_requests?arqs={','.join(self.arqs)}")

    def _delete_each(self) -> None:
        for arq in self.arqs:
            self._delete(f"/accelerator_requests/{arq}")

    def _delete(self, path: str) -> None:
        answer, first = self._caller.ask("DELETE", path, well={204, 404})
        if first and answer.status_code == 404:
            self._ledger.violate(f"DELETE {path}: 404 at the first time")


class Client(threading.Thread):
    """Boots one guest after the other during a storm, and completes what it has begun after it."""

    def __init__(self, caller: Caller, crowd: Crowd, seed: str) -> None:
        super().__init__(name=f"client-{seed}", daemon=True)
        self._caller = caller
        self._crowd = crowd
        self._rng = random.Random(seed)
        #: What it is doing, for messages.
        self.stage = "rests"
        #: Guests that keep their accelerators when the storm is over.
        self.asleep: list[Guest] = []

    def run(self) -> None:
        """Boot and delete guests until the suite ends."""
        with contextlib.suppress(Stopped):
            while True:
                self.stage = "rests"
                self._crowd.await_storm()
                if self.asleep and self._rng.random() < 0.5:
                    self._leave(self.asleep.pop(0))
                else:
                    self._live()

    def _live(self) -> None:
        rng = self._rng
        guest = Guest(self._caller, rng, rng.choice(SIZES))
        self.stage = f"claims for {guest.uuid}"
        if not guest.claim(self._crowd.providers):
            self._caller.ledger.count("claims refused")
            return
        self.stage = f"binds {guest.uuid}"
        guest.create()
        guest.bind()
        if rng.random() < 0.2:
            # Delete it while the bind is in progress.
            self._caller.ledger.count("guests left while being bound")
            self._leave(guest)
            return
        self._await_binding(guest)
        if guest.is_bound() and rng.random() < 0.2:
            self.stage = f"unbinds and binds {guest.uuid}"
            guest.unbind()
            guest.bind()
            self._await_binding(guest)
        if rng.random() < 0.25:
            self.asleep.append(guest)
            return
        if rng.random() < 0.5:
            self.stage = f"waits for the events of {guest.uuid}"
            guest.wait_for_events(self._crowd.events)
        self._leave(guest)

    def _await_binding(self, guest: Guest) -> None:
        self.stage = f"waits until all of {guest.uuid} is resolved"
        guest.wait_until_resolved()

    def _leave(self, guest: Guest) -> None:
        self.stage = f"deletes {guest.uuid}"
        guest.leave()


class Events:
    """The events that the sink took, read as its file grows."""

    def __init__(self, taken: Path) -> None:
        self._file = taken.open()
        self._lock = threading.Lock()
        self._partial = ""
        self._taken: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def taken(self) -> collections.Counter[tuple[str, str, str]]:
        """How often each event was taken, by instance, ARQ and status."""
        with self._lock:
            text = self._partial + self._file.read()
            *lines, self._partial = text.split("\n")
            for line in lines:
                event = json.loads(line)
                self._taken[event["server_uuid"], event["tag"], event["status"]] += 1
            return self._taken


class Crowd:
    """All clients."""

    def __init__(self, cloud: Cloud, ledger: Ledger, seed: str, number: int) -> None:
        self._storm = threading.Event()
        self._stop = threading.Event()
        self.events = Events(cloud.sink.taken)
        self.providers = cloud.providers()
        self.caller = Caller(cloud, ledger, self._stop)
        callers = [Caller(cloud, ledger, self._stop) for _ in range(number)]
        self.clients = [
            Client(caller, self, f"{seed}/{index}") for index, caller in enumerate(callers)
        ]

    def start(self) -> None:
        """Create the device profiles and start the clients, which rest at first."""
        for size in SIZES:
            group = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
            profile = {"name": f"chaos-{size}", "groups": [group] * size}
            self.caller.ask("POST", "/device_profiles", [profile], well={201})
        for client in self.clients:
            client.start()

    def storm(self) -> None:
        """Let clients boot."""
        self._storm.set()

    def calm(self) -> None:
        """Let clients complete what they have begun."""
        self._storm.clear()

    def await_storm(self) -> None:
        """Block until clients may boot.

        :raises Stopped: the suite is ending
        """
        while not self._storm.wait(0.2):
            if self._stop.is_set():
                raise Stopped

    def busy(self) -> list[str]:
        """What the clients that do not rest are doing."""
        return [client.stage for client in self.clients if client.stage != "rests"]

    def sleeping(self) -> list[Guest]:
        """The guests that keep their accelerators."""
        return [guest for client in self.clients for guest in client.asleep]

    def leave_all(self) -> None:
        """Delete every guest. All clients must rest."""
        for client in self.clients:
            while client.asleep:
                client.asleep.pop().leave()

    def stop(self) -> None:
        """Stop every client, whatever it is doing."""
        self._stop.set()
        self._storm.set()
        for client in self.clients:
            if client.is_alive():
                client.join(2 * _PATIENCE)
