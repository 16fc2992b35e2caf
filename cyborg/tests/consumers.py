# SPDX-License-Identifier: Apache-2.0
"""Consumers of accelerators, and what they ask for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import requests

from cyborg import db
from cyborg.audits import lost_allocations
from cyborg.db import models
from cyborg.placement import audit
from cyborg.tests.service import PATIENCE, USER_TOKEN, Site

VERSION = "2.4"
FPGA = {"resources:FPGA": "1"}


def ask(site: Site, method: str, path: str = "", body: object = None) -> requests.Response:
    return site.ask(method, f"/allocations{path}", body, VERSION)


def call(site: Site, method: str, path: str = "", body: object = None) -> Any:
    return site.call(method, f"/allocations{path}", body, VERSION)


def as_member(
    site: Site, method: str, path: str = "", body: object = None, *, below: str = "/allocations"
) -> requests.Response:
    """The same as a user who is no administrator."""
    headers = {"OpenStack-API-Version": f"accelerator {VERSION}", "X-Auth-Token": USER_TOKEN}
    url = f"{site.endpoint}{below}{path}"
    return requests.request(method, url, json=body, headers=headers, timeout=PATIENCE)


def refusal(site: Site, body: object, status: int = 409) -> str:
    """The sentence for an administrator who is refused an allocation."""
    answer = ask(site, "POST", "", body)
    assert answer.status_code == status, answer.text
    return answer.text


def leave(site: Site, consumer: str) -> None:
    """Delete an allocation, of which nothing is claimed any more."""
    call(site, "DELETE", f"/{consumer}")
    site.hurry(site.idle)
    assert claimed(site, consumer) == {}


def wish(consumer: str | None = None, **fields: object) -> dict[str, Any]:
    who = {"uuid": consumer or str(uuid.uuid4()), "type": "PROXY", "name": "edge"}
    return {"consumer": who, **(fields or {"device_profile_name": "p"})}


def profile(site: Site, *groups: dict[str, str], name: str = "p") -> None:
    body = [{"name": name, "groups": [FPGA | group for group in groups or ({},)]}]
    site.call("POST", "/device_profiles", body)


def claimed(site: Site, consumer: str) -> dict[str, dict[str, int]]:
    """What the consumer has in Placement."""
    found = site.placement.call("GET", f"/allocations/{consumer}")["allocations"]
    return {provider: held["resources"] for provider, held in found.items()}


def remove(site: Site, provider: str) -> None:
    """An operator removes a provider with all that is claimed of it."""
    path = f"/resource_providers/{provider}"
    for consumer in site.placement.call("GET", f"{path}/allocations")["allocations"]:
        site.placement.call("DELETE", f"/allocations/{consumer}")
    site.placement.call("DELETE", path)


def before_the_claim(site: Site, change: Callable[[], object]) -> None:
    """Make a change between the choice of a place and the first claim."""
    done: list[str] = []

    def once(method: str, path: str) -> None:
        if method == "PUT" and path.startswith("/allocations/") and not done:
            done.append(path)
            change()

    site.placement.before = once


def look(site: Site) -> None:
    """Do what conductors do when the intervals of both audits have passed."""
    with db.writer() as session:
        db.update(session, models.Host, allocations_ms=0, audited_ms=0)
    lost_allocations.take_turns(site.conf)
    audit.take_turns(site.conf)
    site.hurry(site.idle)
