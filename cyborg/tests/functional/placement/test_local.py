# SPDX-License-Identifier: Apache-2.0
"""The Placement inside this process: its file is kept, and many may write at once."""

from __future__ import annotations

import pathlib
from concurrent import futures

import requests
from oslo_config import cfg

from cyborg.peers import clients
from cyborg.tests.placement_server import PlacementServer


def test_sixteen_writers_at_once(placement: PlacementServer, conf: cfg.ConfigOpts) -> None:
    api = clients.proxy(conf, "placement")

    def write(number: int) -> list[int]:
        uuid = f"00000000-0000-0000-0000-{number:012}"
        made = api.post(
            "/resource_providers",
            json={"name": f"provider {number}", "uuid": uuid},
            microversion="1.20",
            raise_exc=False,
        )
        body = {"inventories": {"FPGA": {"total": 1}}, "resource_provider_generation": 0}
        path = f"/resource_providers/{uuid}/inventories"
        put = api.put(path, json=body, microversion="1.26", raise_exc=False)
        return [made.status_code, put.status_code]

    with futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(write, range(160)))
    assert answers == [[200, 200]] * 160


def test_what_was_written_is_there_after_a_restart(
    placement: PlacementServer, tmp_path: pathlib.Path
) -> None:
    uuid = placement.make_provider("kept")
    placement.set_traits(uuid, "CUSTOM_KEPT")
    placement.restart(tmp_path)
    assert placement.find("kept") == uuid
    assert placement.call("GET", f"/resource_providers/{uuid}/traits")["traits"] == ["CUSTOM_KEPT"]


def test_who_has_no_token_is_nobody(placement: PlacementServer) -> None:
    assert requests.get(f"{placement.url}/resource_providers", timeout=60).status_code == 401
