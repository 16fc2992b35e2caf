# SPDX-License-Identifier: Apache-2.0
"""Function pools with everything real behind them but the cards: Glance, Placement, an agent."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import hosts
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import NAME, Site, until

pytestmark = pytest.mark.slow

AES, ZIP = "aes-128", "zip-9"
AES_TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"
CARDS = [NAME, *(f"{NAME}_{number}" for number in range(1, 6))]


class Rack:
    """Six fake cards of two slots each, which offer what runs on them."""

    def __init__(self, site: Site, images: GlanceServer) -> None:
        self.site = site
        for function in (AES, ZIP):
            data = json.dumps({"function": function}).encode()
            images.upload(function, data, accel_function_id=function)

    def pool(self, **spec: Any) -> str:
        """Create a pool of AES; its uuid."""
        body = {"name": "pool", "function_id": AES, "max_devices": 6, **spec}
        return str(self.site.call("POST", "/function_pools", body, "2.4")["uuid"])

    def shown(self, uuid: str) -> dict[str, Any]:
        found: dict[str, Any] = self.site.call("GET", f"/function_pools/{uuid}", version="2.4")
        return found

    def until_ready(self, uuid: str, slots: int) -> dict[str, Any]:
        """The pool when that many slots are free at least, and nothing is being programmed."""

        def read() -> dict[str, Any] | None:
            shown = self.shown(uuid)
            return shown if shown["ready"] >= slots and not shown["pending"] else None

        return self.site.hurry(read)

    def offered(self) -> set[str]:
        """The cards that a scheduler may choose for AES."""
        self.site.hurry(self.site.synced)
        path = f"/allocation_candidates?resources=FPGA:1&required={AES_TRAIT}"
        found = self.site.placement.call("GET", path)["allocation_requests"]
        providers = {provider_uuid(name): name for name in CARDS}
        return {providers[uuid] for request in found for uuid in request["allocations"]}


@pytest.fixture
def rack(site: Site, images: GlanceServer, tmp_path: pathlib.Path) -> Rack:
    site.conf.set_override("pool_interval", 1, group="programming")
    site.conf.set_override("discovery_interval", 1, group="agent")
    site.conf.set_override("state_path", str(tmp_path / "state"))
    site.start(
        devices=len(CARDS),
        handles_per_device=2,
        program_mode="single-program",
        state_dir=str(tmp_path / "loaded"),
    )
    return Rack(site, images)


def test_what_is_used_is_not_touched_and_is_replaced(rack: Rack) -> None:
    uuid = rack.pool(free=2)
    rack.until_ready(uuid, 2)
    (name,) = rack.offered()
    groups = [{"resources:FPGA": "1", "accel:function_id": AES}]
    rack.site.call("POST", "/device_profiles", [{"name": "p", "groups": groups}])
    created = rack.site.call("POST", "/accelerator_requests", {"device_profile_name": "p"})
    arq = created["arqs"][0]["uuid"]
    instance = models.new_uuid()
    rack.site.placement.allocate(instance, provider_uuid(name), FPGA=1)
    values = {
        "hostname": hosts.ROOT,
        "device_rp_uuid": provider_uuid(name),
        "instance_uuid": instance,
    }
    patch = [{"path": f"/{key}", "op": "add", "value": value} for key, value in values.items()]
    rack.site.call("PATCH", "/accelerator_requests", {arq: patch})
    path = f"/accelerator_requests/{arq}"
    rack.site.hurry(lambda: rack.site.call("GET", path)["state"] == "Bound")
    rack.until_ready(uuid, 2)
    assert len(rack.offered()) == 2

    # Another pool gets all the others, and not this one.
    body = {"name": "zip", "function_id": ZIP, "free": 99, "max_devices": 6}
    zipped = rack.site.call("POST", "/function_pools", body, "2.4")["uuid"]
    rack.site.call("DELETE", f"/function_pools/{uuid}", version="2.4")

    rack.until_ready(zipped, 10)
    assert rack.offered() == {name}
    asked = rack.site.call("GET", "/operations?limit=999", version="2.4")["operations"]
    assert {operation["asked_by"] for operation in asked} == {
        "function pool pool",
        "function pool zip",
    }
    rack.site.call("DELETE", f"{path}")
    rack.site.placement.release(instance)


def test_a_pool_says_what_failed_and_goes_on_when_it_works(rack: Rack) -> None:
    rack.site.fail("program")
    uuid = rack.pool(free=12)
    until(lambda: "out of order" in (rack.shown(uuid)["reason"] or ""))
    rack.site.obey("program")
    rack.site.conf.set_override("pool_retry", 1, group="programming")
    assert rack.until_ready(uuid, 12)["devices"] == 6
    assert rack.offered() == set(CARDS)
