# SPDX-License-Identifier: Apache-2.0
"""Placement is edited at random by others while consumers come and go.

CYBORG_TEST_EDITS is how many things happen, and CYBORG_TEST_EDITS_SEED repeats a run's chances.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import sqlite3
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db
from cyborg.audits import consistency, differences
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import client
from cyborg.tests.consumers import ask, call, look, remove, wish
from cyborg.tests.service import Site

pytestmark = pytest.mark.slow

EDITS = int(os.environ.get("CYBORG_TEST_EDITS", "60"))
SEED = int(os.environ.get("CYBORG_TEST_EDITS_SEED", "11"))
NAMES = {provider_uuid(name): name for name in ("host-1_a", "host-1_b")}
PROVIDERS = list(NAMES)


class Chaos:
    """Consumers, and those who edit Placement."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.chance = chance
        self.api = client.Client(site.conf)
        self.bodies: dict[str, dict[str, Any]] = {}
        #: What each consumer has that was given something, until it gives that back.
        self.given: dict[str, list[Any]] = {}
        self.thieves: list[str] = []
        self.backup = sqlite3.connect(":memory:", check_same_thread=False)
        self.back_up()
        self.done: collections.Counter[str] = collections.Counter()
        parent = site.placement.call("GET", f"/resource_providers/{PROVIDERS[0]}")
        self.root = parent["parent_provider_uuid"]

    def step(self) -> None:
        """Let one thing happen; Placement may refuse an edit."""
        consumers, edits = [self.come, self.again, self.leave], [
            self.lose,
            self.change,
            self.steal,
            self.rob,
            self.rob,
            self.return_stolen,
            self.edit_inventory,
            self.edit_traits,
            self.recreate,
            self.impersonate,
            self.back_up,
            self.restore,
        ]
        what = self.chance.choice(self.chance.choice([consumers, edits]))
        if what in consumers:
            what()
        else:
            with contextlib.suppress(AssertionError, client.RequestRefused, LookupError):
                what()
        self.done[what.__name__] += 1

    # Consumers.

    def come(self) -> None:
        """A new consumer asks for something; it is given that, or told why not."""
        consumer = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        count = self.chance.choice([1, 1, 2])
        body = wish(
            consumer, parts=[{"device_profile_name": "p", "count": count}], lease_seconds=3600
        )
        answer = ask(self.site, "POST", "", body)
        found = answer.json()
        if answer.status_code != 202:
            # The latter once, where a backup is older than a trait.
            assert answer.status_code == 409 or "No such trait" in answer.text, found
            return
        if found["state"] == "Active":
            self.bodies[consumer], self.given[consumer] = body, found["accelerators"]
        else:
            assert found["state_reason"], found

    def again(self) -> None:
        """A consumer asks again for what it has, or renews it."""
        if self.given:
            consumer = self.chance.choice(sorted(self.given))
            if self.chance.random() < 0.5:
                call(self.site, "POST", f"/{consumer}/renew", {})
            else:
                call(self.site, "POST", "", self.bodies[consumer])

    def leave(self) -> None:
        """A consumer gives back what it has."""
        if self.given:
            consumer = self.chance.choice(sorted(self.given))
            del self.given[consumer]
            call(self.site, "DELETE", f"/{consumer}")

    # Others.

    def _anybody(self) -> str:
        return self.chance.choice([*sorted(self.given), *self.thieves])

    def lose(self) -> None:
        """As ``nova-manage placement audit --delete``."""
        self.site.placement.call("DELETE", f"/allocations/{self._anybody()}")

    def change(self) -> None:
        """Have a consumer hold another amount, perhaps elsewhere, or for another owner."""
        consumer = self.chance.choice(sorted(self.given))
        found = self.api.find_allocations(consumer)
        who = [f"{client.OWN_TYPES}OTHER", "INSTANCE"]
        owner = client.Owner(
            project_id=self.chance.choice(["p", "project-1"]),
            user_id="u",
            consumer_type=self.chance.choice(who),
        )
        amounts = {self.chance.choice(PROVIDERS): {"FPGA": self.chance.randint(1, 3)}}
        self.api.hold(consumer, owner, amounts, found.generation if found else None)

    def steal(self) -> None:
        """Somebody who asks for no handle claims what is offered."""
        thief = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        provider, amount = self.chance.choice(PROVIDERS), self.chance.randint(1, 3)
        if self.site.placement.claims(thief, provider, FPGA=amount):
            self.thieves.append(thief)

    def rob(self) -> None:
        """Somebody claims all that is offered when a consumer's claim is gone."""
        consumer = self.chance.choice(sorted(self.given))
        provider = self.given[consumer][0]["device_rp_uuid"]
        self.site.placement.release(consumer)
        thief = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        for amount in (4, 3, 2, 1):
            if self.site.placement.claims(thief, provider, FPGA=amount):
                self.thieves.append(thief)
                return

    def return_stolen(self) -> None:
        while self.thieves:
            self.site.placement.release(self.thieves.pop())

    def edit_inventory(self) -> None:
        what = self.chance.choice([{"total": 1}, {"total": 9}, {"total": 4, "reserved": 4}, None])
        classes = {} if what is None else {"FPGA": what}
        self.site.placement.set_inventories(self.chance.choice(PROVIDERS), **classes)

    def edit_traits(self) -> None:
        traits = self.chance.choice([(), ("CUSTOM_OTHERS",)])
        self.site.placement.set_traits(self.chance.choice(PROVIDERS), *traits)

    def recreate(self) -> None:
        """Remove a provider, and perhaps make it anew with what it may not offer."""
        provider = self.chance.choice(PROVIDERS)
        remove(self.site, provider)
        if self.chance.random() < 0.5:
            body = {"uuid": provider, "name": NAMES[provider], "parent_provider_uuid": self.root}
            self.site.placement.call("POST", "/resource_providers", body)
            self.site.placement.set_inventories(provider, FPGA={"total": 4})

    def impersonate(self) -> None:
        """Make a provider anew with another uuid, which an operator notices after a while."""
        provider = self.chance.choice(PROVIDERS)
        remove(self.site, provider)
        self.site.placement.make_provider(NAMES[provider], self.root)

    def expose(self) -> None:
        """Remove providers and traits that are not ours."""
        listed = self.site.placement.call("GET", "/resource_providers")["resource_providers"]
        for each in listed:
            if each["uuid"] not in NAMES and each["name"] in NAMES.values():
                self.site.placement.call("DELETE", f"/resource_providers/{each['uuid']}")
            elif each["uuid"] in NAMES:
                path = f"/resource_providers/{each['uuid']}/traits"
                traits = self.site.placement.call("GET", path)["traits"]
                ours = [name for name in traits if name != "CUSTOM_OTHERS"]
                self.site.placement.set_traits(each["uuid"], *ours)

    def back_up(self) -> None:
        with contextlib.closing(sqlite3.connect(self.site.placement.database)) as now:
            now.backup(self.backup)

    def restore(self) -> None:
        with contextlib.closing(sqlite3.connect(self.site.placement.database)) as now:
            self.backup.backup(now)

    # What must be true in the end.

    def held(self) -> dict[str, int]:
        """How many handles of each provider are held, of those that there are."""
        handle, deployable = models.AttachHandle, models.Deployable
        query = sa.select(deployable.rp_uuid, sa.func.count()).group_by(deployable.rp_uuid)
        query = query.join(handle, handle.deployable_id == deployable.id)
        with db.reader() as session:
            rows = session.execute(query.join(models.Arq, models.Arq.attach_handle_id == handle.id))
            return {row[0]: row[1] for row in rows}

    def check(self) -> None:
        """Compare what is held, what is claimed and what is offered."""
        handles = [each["arq_uuid"] for given in self.given.values() for each in given]
        assert sorted(handles) == sorted(self.site.held())
        infos = [str(each["attach_handle_info"]) for given in self.given.values() for each in given]
        assert len(set(infos)) == len(infos)
        held, claims = self.held(), {uuid_: self.api.allocations(uuid_) for uuid_ in PROVIDERS}
        for provider, of_consumers in claims.items():
            ((total, reserved),) = self.site.placement.offered(provider).values()
            used = {uuid_: sum(each.values()) for uuid_, each in of_consumers.items()}
            ours = sum(amount for uuid_, amount in used.items() if uuid_ in self.given)
            assert ours + reserved >= held.get(provider, 0)
            assert total - reserved - sum(used.values()) <= total - held.get(provider, 0)
        for consumer, given in self.given.items():
            self.check_consumer(consumer, given, claims)
        assert consistency.violations() == []

    def check_consumer(
        self, consumer: str, given: list[Any], claims: dict[str, dict[str, dict[str, int]]]
    ) -> None:
        """It has what it was given, and its claim; or it is told, and others have the room."""
        found = call(self.site, "GET", f"/{consumer}")
        assert (found["state"], found["accelerators"]) == ("Active", given)
        wanted = collections.Counter(each["device_rp_uuid"] for each in given)
        claim = self.api.find_allocations(consumer)
        if claim is not None and claim.owner.is_ours:
            has = {uuid_: each.get("FPGA") for uuid_, each in claim.amounts.items()}
            if has == wanted:
                return
        path = f"/history?kind=claim_lost&instance_uuid={consumer}"
        assert self.site.call("GET", path, version="2.4")["history"]
        others = {
            provider: sum(sum(each.values()) for each in claims[provider].values())
            - sum(claims[provider].get(consumer, {}).values())
            for provider in wanted
        }
        totals = {uuid_: self.site.placement.offered(uuid_)["FPGA"][0] for uuid_ in wanted}
        assert any(others[each] + wanted[each] > totals[each] for each in wanted)

    def check_repairs(self) -> None:
        """Nobody is advised to end what runs."""
        for found in differences.find(self.site.conf, settle=0):
            if found.plan is not None and found.sentence.split()[1] in self.given:
                assert "an allocation of Cyborg's own: a conductor" in found.plan().explanation


@pytest.fixture
def chaos(rack: Site) -> Iterator[Chaos]:
    rack.conf.set_override("allocation_audit_interval", 600, group="conductor")
    rack.conf.set_override("placement_audit_interval", 3600, group="conductor")
    one = Chaos(rack, random.Random(SEED))
    yield one
    one.backup.close()


def test_what_is_held_is_claimed_or_reserved_whatever_others_do_to_placement(chaos: Chaos) -> None:
    for number in range(EDITS):
        chaos.step()
        if number % 15 == 14:
            settle(chaos)
            chaos.check()
            chaos.check_repairs()
    chaos.return_stolen()
    settle(chaos)
    chaos.check()
    assert len(chaos.done) > EDITS // 12


def settle(chaos: Chaos) -> None:
    """Nobody edits any more, and the audits have had their turns."""
    chaos.site.hurry(lambda: exposed(chaos))
    for _ in range(3):
        look(chaos.site)


def exposed(chaos: Chaos) -> bool:
    """Whether what is not ours is gone; a conductor may change the same at that moment."""
    try:
        chaos.expose()
    except AssertionError:
        return False
    return True
