# SPDX-License-Identifier: Apache-2.0
"""Requests that are deleted, and whose handles are not clean yet, in lists."""

from __future__ import annotations

from typing import Any

import pytest
from oslo_config import cfg

from cyborg.handles import release
from cyborg.tests.cloud import Cloud
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("host_with_cards")


@pytest.fixture
def api(conf: cfg.ConfigOpts, cloud: Cloud) -> Api:
    conf.set_override("auth_strategy", "noauth", group="api")
    return Api(conf)


def listed(api: Api, query: str) -> list[str]:
    path = f"/v2/accelerator_requests?all_projects=true&{query}"
    found: list[dict[str, Any]] = api.call("GET", path)["arqs"]
    return [each["uuid"] for each in found]


def deleting(api: Api, query: str = "") -> list[str]:
    return listed(api, f"state=Deleting{query}")


@pytest.mark.every_database
def test_they_are_found_by_instance_and_sorted_by_when_they_were_made(
    cloud: Cloud, api: Api
) -> None:
    instances, arqs = zip(*(cloud.boot("b") for _ in range(3)), strict=True)
    cloud.agent = "is away"
    for instance in reversed(instances):
        cloud.placement.release(instance)
        release.delete_instance_arqs(cloud.ctx, instance)
    cloud.work_off()

    for instance, arq in zip(instances, arqs, strict=True):
        assert deleting(api, f"&instance={instance}") == [arq]
        assert listed(api, f"instance={instance}") == []
    first, second, third = arqs
    assert deleting(api, "&sort_key=created_at") == [first, second, third]
    descending = "&sort_key=created_at&sort_dir=desc&limit=2"
    assert deleting(api, descending) == [third, second]
    assert deleting(api, f"{descending}&marker={second}") == [first]
    assert deleting(api, "&sort_key=instance_uuid") == [
        arq for _, arq in sorted(zip(instances, arqs, strict=True))
    ]
    cloud.agent = "works"
    cloud.work_off()
    assert deleting(api) == []
