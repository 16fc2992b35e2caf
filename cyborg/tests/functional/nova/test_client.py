# SPDX-License-Identifier: Apache-2.0
"""Nova's own client class: every public method, as Nova's conductor and compute services call it.

A user with a token of an ordinary member asks; Nova adds its service token.
"""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.compute import Client, Compute, NovaError
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import RP, USER_PROJECT, Site

GROUPS = (
    {
        "resources:FPGA": "2",
        "trait:CUSTOM_FAKE_DEVICE": "required",
        "trait:CUSTOM_NOT_THIS": "forbidden",
        "accel:note": "Nova leaves this to Cyborg",
    },
    {"resources:FPGA": "1"},
)
FPGA = GROUPS[1]
UNKNOWN = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def profile(site: Site, compute: Compute) -> str:
    """A profile of one accelerator, on a site of four."""
    site.start(handles_per_device=4)
    return compute.make_profile(FPGA)


@pytest.fixture
def client(compute: Compute) -> Client:
    return compute.client


@pytest.fixture
def instance() -> str:
    return models.new_uuid()


def test_the_class_offers_what_these_tests_cover(client: Client) -> None:
    assert set(client.public()) == {
        "ARQ_URL",
        "DEVICE_PROFILE_URL",
        "bind_arqs",
        "create_arqs",
        "create_arqs_and_match_resource_providers",
        "delete_arqs_by_uuid",
        "delete_arqs_for_instance",
        "get_arq_by_uuid",
        "get_arq_device_rp_uuid",
        "get_arq_uuids_for_instance",
        "get_arqs_for_instance",
        "get_device_profile_groups",
        "get_device_request_groups",
    }


def test_the_groups_of_a_profile_become_request_groups(compute: Compute, client: Client) -> None:
    name = compute.make_profile(*GROUPS)

    groups = client.get_device_profile_groups(name)
    assert groups == list(GROUPS)
    assert client.get_device_amount_of_dp_groups(groups) == 3
    first, second = client.get_device_request_groups(groups, "port-1")
    assert first == {
        "requester_id": "device_profile_0port-1",
        "resources": {"FPGA": 2},
        "required_traits": ["CUSTOM_FAKE_DEVICE"],
        "forbidden_traits": ["CUSTOM_NOT_THIS"],
    }
    assert second["requester_id"] == client.get_device_profile_group_requester_id(1, "port-1")
    of_flavor = client.get_device_profile_request_groups(name)
    assert [group["requester_id"] for group in of_flavor] == [
        "device_profile_0",
        "device_profile_1",
    ]


def test_a_profile_that_gives_nothing_is_an_error_of_the_user(compute, client: Client) -> None:
    for name in ("nobody-made-it", ","):
        with pytest.raises(NovaError, match="Expected 1 device profile but got nothing") as raised:
            client.get_device_profile_groups(name)
        assert raised.value.kind == "DeviceProfileError"
        with pytest.raises(NovaError) as raised:
            client.create_arqs(name)
        assert raised.value.kind == "AcceleratorRequestOpFailed"
    empty = compute.make_profile({"trait:CUSTOM_FAKE_DEVICE": "required"})
    with pytest.raises(NovaError, match=f"device profile name {empty}"):
        client.create_arqs(empty)


def test_an_instance_from_its_flavor_to_its_end(
    site: Site, compute: Compute, client: Client, sink: NovaSink, profile: str, instance: str
) -> None:
    three = compute.make_profile({"resources:FPGA": "2"}, FPGA)
    mapping = compute.schedule(three, instance)
    assert mapping == {"device_profile_0": [RP], "device_profile_1": [RP]}

    uuids = compute.request(three, instance, mapping)

    arqs = compute.wait(instance, uuids)
    assert {arq["uuid"] for arq in arqs} == set(uuids)
    assert len({arq["attach_handle_uuid"] for arq in arqs}) == 3
    shown = {
        "state": "Bound",
        "device_profile_name": three,
        "device_rp_uuid": RP,
        "hostname": hosts.ROOT,
        "instance_uuid": instance,
        "project_id": USER_PROJECT,
        "attach_handle_type": "TEST_PCI",
    }
    for arq in arqs:
        assert arq | shown == arq
        assert arq["attach_handle_info"].keys() == {"domain", "bus", "device", "function"}
    assert sorted(arq["device_profile_group_id"] for arq in arqs) == [0, 0, 1]
    (sent,) = sink.requests
    assert {(e["name"], e["server_uuid"], e["tag"], e["status"]) for e in sent} == {
        ("accelerator-request-bound", instance, uuid, "completed") for uuid in uuids
    }
    assert client.get_arqs_for_instance(instance) == arqs
    # A bind that is repeated is accepted.
    target = {"hostname": hosts.ROOT, "device_rp_uuid": RP, "instance_uuid": instance}
    client.bind_arqs(dict.fromkeys(uuids, target))
    assert compute.wait(instance, uuids) == arqs
    assert set(client.get_arq_uuids_for_instance(instance)) == set(uuids)

    compute.delete(instance)

    with pytest.raises(NovaError, match="returned no accelerator requests"):
        client.get_arqs_for_instance(instance)
    # A second deletion of the same guest is nothing to Nova.
    client.delete_arqs_for_instance(instance)
    assert site.held() == {}


