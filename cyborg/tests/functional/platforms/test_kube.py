# SPDX-License-Identifier: Apache-2.0
"""cyborg-kube between Cyborg, a stand-in for Kubernetes' API server, and one for the kubelet."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import types
import uuid
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db
from cyborg.agent import service as agent_service
from cyborg.common import errors
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.kube import accelerators, leases, resource_claims, slices
from cyborg.kube.cluster import Cluster
from cyborg.kube.inventory import OfferedPart
from cyborg.kube.publisher import Publisher
from cyborg.tests import kubelet
from cyborg.tests.kube_node import NODE, VERSION, Node, ask_as
from cyborg.tests.logs import ours_of
from cyborg.tests.service import RP, until

pytestmark = pytest.mark.slow

KIND = "cyborg.openstack.org/accelerator"


def test_a_pod_has_devices_until_it_ends(tainted: Node) -> None:
    plugin = tainted.start()
    devices = tainted.devices()
    assert devices == [f"fpga-{RP}-{number}" for number in range(4)]
    shown = tainted.cluster.devices()[devices[0]]
    assert shown["attributes"]["type"] == {"string": "FPGA"}
    assert shown["attributes"]["CUSTOM_FAKE_DEVICE"] == {"bool": True}
    assert shown["capacity"] == {"accelerators": {"value": "1"}}
    assert (tainted.left(), tainted.taints()) == ([4], set())

    claim = tainted.cluster.claim(*devices[:2])
    uid = claim[2]
    answer = plugin.prepare(claim)[uid]
    assert answer.error == ""
    assert [list(each.request_names) for each in answer.devices] == [["request-0"], ["request-1"]]
    assert [each.device_name for each in answer.devices] == devices[:2]
    assert {each.pool_name for each in answer.devices} == {NODE}
    names = [name for each in answer.devices for name in each.cdi_device_ids]
    found = tainted.allocation(uid)
    assert names == [f"{KIND}={each['arq_uuid']}" for each in found["accelerators"]]
    assert (found["state"], found["consumer"]["type"]) == ("Active", "KUBERNETES")
    assert found["lease_seconds"] == 86400
    assert tainted.files() == 2
    # It may be asked for again.
    assert plugin.prepare(claim)[uid] == answer
    assert len(tainted.site.held()) == 2
    # What is a claim's own does not count as taken, since the scheduler counts it.
    tainted.look_twice()
    assert tainted.left() == [4]

    for _ in range(2):
        assert plugin.unprepare(claim)[uid].error == ""
    tainted.site.hurry(lambda: not tainted.site.held())
    assert tainted.files() == 0
    assert tainted.allocation(uid) is None


def test_nothing_is_lost_when_services_are_started_again(tainted: Node) -> None:
    plugin = tainted.start()
    claim = tainted.cluster.claim(tainted.devices()[1])
    first = plugin.prepare(claim)[claim[2]]
    assert first.devices
    writes = tainted.cluster.writes
    tainted.stop()
    assert list(tainted.registry.iterdir()) == []
    # As a process leaves it that was killed.
    (tainted.registry / "cyborg.openstack.org-reg.sock").touch()
    for part in (conductor_service.ConductorService, agent_service.Agent):
        tainted.site.replace(part)
    again = tainted.start()
    assert again.prepare(claim)[claim[2]] == first
    tainted.look_twice()
    assert tainted.cluster.writes == writes
    # The kubelet deletes the slices of a driver that it does not find.
    tainted.cluster.slices.clear()
    assert len(tainted.devices()) == 4
    # A socket that an older driver has removed is made again.
    (socket,) = tainted.registry.glob("*.sock")
    socket.unlink()
    tainted.look_twice()
    found = kubelet.register(tainted.registry)
    try:
        assert found.unprepare(claim)[claim[2]].error == ""
    finally:
        found.close()
    assert tainted.allocation(claim[2]) is None
    # A host that is removed has no devices.
    tainted.site.conf.set_override("host", "host-9")
    tainted.see(lambda: not tainted.cluster.slices)


def test_a_device_belongs_to_one_side(node: Node) -> None:
    node.site.start(handles_per_device=4)
    guest = str(uuid.uuid4())
    assert ask_as(node.site, guest) == 202
    plugin = node.start()
    claim = node.cluster.claim(f"fpga-{RP}-0")
    assert "does not belong to Kubernetes" in plugin.prepare(claim)[claim[2]].error
    assert node.cluster.slices == {}

    # Who was there stays, and is counted.
    node.taint()
    assert len(node.devices()) == 4
    assert node.left() == [3]
    assert ask_as(node.site, str(uuid.uuid4())) == 409
    assert plugin.prepare(claim)[claim[2]].error == ""
    node.site.call("DELETE", f"/allocations/{guest}", version=VERSION)
    node.see(lambda: node.left() == [4])

    # Another reason is another purpose.
    node.taint("device", "burn-in")
    node.see(lambda: node.cluster.slices == {})
    other = node.cluster.claim(f"fpga-{RP}-1")
    assert "does not belong to Kubernetes" in plugin.prepare(other)[other[2]].error
    # A pod that has it keeps it.
    assert plugin.prepare(claim)[claim[2]].error == ""
    node.taint("device")
    assert len(node.devices()) == 4


def test_what_is_out_of_order_is_tainted(tainted: Node) -> None:
    plugin = tainted.start()
    names = tainted.devices()
    stream = plugin.health("v1alpha1")
    said = next(stream)
    assert {name: each.health for name, each in said.items()} == dict.fromkeys(names, 1)
    assert {each.device.pool_name for each in said.values()} == {NODE}

    tainted.site.conf.set_override("evict_unhealthy", True, group="kube")
    tainted.site.make_unhealthy(0)
    tainted.see(lambda: tainted.taints() == {("cyborg.openstack.org/unhealthy", "NoExecute")})
    bad = next(said for said in plugin.health() if {each.health for each in said.values()} == {2})
    assert bad[names[0]].message == "It is on fire."
    # Pods may tolerate a taint for a time, which begins once.
    (before,) = tainted.cluster.devices()[names[0]]["taints"]
    tainted.site.call("POST", "/hosts/host-1/drain", {"reason": "disks"}, VERSION)
    tainted.see(lambda: len(tainted.taints()) == 2)
    assert before in tainted.cluster.devices()[names[0]]["taints"]
    assert bad[names[0]].health_check_timeout_seconds == 30


def test_a_slice_that_is_refused_leaves_the_pool_as_it_is(tainted: Node) -> None:
    tainted.start()
    names = tainted.devices()
    tainted.look_twice()
    before = dict(tainted.cluster.slices)
    assert len(before) == 2
    tainted.cluster.refused = max(before)
    tainted.site.call("POST", "/hosts/host-1/drain", {"reason": "disks"}, VERSION)
    tainted.look_twice()
    assert tainted.cluster.slices == before
    assert sorted(tainted.cluster.devices()) == names
    tainted.cluster.refused = None
    tainted.see(lambda: tainted.taints() == {("cyborg.openstack.org/drained", "NoSchedule")})

    # A server without partitions is not written to again and again.
    tainted.cluster.drops = {"consumesCounters"}
    tainted.cluster.slices.clear()
    tainted.devices()
    tainted.look_twice()
    writes = tainted.cluster.writes
    tainted.look_twice()
    assert tainted.cluster.writes == writes


def test_a_device_that_is_refused_is_left_out_until_it_is_another(node, caplog) -> None:
    publisher = Publisher(Cluster(node.site.conf), NODE)

    def wanted(model: str) -> dict[str, Any]:
        parts = [
            OfferedPart(
                provider=str(uuid.UUID(int=number)),
                device_type="FPGA",
                resource_class="FPGA",
                total=1,
                left=1,
                facts={"model": each},
            )
            for number, each in enumerate((model, "right"))
        ]
        return slices.specs(parts, "cyborg.openstack.org", NODE, evict_unhealthy=False)

    node.cluster.forbidden = "wrong"
    assert publisher.publish(wanted("wrong"))
    (left,) = node.cluster.devices().values()
    assert left["attributes"]["model"] == {"string": "right"}
    (said,) = [each for each in ours_of(caplog) if each.levelname == "ERROR"]
    assert "is left out: Kubernetes answers 422" in said.getMessage()
    assert not publisher.publish(wanted("wrong"))
    assert publisher.publish(wanted("better"))
    assert len(node.cluster.devices()) == 2


def test_an_allocation_is_another_after_the_claim_got_other_devices(tainted, monkeypatch) -> None:
    plugin = tainted.start()
    names = tainted.devices()
    claim = tainted.cluster.claim(names[0])
    assert plugin.prepare(claim)[claim[2]].error == ""
    tainted.cluster.claim(*names[:3], uid=claim[2])
    assert "had other devices" in plugin.prepare(claim)[claim[2]].error

    def prepared() -> Any:
        return plugin.prepare(claim)[claim[2]].devices

    assert len(tainted.site.hurry(prepared)) == 3
    assert len(tainted.site.held()) == 3

    # One that is not claimed yet does not say of which providers it is.
    real = accelerators.KubeApi.find

    def find(self: accelerators.KubeApi, path: str) -> Any:
        found = real(self, path)
        monkeypatch.setattr(accelerators.KubeApi, "find", real)
        assert found is not None
        rows = [each | {"device_rp_uuid": None} for each in found["accelerators"]]
        return found | {"state": "Claiming", "accelerators": rows}

    monkeypatch.setattr(accelerators.KubeApi, "find", find)
    tainted.cluster.claim(f"fpga-{uuid.uuid4()}-0", uid=claim[2])
    assert "had other devices" in plugin.prepare(claim)[claim[2]].error
    assert tainted.allocation(claim[2]) is None


def test_what_cannot_be_had_is_said(tainted: Node) -> None:
    plugin = tainted.start()
    names = tainted.devices()
    admin = tainted.cluster.claim(names[0], adminAccess=True)
    odd = tainted.cluster.claim("fpga-0")
    gone = ("default", "none", str(uuid.uuid4()))
    old = (*tainted.cluster.claim(names[1])[:2], gone[2])
    good = tainted.cluster.claim(names[2])
    none = tainted.cluster.claim()
    said = plugin.prepare(admin, odd, gone, good, none)
    for refused, why in ((admin, "administrative"), (odd, "is not a device"), (gone, "any more")):
        assert why in said[refused[2]].error
    assert said[good[2]].error == ""
    assert len(said[good[2]].devices) == 1
    # A container that was promised a device does not start without it.
    assert "no devices of node node-1" in said[none[2]].error
    assert "any more" in plugin.prepare(old)[old[2]].error
    # More than there are.
    many = tainted.cluster.claim(*[names[0]] * 4)
    assert "409" in plugin.prepare(many)[many[2]].error
    assert tainted.allocation(many[2]) is None


def call_for(seconds: float, *, is_heard: bool = True) -> resource_claims.Call:
    return resource_claims.Call(until=time.monotonic() + seconds, is_heard=lambda: is_heard)


def test_nobody_else_can_tell_which_consumer_a_claim_is_or_free_it(tainted: Node) -> None:
    plugin = tainted.start()
    claim = tainted.cluster.claim(tainted.devices()[0])
    # Another project knows the uid, the host and this code; it has no secret but its own.
    conf = tainted.site.conf
    with tempfile.TemporaryDirectory() as name:
        kube: Any = types.SimpleNamespace(plugins_dir=name, driver_name=conf.kube.driver_name)
        other: Any = types.SimpleNamespace(kube=kube, host=conf.host)
        guess = resource_claims.consumer_of(other, claim[2])
    guesses = {guess, str(uuid.uuid5(uuid.UUID(claim[2]), conf.host)), claim[2]}
    assert plugin.prepare(claim)[claim[2]].error == ""
    assert tainted.consumer(claim[2]) not in guesses
    # The kubelet of another node asks by what it remembers, long after the claim has gone.
    there: Any = types.SimpleNamespace(kube=conf.kube, host="host-2")
    elsewhere = resource_claims.ResourceClaims(there, accelerators.KubeApi(conf), Cluster(conf))
    elsewhere.unprepare(claim[2], call_for(5))
    assert tainted.allocation(claim[2])["state"] == "Active"

    secret = pathlib.Path(conf.kube.plugins_dir, conf.kube.driver_name, "consumers.key")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_bytes()) == 32
    assert [path.name for path in secret.parent.glob("tmp*")] == []
    # A driver that starts again knows it still.
    before = tainted.consumer(claim[2])
    tainted.stop()
    resource_claims._secret.cache_clear()
    assert tainted.consumer(claim[2]) == before
    plugin = tainted.start()
    assert plugin.unprepare(claim)[claim[2]].error == ""
    assert tainted.allocation(claim[2]) is None


def test_processes_that_start_at_once_have_one_secret(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "driver" / "consumers.key"
    with futures.ThreadPoolExecutor(8) as pool:
        # Each as in a process of its own.
        found = set(pool.map(lambda _: resource_claims._secret.__wrapped__(path), range(64)))
    assert found == {path.read_bytes()}


def test_a_call_has_one_deadline_and_a_pod_keeps_what_is_being_given_up(tainted: Node) -> None:
    tainted.start()
    namespace, name, uid = tainted.cluster.claim(tainted.devices()[0])
    conf = tainted.site.conf
    own = resource_claims.ResourceClaims(conf, accelerators.KubeApi(conf), Cluster(conf))
    for call, why in (
        (call_for(5, is_heard=False), "does not wait"),
        (call_for(-1), "cannot be reached|in time"),
    ):
        with pytest.raises(errors.CyborgError, match=why):
            own.prepare(namespace, name, uid, call)
    with own._alone(uid, 0), pytest.raises(resource_claims.NotPrepared, match="Another call"):
        own.unprepare(uid, call_for(-1))
    assert tainted.allocation(uid) is None
    own.unprepare(uid, call_for(5))

    own.reserve(own._claim(namespace, name, uid, call_for(9)), call_for(9))
    giving_up = threading.Thread(target=own.give_up, args=(uid, call_for(30)))
    with own._alone(uid, time.monotonic() + 9):
        giving_up.start()
        until(lambda: own._freed._waiters)  # type: ignore[attr-defined]
        # As prepare() says at its end, where the pod came meanwhile.
        own._early.discard(uid)
    giving_up.join(30)
    assert tainted.allocation(uid) is not None
    own.unprepare(uid, call_for(9))


def lease_ms(uid: str) -> int:
    row = models.Allocation
    with db.reader() as session:
        query = sa.select(row.lease_ms - db.now_ms()).where(row.uuid == uid)
        return session.scalars(query).one() or 0


def test_leases_are_renewed_as_long_as_there_are_claims(tainted: Node) -> None:
    plugin = tainted.start()
    names = tainted.devices()
    kept, lost = (tainted.cluster.claim(name) for name in names[:2])
    plugin.prepare(kept, lost)
    del tainted.cluster.claims[lost[:2]]
    tainted.site.conf.set_override("lease_seconds", 9000, group="kube")
    assert tainted.driver is not None
    found: leases.Leases = tainted.driver._leases
    assert found.pause == 600
    found.renew()
    kept_uid, lost_uid = (tainted.consumer(each[2]) for each in (kept, lost))
    assert 6_000_000 < lease_ms(kept_uid) <= 9_000_000
    assert lease_ms(lost_uid) <= 600_000
    # Who does not know which claims there are keeps all of them.
    tainted.cluster.is_broken = True
    tainted.site.conf.set_override("lease_seconds", 20000, group="kube")
    found.renew()
    assert {lease_ms(each) > 10_000_000 for each in (kept_uid, lost_uid)} == {True}
    tainted.site.call("DELETE", f"/allocations/{kept_uid}", version=VERSION)


def test_a_lease_that_ended_while_nobody_looked_is_an_error(tainted, caplog) -> None:
    lost, starting = (
        tainted.cluster.claim(f"fpga-{uuid.UUID(int=number)}-0") for number in range(2)
    )
    status = tainted.cluster.claims[lost[:2]]["status"]
    status["reservedFor"] = [{"resource": "pods", "name": "a", "uid": "b"}]
    conf = tainted.site.conf
    found = leases.Leases(conf, accelerators.KubeApi(conf), Cluster(conf))
    for _ in range(3):
        found.renew()
    errors = [each.getMessage() for each in ours_of(caplog) if each.levelname == "ERROR"]
    assert len(errors) == 1
    assert f"default/claim-{lost[2]} has no devices" in errors[0]
    assert starting[2] not in errors[0]


@pytest.mark.parametrize(
    ("options", "lack"),
    [("", "[kube] auth_type is not set"), ("auth_type = none", "see [kube] kubeconfig")],
)
def test_it_says_what_it_lacks(options: str, lack: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "cyborg.conf"
    file.write_text(f"[kube]\n{options}\n")
    command = [sys.executable, "-m", "cyborg.cmd.kube", "--config-file", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert lack in line
