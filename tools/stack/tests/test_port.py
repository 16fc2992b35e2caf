# SPDX-License-Identifier: Apache-2.0
"""A server whose accelerator is the function of a network card behind its port.

No agent of Neutron runs here, and none would do anything for a guest that is none. What an agent
of SR-IOV cards reports of itself, the physical network of each interface, is written for it.
"""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
import settings

from cyborg.tests.simulated import layout, preload, tree, uevents

HOST = settings.HOSTS[0]
AGENT = f"cyborg-agent-{HOST}"
NETWORK = settings.PHYSICAL_NETWORK
#: What the kernel calls the port of either card.
INTERFACE = "ens1f0"
NAME = "nic-port"
GROUP = {"resources:CUSTOM_NIC": "1", "trait:CUSTOM_PHYSNET1": "required"}
SPEC = {"vendor_id": "15b3", "physical_network": NETWORK, "trusted": True}
#: The card that each driver is tried with, its options, and what else a profile asks for.
DRIVERS = {
    "intel_nic_driver": (
        "x710",
        {
            "nic_devices": {"enabled_nic_types": "x710"},
            "x710": {"physical_device_mappings": f"{NETWORK}:{INTERFACE}"},
        },
        {},
    ),
    "nic_driver": (
        "connectx6",
        {"nic_driver": {"device_spec": json.dumps(SPEC)}},
        {"trait:HW_NIC_SRIOV_TRUSTED": "required"},
    ),
}


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request):
    """The driver of the card."""
    return request.param


@pytest.fixture(scope="module")
def functions(prepared, driver):
    """The providers of a card's virtual functions; the card is in one host."""
    stack = prepared.stack
    card, options, _more = DRIVERS[driver]
    host = layout.load({"cards": [{"card": card, "vfs": 2}]})
    if shutil.which("umockdev-wrapper") is None:
        preload.missing("umockdev is not installed; run: apt-get install umockdev")
    with preload.folder() as root:
        tree.Tree(root, host, lambda said: uevents.to_preloaded(root, said)).build()
        stack.settings().agent(
            HOST, {"agent": {"enabled_drivers": f"fake_driver,{driver}"}, **options}
        )
        stack.records.stop(AGENT)
        stack.start(AGENT, LD_PRELOAD="libumockdev-preload.so.0", UMOCKDEV_DIR=str(root))
        try:
            yield prepared.until("virtual functions", lambda: offered(prepared, 2))
        finally:
            stack.settings().agent(HOST)
            stack.restart(AGENT)
            prepared.until("their end", lambda: offered(prepared, 0) is not None or None)


def offered(scene, count):
    """The providers with a free virtual function, where there are so many."""
    answer = scene.cloud.placement.get(
        "/allocation_candidates?resources=CUSTOM_NIC:1", microversion="1.17"
    ).json()
    # Without any, there is no such class of resources yet.
    found = {
        uuid
        for candidate in answer.get("allocation_requests", [])
        for uuid in candidate["allocations"]
    }
    return found if len(found) == count else None


@pytest.fixture
def port(scene, functions, driver):
    """A port in the physical network that asks for a function of a card."""
    network = scene.cloud.network
    net = network.create_network(
        name="wired", provider_network_type="vlan", provider_physical_network=NETWORK
    )
    network.create_subnet(network_id=net.id, cidr="192.0.2.0/24", ip_version=4)
    profile = {"name": NAME, "groups": [{**GROUP, **DRIVERS[driver][2]}]}
    made = scene.cloud.accelerator.post("/device_profiles", json=profile, microversion="2.4")
    assert made.status_code == 201, made.text
    yield network.create_port(
        network_id=net.id, binding_vnic_type="accelerator-direct", device_profile=NAME
    )
    scene.clear()
    for found in network.ports(network_id=net.id):
        network.delete_port(found)
    network.delete_network(net)
    scene.cloud.accelerator.delete(f"/device_profiles?value={NAME}")
    scene.until("free functions", lambda: offered(scene, 2))


def bound(scene, server):
    """The only request of a server, once it is Bound."""
    return next((arq for arq in scene.arqs(server) if arq["state"] == "Bound"), None)


@contextlib.contextmanager
def reporting_agent(scene):
    """An agent of the host has reported to Neutron which interfaces are in which network."""
    row = (
        "NIC Switch agent", "neutron-sriov-nic-agent", "N/A", HOST,
        json.dumps({"device_mappings": {NETWORK: [INTERFACE]}}),
    )  # fmt: skip
    with scene.stack.database("neutron") as neutron:
        neutron.cursor().execute(
            "INSERT INTO agents (id, agent_type, `binary`, topic, host, configurations, "
            "admin_state_up, created_at, started_at, heartbeat_timestamp) "
            "VALUES (UUID(), %s, %s, %s, %s, %s, 1, UTC_TIMESTAMP(), UTC_TIMESTAMP(), "
            "UTC_TIMESTAMP() + INTERVAL 1 DAY)",
            row,
        )
        neutron.commit()
        try:
            yield
        finally:
            neutron.cursor().execute("DELETE FROM agents WHERE host = %s", (HOST,))
            neutron.commit()


def test_a_port_with_a_device_profile_is_plugged(scene, port, functions, driver):
    with reporting_agent(scene):
        server = scene.boot("plain", networks=[{"port": port.id}])

    (arq,) = scene.arqs(server)
    assert (arq["state"], arq["hostname"]) == ("Bound", HOST)
    assert arq["device_profile_name"] == NAME
    assert arq["device_rp_uuid"] in functions
    place = arq["attach_handle_info"]
    assert place.get("trusted") == ("true" if driver == "nic_driver" else None)
    bound = scene.cloud.network.get_port(port.id)
    assert bound.binding_vif_type == "hw_veb"
    assert bound.binding_profile["arq_uuid"] == arq["uuid"]
    assert bound.binding_profile["physical_network"] == NETWORK == place["physical_network"]
    assert bound.binding_profile["pci_slot"] == (
        f"{place['domain']}:{place['bus']}:{place['device']}.{place['function']}"
    )
    assert offered(scene, 1)
    scene.delete(server)
    assert scene.cloud.network.get_port(port.id).binding_profile == {}


def test_a_port_that_no_agent_can_bind_leaves_nothing_behind(scene, port):
    with scene.held_spawns():
        server = scene.create("plain", networks=[{"port": port.id}])
        arq = scene.until("a Bound request", lambda: bound(scene, server))
        assert arq["hostname"] == HOST
        assert arq["attach_handle_info"]["physical_network"] == NETWORK

    scene.until_status(server, "ERROR")
    scene.until("release", lambda: None if scene.arqs() else True)
    scene.until("free functions", lambda: offered(scene, 2))
