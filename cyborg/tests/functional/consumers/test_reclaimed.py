# SPDX-License-Identifier: Apache-2.0
"""Consumers whose claim in Placement is lost or changed by others: Cyborg claims it again."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from cyborg import work
from cyborg.audits import differences
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import client
from cyborg.tests.consumers import FPGA, call, claimed, look, refusal, remove, wish
from cyborg.tests.named_devices import device
from cyborg.tests.service import Site

pytestmark = pytest.mark.slow

A, B = provider_uuid("host-1_a"), provider_uuid("host-1_b")
CONSUMER = "c0000000-0000-4000-8000-000000000001"
#: Two accelerators of the larger card, and one of the other.
BODY = wish(
    CONSUMER,
    lease_seconds=3600,
    parts=[
        {"groups": [{"resources:FPGA": "2"}], "device_rp_uuid": A},
        {"groups": [FPGA], "device_rp_uuid": B},
    ],
)
WANTED = {A: {"FPGA": 2}, B: {"FPGA": 1}}


def post(site: Site, body: dict[str, Any]) -> Any:
    answer = site.ask("POST", "/allocations", body, "latest")
    assert answer.status_code == 202, answer.text
    return answer.json()


def handles_of(allocation: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["arq_uuid"], each["attach_handle_uuid"]) for each in allocation["accelerators"]]


@pytest.fixture
def job(rack: Site) -> Iterator[Site]:
    """A consumer with all that it has asked for, which it has in the end too."""
    rack.conf.set_override("allocation_audit_interval", 600, group="conductor")
    found = post(rack, BODY)
    assert found["state"] == "Active", found
    yield rack
    again = call(rack, "GET", f"/{CONSUMER}")
    assert again["state"] == "Active"
    assert handles_of(again) == handles_of(found)


def held(site: Site) -> client.Holdings | None:
    return client.Client(site.conf).find_allocations(CONSUMER)


def amounts(site: Site) -> Mapping[str, Mapping[str, int]] | None:
    """What the consumer has in Placement, if it has anything."""
    found = held(site)
    return None if found is None else found.amounts


def change(site: Site, wanted: dict[str, dict[str, int]], **owner: str) -> None:
    """Have the consumer hold something else in Placement, perhaps for another owner."""
    found = held(site)
    assert found is not None
    new = dataclasses.replace(found.owner, **owner)
    client.Client(site.conf).hold(CONSUMER, new, wanted, found.generation)


def recreate(site: Site) -> None:
    """An operator makes a provider anew, with nothing on it."""
    parent = site.placement.call("GET", f"/resource_providers/{A}")["parent_provider_uuid"]
    remove(site, A)
    body = {"name": "host-1_a", "uuid": A, "parent_provider_uuid": parent}
    site.placement.call("POST", "/resource_providers", body)


def rename(site: Site) -> None:
    remove(site, A)
    remove(site, B)


@contextlib.contextmanager
def backed_up(site: Site) -> Iterator[None]:
    """Placement is restored at the end of the block as it was at its beginning."""
    with contextlib.closing(sqlite3.connect(":memory:")) as backup:
        with contextlib.closing(sqlite3.connect(site.placement.database)) as now:
            now.backup(backup)
        yield
        with contextlib.closing(sqlite3.connect(site.placement.database)) as now:
            backup.backup(now)


#: What others do to the claim.
LOSSES: dict[str, Callable[[Site], None]] = {
    "all of it": lambda site: site.placement.release(CONSUMER),
    "a provider of it": lambda site: change(site, {A: {"FPGA": 2}}),
    "a part of an amount": lambda site: change(site, {A: {"FPGA": 1}, B: {"FPGA": 1}}),
    "more than it has": lambda site: change(site, {A: {"FPGA": 3}, B: {"FPGA": 1}}),
    "elsewhere": lambda site: change(site, {A: {"FPGA": 3}}),
    "another type": lambda site: change(site, WANTED, consumer_type="INSTANCE"),
    "a type of ours": lambda site: change(site, WANTED, consumer_type="CYBORG_JOB"),
    "another project": lambda site: change(site, WANTED, project_id="other"),
    "a provider made anew": recreate,
    "all providers removed": rename,
}
TRIGGERS: dict[str, Callable[[Site], object]] = {
    "audit": look,
    "renewal": lambda site: call(site, "POST", f"/{CONSUMER}/renew", {}),
    "request": lambda site: post(site, BODY),
}


def test_what_is_lost_is_claimed_again(job: Site) -> None:
    before = held(job)
    # By the audit whatever is lost, and by each of the others some of that.
    turns = [("audit", loss) for loss in LOSSES]
    turns += [(trigger, loss) for trigger in ("renewal", "request") for loss in [*LOSSES][:3]]
    for number, (trigger, loss) in enumerate(turns, start=1):
        LOSSES[loss](job)
        TRIGGERS[trigger](job)
        job.hurry(job.idle)
        if "provider" in loss:
            # It is made first.
            look(job)
            look(job)
        found = held(job)
        assert before is not None
        assert found is not None, loss
        assert (found.amounts, found.owner) == (WANTED, before.owner), loss
        assert len(told(job)) >= number, loss
        assert job.placement.offered(A) == {"FPGA": (4, 0)}, loss


def told(site: Site) -> list[str]:
    """What the history says of the consumer's claim."""
    path = f"/history?kind=claim_lost&instance_uuid={CONSUMER}"
    return [each["reason"] for each in site.call("GET", path, version="2.4")["history"]]


