# SPDX-License-Identifier: Apache-2.0
"""Nova's side: its own client class, configured and driven as its services do it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest

from cyborg.db import models
from cyborg.tests import hosts, service
from cyborg.tests.novasink import NovaSink

Arq = dict[str, Any]

USER = {
    "user_id": "user-2",
    "project_id": service.USER_PROJECT,
    "auth_token": service.USER_TOKEN,
}


class NovaError(Exception):
    """An exception of Nova's, with the name of its class."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(f"{kind}: {sentence}")
        self.kind = kind


class Client:
    """Nova's client class in a process of its own; its methods are this object's."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "cyborg.tests.nova_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
            if "error" in answer:
                raise NovaError(answer["error"], answer["sentence"])
            return answer["value"]

        return call

    def stop(self) -> None:
        """End the process."""
        self._process.communicate(timeout=service.PATIENCE)


class Compute:
    """Nova's conductor and compute service, as far as they use Cyborg.

    A user who is a member of one project asks them for instances.
    """

    def __init__(self, site: service.Site, sink: NovaSink, client: Client) -> None:
        self.client = client
        self._site = site
        self._sink = sink
        self.configure()

    def configure(self, *, service_tokens: bool = True) -> None:
        """Begin a request of the user's."""
        options = {
            "cyborg": {"endpoint_override": self._site.endpoint},
            "service_user": {"auth_type": "none", "send_service_user_token": service_tokens},
        }
        self.client.configure(options, USER)

    def make_profile(self, *groups: Mapping[str, str]) -> str:
        """Have an administrator make a device profile; its name."""
        name = f"dp-{models.new_uuid()}"
        self._site.call("POST", "/device_profiles", [{"name": name, "groups": list(groups)}])
        return name

    def offers(self, profile: str) -> list[dict[str, Any]]:
        """What Placement offers for the profile, as the scheduler asks for it."""
        groups = self.client.get_device_profile_request_groups(profile)
        query = ["group_policy=none"] if len(groups) > 1 else []
        for group in groups:
            resources = ",".join(f"{name}:{n}" for name, n in group["resources"].items())
            query.append(f"resources_{group['requester_id']}={resources}")
            traits = [*group["required_traits"], *(f"!{t}" for t in group["forbidden_traits"])]
            query += [f"required_{group['requester_id']}={','.join(traits)}"] if traits else []
        found = self._site.placement.call("GET", f"/allocation_candidates?{'&'.join(query)}")
        offers: list[dict[str, Any]] = found["allocation_requests"]
        return offers

    def schedule(self, profile: str, instance: str) -> dict[str, list[str]] | None:
        """Claim what the profile asks for in Placement, as the scheduler does.

        The provider chosen for each request group, or None where Placement offers none.
        """
        offers = self.offers(profile)
        if not offers:
            return None
        chosen = offers[0]
        claim = {"consumer_generation": None, "project_id": "p", "user_id": "u"}
        self._site.placement.call("PUT", f"/allocations/{instance}", chosen | claim)
        return {group.removeprefix("_"): found for group, found in chosen["mappings"].items()}

    def request(
        self, profile: str, instance: str, mapping: Mapping[str, list[str]] | None = None
    ) -> list[str]:
        """What the conductor does before it calls compute: make ARQs and have them bound.

        Without ``mapping`` the scheduler makes one.
        """
        mapping = mapping or self.schedule(profile, instance)
        assert mapping, "Placement offers nothing"
        arqs = self.client.create_arqs_and_match_resource_providers(profile, mapping)
        bindings = {
            arq["uuid"]: {
                "hostname": hosts.ROOT,
                "device_rp_uuid": arq["device_rp_uuid"],
                "instance_uuid": instance,
            }
            for arq in arqs
        }
        self.client.bind_arqs(bindings)
        return list(bindings)

    def wait(self, instance: str, uuids: Collection[str]) -> list[Arq]:
        """What compute does before it spawns: wait for the events of all, then get the ARQs."""
        service.until(lambda: self._sink.events.keys() >= set(uuids))
        arqs: list[Arq] = self.client.get_arqs_for_instance(instance, True)
        return arqs

    def give_up(self, instance: str, uuids: Collection[str]) -> list[Arq]:
        """The same where a bind fails: compute is shown no ARQs, so the guest is not spawned."""
        with pytest.raises(NovaError, match="AcceleratorRequestOpFailed"):
            self.wait(instance, uuids)
        return [self.client.get_arq_by_uuid(uuid) for uuid in uuids]

    def boot(self, profile: str, instance: str) -> list[Arq]:
        """Both, one after the other."""
        return self.wait(instance, self.request(profile, instance))

    def delete(self, instance: str) -> None:
        """What compute does for a guest that is gone."""
        self.client.delete_arqs_for_instance(instance)
        self._site.placement.release(instance)


@pytest.fixture(scope="session")
def nova_client() -> Iterator[Client]:
    """Nova takes seconds to load: one process for all tests."""
    client = Client()
    yield client
    client.stop()


@pytest.fixture
def compute(site: service.Site, sink: NovaSink, nova_client: Client) -> Compute:
    """Nova, configured to find Cyborg at the site and to send service tokens."""
    return Compute(site, sink, nova_client)
