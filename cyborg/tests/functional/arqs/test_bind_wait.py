# SPDX-License-Identifier: Apache-2.0
"""A list of an instance's ARQs waits for binds that are under way, as Nova needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import webob
from oslo_config import cfg

from cyborg.arqs import service
from cyborg.db import models
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

#: Answers a query, of Nova or somebody else.
Ask = Callable[..., webob.Response]
#: Shows the ARQs that a query finds, to Nova or to somebody else.
Get = Callable[..., list[dict[str, Any]]]


class Clock:
    """Time that passes only while somebody sleeps, in whose sleeps ``meanwhile`` happens."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    return clock


@pytest.fixture
def instance(ctx: context.RequestContext) -> str:
    """An instance whose two ARQs wait for a conductor to bind them."""
    hosts.apply(hosts.card(program_mode="dynamic"))
    return boots.ask(ctx, 2)


@pytest.fixture
def ask(conf: cfg.ConfigOpts) -> Ask:
    conf.set_override("auth_strategy", "noauth", group="api")
    # One request may wait.
    conf.set_override("threads", 2, group="api")
    api = Api(conf)

    def ask(query: str, *, service: str = "service") -> webob.Response:
        who = {"x_roles": "admin,reader", "x_project_id": "admin", "x_service_roles": service}
        return api.ask("GET", f"/v2/accelerator_requests?{query}", version="2.0", **who)

    return ask


@pytest.fixture
def get(ask: Ask) -> Get:
    def get(query: str, *, service: str = "service") -> list[dict[str, Any]]:
        answer = ask(query, service=service)
        assert answer.status_int == 200, answer.text
        arqs: list[dict[str, Any]] = answer.json["arqs"]
        return arqs

    return get


def states(arqs: list[dict[str, Any]]) -> list[str]:
    return [arq["state"] for arq in arqs]


@pytest.mark.every_database
def test_it_answers_what_is_bound_meanwhile(conf, clock, get, instance) -> None:
    clock.meanwhile = lambda: engine.drain(conf)
    arqs = get(f"instance={instance}")
    assert states(arqs) == [models.BOUND] * 2
    assert all(arq["attach_handle_info"] for arq in arqs)
    slept = clock.now
    assert 0 < slept < conf.api.bind_wait

    assert get(f"instance={instance}") == arqs
    assert clock.now == slept


@pytest.mark.parametrize("early", [True, False])
def test_what_fails_is_not_shown_as_decided(conf, clock, ask, ctx, early) -> None:
    """Nova would start the server without its device."""
    hosts.apply(hosts.card(program_mode="dynamic"))
    instance = boots.ask(ctx, 9)
    if early:
        engine.drain(conf)
    clock.meanwhile = lambda: engine.drain(conf)

    answer = ask(f"instance={instance}")

    assert answer.status_int == 409
    assert f"of instance {instance} could not be bound: Provider" in answer.text
    assert (clock.now == 0) is early
    assert clock.now < conf.api.bind_wait
    whole = f"instance={instance}"
    for query, who in ((whole, ""), (f"{whole}&bind_state=resolved", "service")):
        arqs = ask(query, service=who).json["arqs"]
        assert set(states(arqs)) == {models.BOUND, models.BIND_FAILED}


def test_only_a_service_that_asks_for_one_instance_waits(conf, clock, get, instance) -> None:
    mine = f"instance={instance}"
    for query, service_role in ((mine, ""), ("", "service")):
        assert states(get(query, service=service_role)) == [models.BIND_STARTED] * 2
    assert get(f"instance={models.new_uuid()}") == []
    conf.set_override("bind_wait", 0, group="api")
    assert states(get(mine)) == [models.BIND_STARTED] * 2
    assert clock.now == 0
    conf.clear_override("bind_wait", group="api")

    # It is answered what there is when its time is over. The request's own time counts, too.
    assert states(get(mine)) == [models.BIND_STARTED] * 2
    assert conf.api.bind_wait - 2 < clock.now <= conf.api.bind_wait


def test_those_who_wait_leave_threads_to_others(clock: Clock, get: Get, instance: str) -> None:
    """While half of them wait, whoever else asks is answered at once."""
    others: list[list[str]] = []

    def ask() -> None:
        others.append(states(get(f"instance={instance}")))

    def meanwhile() -> None:
        clock.meanwhile = lambda: None
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        others.append([str(clock.now)])

    clock.meanwhile = meanwhile
    get(f"instance={instance}")
    # At the first wait, of which the other one has not made another.
    assert others == [[models.BIND_STARTED] * 2, [str(service._FIRST_PAUSE)]]

    before = clock.now
    get(f"instance={instance}")
    assert clock.now > before
