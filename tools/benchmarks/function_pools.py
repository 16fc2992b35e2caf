#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a function pool of 4 slots on 6 simulated cards takes to be restored.

    tools/benchmarks/function_pools.py [rounds]

Each round two of the cards that the pool has fail, and the time is taken until Placement offers
four again. There are the real API, conductor, agent, Placement and Glance, with the options as they
are shipped; to write a card takes 5 s. A card that fails is known from the agent's next pass on.
Exit status 1 if it takes more than a minute.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import sys
import time

import pytest

from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.service import NAME, Site, until

CARDS = [NAME, *(f"{NAME}_{number}" for number in range(1, 6))]
TRAIT = "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES"
WANTED, SECONDS_TO_WRITE, LIMIT = 4, 5.0, 60.0
ROUNDS = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdecimal() else 5


def offered(site: Site) -> set[str]:
    """The cards of which Placement offers a slot of the function."""
    path = f"/allocation_candidates?resources=FPGA:1&required={TRAIT}"
    found = site.placement.call("GET", path)["allocation_requests"]
    names = {site.placement.find(name): name for name in CARDS}
    return {names[uuid] for request in found for uuid in request["allocations"]}


def test_a_pool_is_restored(site: Site, images: GlanceServer, tmp_path: pathlib.Path) -> None:
    """Run the rounds."""
    site.conf.clear_override("poll_interval", group="conductor")
    site.conf.clear_override("discovery_interval", group="agent")
    site.conf.set_override("state_path", str(tmp_path / "state"))
    images.upload("aes", json.dumps({"function": "aes"}).encode(), accel_function_id="aes")
    loaded = tmp_path / "loaded"
    site.start(
        devices=len(CARDS), handles_per_device=1, program_mode="dynamic", state_dir=str(loaded)
    )
    site.slow_down("program", seconds=SECONDS_TO_WRITE)
    site.placement.call("PUT", f"/traits/{TRAIT}")
    body = {"name": "aes", "function_id": "aes", "free": WANTED, "max_devices": WANTED}
    site.call("POST", "/function_pools", body, "2.4")
    took: list[float] = []
    for number in itertools.count(1):
        until(lambda: len(offered(site)) == WANTED)
        if number > ROUNDS:
            break
        failing = random.sample(sorted(offered(site)), 2)
        # Sometime between two passes.
        time.sleep(random.uniform(0, 10))
        site.make_unhealthy(*(CARDS.index(name) for name in failing))
        began = time.perf_counter()
        until(lambda gone=set(failing): offered(site).isdisjoint(gone))
        noticed = time.perf_counter() - began
        until(lambda: len(offered(site)) == WANTED)
        took.append(time.perf_counter() - began)
        print(f"round {number}: noticed after {noticed:.1f} s, restored after {took[-1]:.1f} s")
        for name in failing:
            # It comes back as it left the works.
            (loaded / f"{name}.function").write_text("")
        site.make_unhealthy()
        time.sleep(11)
    print(f"longest {max(took):.1f} s, mean {sum(took) / len(took):.1f} s, at most {LIMIT:.0f} s")
    assert max(took) <= LIMIT


if __name__ == "__main__":
    options = ["-q", "-s", "-p", "cyborg.tests.conftest", "-p", "no:cacheprovider"]
    sys.exit(pytest.main([*options, "-W", "ignore", __file__]))