def test_a_port_with_an_accelerator(site, client, compute, profile, instance) -> None:
    (arq,) = client.create_arqs(profile)
    mapping = {"device_profile_0port-1": [RP]}
    provider = client.get_arq_device_rp_uuid(arq, mapping, "port-1")
    assert provider == RP
    assert client.get_arq_by_uuid(arq["uuid"]) == arq
    target = {"hostname": hosts.ROOT, "device_rp_uuid": provider, "instance_uuid": instance}
    client.bind_arqs({arq["uuid"]: target})
    (bound,) = compute.wait(instance, [arq["uuid"]])
    assert client.get_arq_by_uuid(arq["uuid"]) == bound

    # The fake device is no NIC: only the network that its driver would report is added here.
    bound["attach_handle_info"]["physical_network"] = "physnet1"
    assert client.get_arq_pci_device_profile(bound) == {
        "physical_network": "physnet1",
        "pci_slot": "0000:0c:0.1",
        "arq_uuid": arq["uuid"],
    }

    client.delete_arqs_by_uuid([arq["uuid"]])
    with pytest.raises(NovaError, match="404"):
        client.get_arq_by_uuid(arq["uuid"])


def test_arqs_are_not_resolved_before_they_are_bound(site, compute, client, instance) -> None:
    site.start(host_step=True)
    profile = compute.make_profile({"resources:FPGA": "2"})
    site.hang("prepare")

    uuids = compute.request(profile, instance)

    assert client.get_arqs_for_instance(instance, True) == []
    pending = client.get_arqs_for_instance(instance)
    assert {arq["state"] for arq in pending} == {models.BIND_STARTED}
    assert all(arq["attach_handle_info"] == {} for arq in pending)
    # Releases of Nova that let Cyborg choose took any refusal for "not yet".
    status, error, arqs = client.resolved(instance)
    assert (status, arqs) == (423, None)
    assert error

    site.obey()
    assert compute.wait(instance, uuids) == client.get_arqs_for_instance(instance)
    status, error, arqs = client.resolved(instance)
    assert (status, error, {arq["uuid"] for arq in arqs}) == (200, None, set(uuids))


def test_a_refused_bind_changes_nothing(site: Site, compute: Compute, instance: str) -> None:
    site.populate()
    client, profile = compute.client, compute.make_profile(FPGA)
    arqs = [*client.create_arqs(profile), *client.create_arqs(profile)]
    target = {"hostname": hosts.ROOT, "device_rp_uuid": RP, "instance_uuid": instance}
    one, other = (arq["uuid"] for arq in arqs)
    for change, code in (
        ({"device_rp_uuid": UNKNOWN}, "404"),
        ({"hostname": "elsewhere"}, "400"),
        ({"instance_uuid": "not-a-uuid"}, "400"),
    ):
        with pytest.raises(NovaError, match=code) as raised:
            client.bind_arqs({one: target, other: target | change})
        assert raised.value.kind == "AcceleratorRequestBindingFailed"
        assert client.get_arq_by_uuid(one) == arqs[0]
    # What Nova's conductor does then. One that is gone already does not save the other.
    client.delete_arqs_by_uuid([UNKNOWN, one])
    assert [arq["uuid"] for arq in site.call("GET", "/accelerator_requests")["arqs"]] == [other]


def test_what_is_used_or_disabled_is_neither_offered_nor_bound(
    site: Site, compute: Compute, profile: str, instance: str
) -> None:
    guests = [models.new_uuid() for _ in range(4)]
    for guest in guests:
        compute.boot(profile, guest)
    assert compute.schedule(profile, models.new_uuid()) is None
    for guest in guests[:2]:
        compute.delete(guest)
    mapping = compute.schedule(profile, instance)

    (device,) = site.call("GET", "/devices")["devices"]
    site.call("POST", f"/devices/{device['uuid']}/disable")
    assert site.offered() == (4, 4)
    assert compute.schedule(profile, models.new_uuid()) is None
    with pytest.raises(NovaError, match="409"):
        compute.request(profile, instance, mapping)
    site.call("POST", f"/devices/{device['uuid']}/enable")
    assert site.offered() == (4, 0)
    (arq,) = compute.wait(instance, compute.request(profile, instance, mapping))
    assert arq["state"] == models.BOUND


def test_without_service_tokens_nova_may_not_bind(site, compute, client, profile, instance) -> None:
    (kept,) = compute.boot(profile, instance)
    compute.configure(service_tokens=False)
    (arq,) = client.create_arqs(profile)
    target: dict[str, Any] = {
        "hostname": hosts.ROOT,
        "device_rp_uuid": RP,
        "instance_uuid": models.new_uuid(),
    }
    with pytest.raises(NovaError, match="403"):
        client.bind_arqs({arq["uuid"]: target})
    with pytest.raises(NovaError, match="403"):
        client.delete_arqs_for_instance(instance)
    # This one only writes to Nova's log.
    client.delete_arqs_by_uuid([kept["uuid"]])
    assert client.get_arqs_for_instance(instance) == [kept]