def free(site: Site, provider: str) -> int:
    """How much Placement would still give of a provider."""
    ((total, reserved),) = site.placement.offered(provider).values()
    has = client.Client(site.conf).allocations(provider).values()
    return total - reserved - sum(sum(amounts.values()) for amounts in has)


def test_who_has_the_handle_keeps_it_though_another_has_its_room(job: Site) -> None:
    thief = str(uuid.uuid4())
    job.placement.release(CONSUMER)
    job.placement.allocate(thief, A, FPGA=3)
    for _ in range(2):
        look(job)
        assert amounts(job) is None
        assert (free(job, A), free(job, B)) == (-1, 1)
    # The rest is claimed by whom it is offered to, and no more.
    (reason,) = told(job)
    assert "Placement had nothing of nobody for it, and says now:" in reason
    refusal(job, wish(groups=[FPGA, FPGA]))
    assert call(job, "POST", "", wish(groups=[FPGA]))["state"] == "Active"
    found = differences.find(job.conf, settle=0)
    plan = [each.plan for each in found if CONSUMER in each.sentence][-1]
    assert plan is not None
    repair = plan()
    assert "delete" not in repair.explanation
    assert repair.carry_out is not None
    assert repair.carry_out() == "Done."
    assert work.is_wanted(work.ALLOCATE, CONSUMER)
    job.hurry(job.idle)
    assert amounts(job) is None

    job.placement.release(thief)
    look(job)
    assert amounts(job) == WANTED
    assert (free(job, A), free(job, B)) == (2, 0)
    assert job.placement.offered(A) == {"FPGA": (4, 0)}


def test_what_nobody_claims_is_reserved_and_a_disabled_device_offers_nothing(job: Site) -> None:
    thief = str(uuid.uuid4())
    change(job, {A: {"FPGA": 1}, B: {"FPGA": 1}})
    job.placement.allocate(thief, A, FPGA=3)
    look(job)
    assert job.placement.offered(A) == {"FPGA": (4, 1)}
    assert job.placement.offered(B) == {"FPGA": (2, 0)}
    job.placement.release(thief)
    look(job)
    assert job.placement.offered(A) == {"FPGA": (4, 0)}

    flags.disable_device(device("a"))
    job.hurry(job.idle)
    job.placement.release(CONSUMER)
    look(job)
    assert amounts(job) == WANTED
    assert job.placement.offered(A) == {"FPGA": (4, 4)}


def test_a_placement_that_is_restored_says_what_is_held(rack: Site) -> None:
    rack.conf.set_override("allocation_audit_interval", 600, group="conductor")
    late = wish(groups=[FPGA])
    post(rack, BODY)
    with backed_up(rack):
        call(rack, "DELETE", f"/{CONSUMER}")
        rack.hurry(rack.idle)
        remove(rack, A)
        look(rack)
        assert post(rack, late)["state"] == "Active"
    for _ in range(2):
        look(rack)
    consumer = late["consumer"]["uuid"]
    assert sum(sum(each.values()) for each in claimed(rack, consumer).values()) == 1
    rack.placement.release(CONSUMER)
