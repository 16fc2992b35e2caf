# SPDX-License-Identifier: Apache-2.0
"""What a pod and the status of its claim are told of devices, and pods that only watch them."""

from __future__ import annotations

import json
import pathlib
import uuid
from typing import Any

import pytest

from cyborg.tests import cdi_schema
from cyborg.tests.kube_node import NODE, VERSION, Node, ask_as
from cyborg.tests.kubelet import Plugin

pytestmark = pytest.mark.slow

DRIVER = "cyborg.openstack.org"


@pytest.fixture
def told(tainted: Node, tmp_path: pathlib.Path) -> Node:
    """A node whose pods are told of their devices."""
    tainted.site.conf.set_override("cdi_dir", str(tmp_path / "mounts"), group="kube")
    return tainted


def mounts(tmp_path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """The one mount of each CDI device of the driver's, by the whole name."""
    found = {}
    for path in (tmp_path / "mounts").glob("*.json"):
        spec = json.loads(path.read_text())
        cdi_schema.check(spec)
        for device in spec["devices"]:
            (mount,) = device["containerEdits"]["mounts"]
            found[f"{spec['kind']}={device['name']}"] = mount
    return found


def stream(mount: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pathlib.Path(mount["hostPath"]).read_text().splitlines()]


def test_a_pod_is_told_of_its_devices(told: Node, tmp_path: pathlib.Path) -> None:
    plugin = told.start()
    names = told.devices()
    for template in (None, "gpu"):
        _assert_is_told(told, plugin, names, tmp_path, template)
    assert not list(pathlib.Path(told.site.conf.kube.plugins_dir, DRIVER, "metadata").iterdir())
    # A name that leads elsewhere is refused.
    claim = told.cluster.claim(names[0])
    meta = told.cluster.claims[claim[:2]]["metadata"]
    meta["annotations"] = {"resource.kubernetes.io/pod-claim-name": "../../etc"}
    assert "is not a name" in plugin.prepare(claim)[claim[2]].error
    assert mounts(tmp_path) == {}


def _assert_is_told(
    told: Node, plugin: Plugin, names: list[str], tmp_path: pathlib.Path, template: str | None
) -> None:
    claim = told.cluster.claim(*names[:2])
    found_claim = told.cluster.claims[claim[:2]]
    meta, results = found_claim["metadata"], found_claim["status"]["allocation"]["devices"]
    results["results"][1]["request"] = "request-0/fast"
    where = f"resourceclaims/{claim[1]}"
    if template:
        meta["annotations"] = {"resource.kubernetes.io/pod-claim-name": template}
        where = f"resourceclaimtemplates/{template}"
    answer = plugin.prepare(claim)[claim[2]]
    assert answer.error == ""
    found = mounts(tmp_path)
    assert set(found) == {f"{DRIVER}/metadata=claim-{claim[2]}_request-{n}" for n in range(2)}
    for number, device in enumerate(answer.devices):
        assert len(device.cdi_device_ids) == 2
        mount = found[device.cdi_device_ids[1]]
        inside = f"/var/run/kubernetes.io/dra-device-attributes/{where}/request-{number}"
        assert mount["containerPath"] == f"{inside}/{DRIVER}-metadata.json"
        assert list(mount["options"]) == ["ro", "bind"]
        newest, oldest = stream(mount)
        assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
        assert oldest.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
        assert newest == oldest
        assert newest["metadata"]["uid"] == claim[2]
        assert newest["metadata"]["generation"] == 1
        assert newest.get("podClaimName") == template
        (request,) = newest["requests"]
        assert request["name"] == ("request-0/fast" if number == 0 else "request-1")
        (one,) = request["devices"]
        assert (one["driver"], one["pool"], one["name"]) == (DRIVER, NODE, names[number])
        # The slice cannot say which function it will be.
        (own,) = {
            f"0000:{info['bus']}:{int(info['device'], 16):02x}.{info['function']}"
            for each in told.allocation(claim[2])["accelerators"]
            if each["group"] == number
            for info in [each["attach_handle_info"]]
        }
        assert one["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": own}
        assert len(one["attributes"]) <= 32
    assert plugin.prepare(claim)[claim[2]] == answer
    plugin.unprepare(claim)
    assert mounts(tmp_path) == {}


def test_the_status_of_a_claim_says_how_its_devices_are(tainted: Node) -> None:
    plugin = tainted.start()
    claim = tainted.cluster.claim(tainted.devices()[0])

    def data(key: str) -> Any:
        devices = tainted.cluster.claims[claim[:2]]["status"].get("devices", ())
        return next((each["data"].get(key) for each in devices), None)

    tainted.see(lambda: data("health") == "healthy")
    assert data("isBound") is False
    assert plugin.prepare(claim)[claim[2]].error == ""
    tainted.see(lambda: data("isBound"))
    assert data("model") == "miss model info"
    assert len(data("addresses")) == 1
    assert tainted.cluster.condition(claim) == ("Ready", "The device can be used.")
    tainted.site.make_unhealthy(0)
    tainted.see(lambda: data("health") == "unhealthy")
    assert data("message") == "It is on fire."
    before = tainted.cluster.claims[claim[:2]]["status"]
    tainted.look_twice()
    assert tainted.cluster.claims[claim[:2]]["status"] == before
    plugin.unprepare(claim)


def test_a_pod_may_watch_devices_and_takes_nothing(told: Node, tmp_path: pathlib.Path) -> None:
    plugin = told.start()
    names = told.devices()
    user, watcher = told.cluster.claim(names[0]), told.cluster.claim(names[0], adminAccess=True)
    for claim, cdi_devices in ((watcher, 1), (user, 2)):
        answer = plugin.prepare(claim)[claim[2]]
        assert answer.error == ""
        assert [len(each.cdi_device_ids) for each in answer.devices] == [cdi_devices]
    assert told.allocation(watcher[2]) is None
    assert len(told.site.held()) == 1
    (mount,) = (each for name, each in mounts(tmp_path).items() if watcher[2] in name)
    (one,) = stream(mount)[0]["requests"][0]["devices"]
    assert one["attributes"]["type"] == {"string": "FPGA"}
    assert "resource.kubernetes.io/pciBusID" not in one["attributes"]
    # What the other has is neither cleaned nor given back.
    plugin.unprepare(watcher)
    assert told.allocation(user[2])["state"] == "Active"
    assert list(mounts(tmp_path)) == [f"{DRIVER}/metadata=claim-{user[2]}_request-0"]
    # A lease is not missed that there never was.
    assert told.driver is not None
    told.driver._leases.renew()
    plugin.unprepare(user)


def test_nobody_watches_what_a_guest_holds(told: Node) -> None:
    told.site.call("POST", "/hosts/host-1/untaint", version=VERSION)
    guest = str(uuid.uuid4())
    # Placement learns a moment later that the host is no more tainted.
    told.site.hurry(lambda: ask_as(told.site, guest) == 202)
    told.taint()
    plugin = told.start()
    claim = told.cluster.claim(told.devices()[0], adminAccess=True)
    assert "is held by others" in plugin.prepare(claim)[claim[2]].error
    told.site.call("DELETE", f"/allocations/{guest}", version=VERSION)
    told.site.hurry(lambda: not plugin.prepare(claim)[claim[2]].error)
