# SPDX-License-Identifier: Apache-2.0
"""Function pools with everything real behind them but the cards: Glance, Placement, an agent."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, hosts
from cyborg.tests.fpgas import Fpgas
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import NAME, Site, until

pytestmark = pytest.mark.slow

AES, ZIP = "aes-128", "zip-9"
AES_TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES128"
CARDS = [NAME, *(f"{NAME}_{number}" for number in range(1, 6))]


class Rack(Fpgas):
    """Six fake cards of two slots each, which offer what runs on them."""

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
def rack(
    site: Site, ctx: context.RequestContext, images: GlanceServer, tmp_path: pathlib.Path
) -> Rack:
    site.conf.set_override("pool_interval", 1, group="programming")
    site.conf.set_override("discovery_interval", 1, group="agent")
    site.conf.set_override("state_path", str(tmp_path / "state"))
    site.start(
        devices=len(CARDS),
        handles_per_device=2,
        program_mode="single-program",
        state_dir=str(tmp_path / "loaded"),
    )
    for function in (AES, ZIP):
        data = json.dumps({"function": function}).encode()
        images.upload(function, data, accel_function_id=function)
    return Rack(site, ctx)


def test_what_is_used_is_not_touched_and_is_replaced(rack: Rack) -> None:
    uuid = rack.pool(function_id=AES, free=2)
    rack.until_ready(uuid, 2)
    (name,) = rack.offered()
    (arq,) = boots.arqs(rack.ctx, group={"resources:FPGA": "1", "accel:function_id": AES})
    instance, provider = models.new_uuid(), provider_uuid(name)
    rack.site.placement.allocate(instance, provider, FPGA=1)
    boots.bind(rack.ctx, [arq], instance, hostname=hosts.ROOT, device_rp_uuid=provider)
    path = f"/accelerator_requests/{arq}"
    rack.site.hurry(lambda: rack.site.call("GET", path)["state"] == "Bound")
    rack.until_ready(uuid, 2)
    assert len(rack.offered()) == 2

    # Another pool gets all the others, and not this one.
    zipped = rack.pool("zip", function_id=ZIP, free=99)
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
    uuid = rack.pool(function_id=AES, free=12)
    until(lambda: "out of order" in (rack.shown(uuid)["reason"] or ""))
    rack.site.obey("program")
    rack.site.conf.set_override("pool_retry", 1, group="programming")
    assert rack.until_ready(uuid, 12)["devices"] == 6
    assert rack.offered() == set(CARDS)
