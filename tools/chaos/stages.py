# SPDX-License-Identifier: Apache-2.0
"""The stages without random faults: many boots at once, and binds without RabbitMQ."""

from __future__ import annotations

import random
import threading
from concurrent import futures

from cloud import DEVICES, HANDLES, HOSTS, Cloud, Provider
from guests import SIZES, Caller, Guest
from ledger import Ledger

#: Accelerators of each guest; all guests together need every accelerator.
SIZE = max(SIZES)
#: Seconds within which every request is answered, even on a busy machine.
PATIENCE = 60.0
BOOTS = len(HOSTS) * DEVICES * HANDLES // SIZE


def boot_all_at_once(cloud: Cloud, ledger: Ledger, seed: str) -> None:
    """Boot guests in parallel until no accelerator is free, then delete all; none may fail."""
    before = ledger.counts.copy()
    providers = cloud.providers() * (HANDLES // SIZE)
    gate = threading.Barrier(len(providers))

    def boot(number: int) -> Guest:
        guest = _guest(cloud, ledger, f"{seed}/boot/{number}")
        guest.claim([providers[number]])
        gate.wait()
        guest.create()
        guest.bind()
        guest.wait_until_resolved()
        return guest

    with futures.ThreadPoolExecutor(len(providers)) as pool:
        guests = list(pool.map(boot, range(len(providers))))
        bound = sum(len(guest.arqs) for guest in guests if guest.is_bound())
        handles = set(ledger.handles().values())
        if not bound == len(handles) == BOOTS * SIZE:
            ledger.violate(f"{bound} ARQs Bound, {len(handles)} handles, of {BOOTS * SIZE}.")
        list(pool.map(Guest.leave, guests))
    for what in ("API requests without an answer", "API requests answered 503"):
        if ledger.counts[what] != before[what]:
            ledger.violate(f"{what}, although nothing was broken")


def bind_without_broker(cloud: Cloud, ledger: Ledger, seed: str) -> None:
    """Bind while RabbitMQ is down: at once without a host step, with one when RabbitMQ is back."""
    by_steps: dict[bool, list[Provider]] = {True: [], False: []}
    for provider in cloud.providers():
        by_steps[provider.steps].append(provider)
    plain, stepped = (_guest(cloud, ledger, f"{seed}/without-broker/{n}") for n in (1, 2))
    cloud.servers.run("rabbitmqctl", "stop_app")
    try:
        for guest, steps in ((stepped, True), (plain, False)):
            guest.claim(by_steps[steps])
            guest.create()
            guest.bind()
        plain.wait_until_resolved()
        if not plain.is_bound():
            ledger.violate("Without RabbitMQ, an ARQ that needs no host step is not Bound.")
        if stepped.states() != {"BindStarted"}:
            ledger.violate("Without RabbitMQ, an ARQ that needs a host step is not BindStarted.")
    finally:
        cloud.servers.run("rabbitmqctl", "start_app")
    stepped.wait_until_resolved()
    if not stepped.is_bound():
        ledger.violate("With RabbitMQ back, an ARQ that needs a host step is not Bound.")
    plain.leave()
    stepped.leave()


def _guest(cloud: Cloud, ledger: Ledger, seed: str) -> Guest:
    caller = Caller(cloud, ledger, threading.Event(), PATIENCE)
    return Guest(caller, random.Random(seed), SIZE)
