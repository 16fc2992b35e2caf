# SPDX-License-Identifier: Apache-2.0
"""Consumers that come at the same time, for as many handles as there are."""

from __future__ import annotations

import functools
import time
import uuid
from concurrent import futures

import pytest

from cyborg.handles import release
from cyborg.policy import context
from cyborg.states import allocation_states as states
from cyborg.tests import boots, hosts
from cyborg.tests.consumers import FPGA, ask, before_the_claim, call, claimed, profile, wish
from cyborg.tests.service import PATIENCE, Site, until

pytestmark = pytest.mark.slow

ROUNDS = 6


@pytest.fixture
def crowded(site: Site) -> Site:
    """A host with two cards of four accelerators that it prepares and cleans."""
    profile(site)
    site.start(devices=2, handles_per_device=4, host_step=True)
    until(lambda: len(site.placement.candidates("FPGA")) == 2 and site.idle())
    return site


def is_active(site: Site, consumer: str) -> bool:
    return bool(call(site, "GET", f"/{consumer}")["state"] == states.ACTIVE)


@pytest.mark.every_database
def test_as_many_consumers_as_handles_are_all_served(crowded: Site) -> None:
    """A round begins when the handles of the one before are clean."""
    for _ in range(ROUNDS):
        bodies = [wish() for _ in range(8)]
        with futures.ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda body: ask(crowded, "POST", "", body), bodies))
            assert [each.text for each in answers if each.status_code != 202] == []
            consumers = [str(each.json()["uuid"]) for each in answers]
            for consumer in consumers:
                until(functools.partial(is_active, crowded, consumer))
            assert len(crowded.held()) == len(consumers)
            list(pool.map(lambda consumer: call(crowded, "DELETE", f"/{consumer}"), consumers))
        until(crowded.idle)


def test_a_claim_without_a_handle_waits_for_one(site: Site, ctx: context.RequestContext) -> None:
    """As long as the request does; the last handle is held without a claim, for a moment."""
    profile(site)
    site.start_with(hosts.card("a", range(1)))
    arqs = boots.arqs(ctx)
    before_the_claim(site, lambda: boots.bind(ctx, arqs, str(uuid.uuid4())))
    body = wish(groups=[FPGA])
    with futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, site, "POST", "", body)
        until(site.held)
        time.sleep(0.5)
        release.delete_arqs(ctx, arqs)
        answer = asked.result(PATIENCE)
    assert (answer.status_code, answer.json()["state"]) == (202, states.ACTIVE)
    assert len(claimed(site, answer.json()["uuid"])) == 1


def test_a_claim_waits_no_longer_than_its_request(site: Site, ctx: context.RequestContext) -> None:
    site.conf.set_override("bind_wait", 2.0, group="api")
    profile(site)
    site.start_with(hosts.card("a", range(1)))
    before_the_claim(site, lambda: boots.ask(ctx))
    body = wish(groups=[FPGA])
    assert ask(site, "POST", "", body).status_code in {202, 409}
    consumer = body["consumer"]["uuid"]
    found = until(lambda: site.hurry(site.idle) and call(site, "GET", f"/{consumer}"))
    assert found["state"] == states.FAILED
    assert "has no free attach handle" in found["state_reason"]
    assert claimed(site, consumer) == {}
