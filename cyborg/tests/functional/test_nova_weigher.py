# SPDX-License-Identifier: Apache-2.0
"""The order in which nova-scheduler's own code puts hosts with our weigher, in Nova's process."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from cyborg.tests import hosts, service
from cyborg.tests.compute import Compute
from cyborg.tests.service import Site

AES, ZIP = "aaaa-1", "zzzz-2"
FPGA = {"resources:FPGA": "1"}
HOSTS = ("host-1", "host-2", "host-3")
NODES = [f"{name}.example" for name in HOSTS]


@pytest.fixture
def cloud(site: Site) -> Site:
    """Three hosts with a card each. Two run a function, and the third cannot be programmed."""
    runs: tuple[dict[str, Any], ...]
    runs = ({"function": ZIP}, {"function": AES}, {"program_mode": None})
    for number, (name, fields) in enumerate(zip(HOSTS, runs, strict=True)):
        site.placement.make_provider(f"{name}.example")
        known = {"program_mode": "dynamic", **fields}
        card = hosts.deployable(f"{name}_card", range(8 * number, 8 * number + 2), **known)
        hosts.apply(hosts.device(name, card), host=name)
        site.placement.sync_host(name)
    return site


@pytest.fixture
def nova(compute: Compute) -> Compute:
    """Nova's scheduler, which asks as the service that it is."""
    return compute


def options(site: Site, **weigher: float) -> dict[str, dict[str, Any]]:
    return {
        "cyborg": {"endpoint_override": site.endpoint},
        "service_user": {"auth_type": "none"},
        "cyborg_weigher": {"timeout": float(service.PATIENCE), "multiplier": 1.0} | weigher,
    }


def weigh(nova: Compute, profile: str | None, nodes: list[str] = NODES) -> dict[str, float]:
    found: dict[str, float] = nova.client.weigh(profile, nodes)
    return found


def test_nova_loads_it_by_the_name_in_its_options(nova: Compute) -> None:
    assert nova.client.listed_weighers() == ["AcceleratorWeigher"]


def test_hosts_with_the_preferred_function_come_first(cloud: Site, nova: Compute) -> None:
    nova.client.configure(options(cloud), {})
    profile = nova.make_profile(FPGA | {"accel:preferred_function": AES})

    assert weigh(nova, profile) == {NODES[0]: 0.0, NODES[1]: 1.0, NODES[2]: 0.0}


def test_fewer_reprogrammings_come_first_and_no_candidate_last(cloud: Site, nova: Compute) -> None:
    nova.client.configure(options(cloud), {})
    profile = nova.make_profile(FPGA | {"accel:function_id": ZIP})

    assert weigh(nova, profile) == {NODES[0]: 1.0, NODES[1]: 0.5, NODES[2]: 0.0}
    nova.client.configure(options(cloud, multiplier=10.0), {})
    assert weigh(nova, profile)[NODES[0]] == 10.0


def test_hosts_are_equal_where_nothing_is_preferred(cloud: Site, nova: Compute) -> None:
    nova.client.configure(options(cloud), {})

    for profile in (None, nova.make_profile(FPGA), "no-such-profile"):
        assert set(weigh(nova, profile).values()) == {0.0}


def test_an_api_that_does_not_answer_costs_one_time_out_and_no_boot(
    cloud: Site, nova: Compute
) -> None:
    profile = nova.make_profile(FPGA | {"accel:preferred_function": AES})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v2"
        group = {"cyborg": {"endpoint_override": url}}
        nova.client.configure(options(cloud, timeout=0.2) | group, {})
        assert set(weigh(nova, profile).values()) == {0.0}
        silent.settimeout(service.PATIENCE)
        silent.accept()[0].close()
        # For a while nobody waits for it again.
        assert set(weigh(nova, profile).values()) == {0.0}
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
