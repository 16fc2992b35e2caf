# SPDX-License-Identifier: Apache-2.0
"""Subsystems of an SPDK target, from a target's socket to devices and back."""

from __future__ import annotations

import base64
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.agent import discovery
from cyborg.conf import drivers as options
from cyborg.drivers import base, registry
from cyborg.drivers.nvme import nvmf_spdk, spdk_rpc
from cyborg.tests.contract import driver as contract
from cyborg.tests.spdk_server import HOST, OTHER, SpdkServer

UUIDS = (
    "1b3e7c11-5a55-4a5e-9a3c-0d5f6f0d2a01",
    "8c0f3d5e-6f1b-4b8b-8f57-52b1f5f7a902",
    "f2a0a3b4-14c6-4dd0-9f57-7f3a2a51aa03",
)
NQN = "nqn.2016-06.io.spdk:cnode"


@pytest.fixture
def conf(conf: cfg.ConfigOpts, spdk: SpdkServer) -> cfg.ConfigOpts:
    settings = {"rpc_address": spdk.address, "host_nqn": HOST, "reuse_without_erasing": True}
    for name, value in {**settings, "timeout": 60}.items():
        conf.set_override(name, value, group="nvmf_spdk")
    return conf


@pytest.fixture
def driver(conf: cfg.ConfigOpts) -> nvmf_spdk.NvmfSpdkDriver:
    return nvmf_spdk.NvmfSpdkDriver(conf)


class TestContract(contract.DriverContract):
    entry_point = "nvmf_spdk_driver"


def found(driver: base.Driver) -> dict[int, base.Device]:
    """What the driver finds, by the number of the subsystem."""
    devices = list(driver.discover(contract.Host()))
    return {int(device.control_path.cpid_info["subnqn"][len(NQN) :]): device for device in devices}


def held(
    driver: base.Driver,
    number: int,
    uuid: str = "h",
    consumer: str | None = None,
    *,
    arq: str = "a",
    in_use: bool = False,
) -> base.HeldHandle:
    """The subsystem's handle, as a host step gets it."""
    device = found(driver)[number]
    (handle,) = device.deployables[0].attach_handles
    return base.HeldHandle(
        attach_type=handle.attach_type,
        attach_info=handle.attach_info,
        uuid=uuid,
        control_path=device.control_path,
        consumer_nqn=consumer,
        arq=arq,
        in_use=in_use,
    )


def test_a_subsystem_is_a_device_with_one_handle(driver: base.Driver) -> None:
    devices = found(driver)
    assert sorted(devices) == [1, 2, 3]
    (drive,) = devices[1].deployables
    assert (devices[1].type, devices[1].unhealthy) == ("NVME", None)
    assert drive.name == f"host-1_{NQN}1"
    assert (drive.resource_class, drive.num_accelerators) == ("CUSTOM_NVMF", 1)
    assert drive.attach_handles[0].attach_type == "NVMF"
    assert drive.attach_handles[0].attach_info == {
        "trtype": "TCP",
        "traddr": "192.0.2.10",
        "trsvcid": "4420",
        "subnqn": f"{NQN}1",
        "nsid": "1",
        "uuid": UUIDS[0],
    }
    assert drive.attributes == {
        "serial": "SPDK00000000000001",
        "capacity_mib": 3662830,
        "block_size": "512",
        "bdev": "Nvme0n1",
        "product": "SAMSUNG MZWLJ3T8HBLS-00007",
        "firmware": "EPK9CB5Q",
    }
    assert drive.traits == (
        "CUSTOM_NVMF_TCP",
        "CUSTOM_CAPACITY_GIB_3577",
        "CUSTOM_FIRMWARE_EPK9CB5Q",
        "CUSTOM_PRODUCT_SAMSUNG_MZWLJ3T8HBLS_00007",
    )


def test_of_several_ways_the_first_in_order_is_given_however_they_are_listed(
    driver, spdk, conf
) -> None:
    for _ in range(2):
        (volume,) = found(driver)[2].deployables
        assert volume.attach_handles[0].attach_info["trtype"] == "RDMA"
        assert volume.attributes["product"] == "Logical Volume"
        spdk.subsystem(2)["listen_addresses"].reverse()
    # Only what the operator names is reported.
    for wanted, numbers in ((["*cnode3", "*:cnode1"], [1, 3]), (["nothing"], [])):
        conf.set_override("subsystems", wanted, group="nvmf_spdk")
        assert sorted(found(driver)) == numbers


Change = Callable[[dict[str, Any], list[dict[str, Any]]], None]
SECOND = {"nsid": 2, "bdev_name": "Malloc2", "name": "Malloc2"}
NO_NETWORK, LOST = "it listens on no network", "RAID Raid1 has lost 1 of its bdevs"
ONE_BY_ONE = "namespaces, which no host sees one by one"


def permit(subsystem: dict[str, Any], nqn: str = HOST) -> None:
    subsystem["hosts"].append({"nqn": nqn})


def raid(bdevs: list[dict[str, Any]], **changes: object) -> None:
    bdevs[2]["driver_specific"]["raid"].update(changes)


@pytest.mark.parametrize(
    ("change", "sentence", "handles"),
    [
        (lambda sub, _: sub.update(namespaces=[]), "it has no namespace", 0),
        (lambda sub, _: sub.update(listen_addresses=[]), NO_NETWORK, 0),
        (lambda sub, _: sub["listen_addresses"][0].update(trtype="VFIOUSER"), NO_NETWORK, 0),
        (lambda sub, _: sub.update(allow_any_host=True), "any host may connect to it", 1),
        (lambda sub, _: permit(sub), None, 1),
        (lambda sub, _: permit(sub, OTHER), f"host {OTHER} may connect to it", 1),
        (lambda sub, _: sub["namespaces"].append(SECOND), f"it has 2 {ONE_BY_ONE}", 1),
        (lambda _, bdevs: bdevs.pop(), "bdev Raid1 is gone", 1),
        (lambda _, bdevs: raid(bdevs, state="offline"), "RAID Raid1 is offline", 1),
        (lambda _, bdevs: raid(bdevs, num_base_bdevs_operational=1), LOST, 1),
    ],
)
def test_what_ails_a_subsystem_is_said(driver, spdk, change, sentence, handles) -> None:
    change(spdk.subsystem(3), spdk.bdevs)
    devices = found(driver)
    expected = None if sentence is None else f"subsystem {NQN}3: {sentence}"
    assert devices[3].unhealthy == expected
    assert devices[3].deployables[0].num_accelerators == handles
    assert len(devices[3].deployables[0].attach_handles) == handles
    assert devices[1].unhealthy is devices[2].unhealthy is None


def test_what_has_too_long_a_name_is_left_out_or_cannot_be_given(driver, spdk) -> None:
    spdk.subsystem(3)["nqn"] = NQN + "3" + "0" * 160
    spdk.subsystem(2)["nqn"] = NQN + "2" + "0" * 180
    first, second = driver.discover(contract.Host())
    assert first.unhealthy is None
    assert second.unhealthy is not None
    assert second.unhealthy.endswith("NQN and address are too long for an attach handle")
    assert second.deployables[0].attach_handles == ()


def test_answers_of_older_targets_are_understood(driver: base.Driver, spdk: SpdkServer) -> None:
    nvme = spdk.bdevs[0]["driver_specific"]
    nvme["nvme"] = nvme["nvme"][0]
    for key in ("serial_number", "model_number"):
        del spdk.subsystem(1)[key]
    spdk.subsystem(1)["listen_addresses"][0]["trtype"] = "tcp"
    del spdk.subsystem(1)["namespaces"][0]["uuid"]
    (drive,) = found(driver)[1].deployables
    assert drive.attributes["firmware"] == "EPK9CB5Q"
    assert drive.attach_handles[0].attach_info["trtype"] == "TCP"
    assert drive.attach_handles[0].attach_info["uuid"] == UUIDS[0].replace("-", "").upper()


@pytest.mark.parametrize(
    "change",
    [
        lambda spdk: spdk.subsystem(2).pop("hosts"),
        lambda spdk: spdk.subsystem(2).pop("namespaces"),
        lambda spdk: spdk.subsystem(2).update(namespaces=None),
        lambda spdk: spdk.subsystem(2).update(listen_addresses=[{}]),
        lambda spdk: spdk.subsystems.append("text"),
        lambda spdk: spdk.bdevs.append({}),
        lambda spdk: spdk.bdevs[0].pop("num_blocks"),
        lambda spdk: spdk.bdevs[2]["driver_specific"].update(raid={}),
    ],
)
def test_an_answer_that_lacks_something_tells_nothing(driver, spdk, change) -> None:
    change(spdk)
    with pytest.raises(spdk_rpc.SpdkError, match="has not what it should"):
        found(driver)


def test_an_error_is_told_in_the_targets_words(driver: base.Driver, conf: cfg.ConfigOpts) -> None:
    conf.set_override("target_name", "nvmf_tgt", group="nvmf_spdk")
    assert len(found(driver)) == 3
    conf.set_override("target_name", "other", group="nvmf_spdk")
    with pytest.raises(
        spdk_rpc.JsonRpcError, match=r"subsystems: Unable to find a target\. \(-32603"
    ):
        found(driver)


def test_while_the_target_is_down_its_devices_are_kept_and_the_reason_is_told(conf, spdk) -> None:
    conf.set_override("enabled_drivers", ["nvmf_spdk_driver"], group="agent")
    drivers = registry.load(conf).drivers
    passes = discovery.Discovery("host-1", drivers, timeout=60)
    before = passes.run()
    spdk.stop()
    down = passes.run()
    assert down.devices == {}
    assert "cannot be reached" in down.errors["nvmf_spdk_driver"]
    assert passes.run() == down
    spdk.restart()
    assert passes.run() == before
    assert len(before.devices["nvmf_spdk_driver"]) == 3


def test_a_prepared_subsystem_lets_this_host_connect_until_it_is_cleaned(driver, spdk) -> None:
    handle = held(driver, 2)
    assert found(driver)[2].deployables[0].prepared == ()
    for _ in range(2):
        driver.prepare(handle)
        assert spdk.hosts(2) == [HOST]
        assert found(driver)[2].deployables[0].prepared == ("h",)
        assert found(driver)[2].unhealthy is None
    assert spdk.hosts(1) == spdk.hosts(3) == []
    for _ in range(2):
        driver.clean(handle)
        assert spdk.hosts(2) == []
        assert found(driver)[2].deployables[0].prepared == ()
    # A guest keeps one that ails.
    ailing = held(driver, 3)
    driver.prepare(ailing)
    spdk.bdevs.pop()
    driver.prepare(ailing)
    assert spdk.hosts(3) == [HOST]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda sub: sub.update(allow_any_host=True), "any host may connect to it"),
        (lambda sub: permit(sub, OTHER), f"host {OTHER} may connect to it"),
        (lambda sub: sub.update(nqn="nqn.2016-06.io.spdk:another"), "not what it was, or gone"),
        (lambda sub: sub["namespaces"][0].update(uuid=UUIDS[1]), "not what it was, or gone"),
    ],
)
def test_what_is_not_for_this_host_alone_is_not_prepared(driver, spdk, change, sentence) -> None:
    handle, subsystem = held(driver, 1), spdk.subsystem(1)
    change(subsystem)
    with pytest.raises(spdk_rpc.SpdkError, match=sentence):
        driver.prepare(handle)
    assert {"nqn": HOST} not in subsystem["hosts"]


def test_of_two_hosts_that_want_one_subsystem_at_once_none_stays_beside_the_other(driver, spdk):
    handle = held(driver, 1)

    def meanwhile(method: str) -> None:
        if method == "nvmf_subsystem_add_host":
            permit(spdk.subsystem(1), OTHER)

    spdk.before = meanwhile
    with pytest.raises(spdk_rpc.SpdkError, match=f"host {OTHER} may connect to it"):
        driver.prepare(handle)
    assert spdk.hosts(1) == [OTHER]


def test_a_used_namespace_stays_dirty_until_another_takes_its_place(driver, spdk, conf) -> None:
    conf.set_override("reuse_without_erasing", False, group="nvmf_spdk")
    handle = held(driver, 2)
    driver.prepare(handle)
    for _ in range(2):
        with pytest.raises(spdk_rpc.SpdkError, match="still has what was written to it"):
            driver.clean(handle)
        assert spdk.hosts(2) == []
    spdk.subsystem(2)["namespaces"][0]["uuid"] = "8c0f3d5e-6f1b-4b8b-8f57-52b1f5f7a9ff"
    driver.clean(handle)
    assert held(driver, 2) != handle


@pytest.mark.parametrize("gone", ["subsystem", "namespace"])
def test_what_the_target_has_not_at_present_stays_dirty(driver, spdk, conf, gone) -> None:
    handle = held(driver, 2)
    driver.prepare(handle)
    if gone == "subsystem":
        spdk.subsystems.remove(spdk.subsystem(2))
    else:
        spdk.subsystem(2)["namespaces"].clear()
    driver.clean(handle)
    conf.set_override("reuse_without_erasing", False, group="nvmf_spdk")
    with pytest.raises(spdk_rpc.SpdkError, match="is gone, or has no namespace at present"):
        driver.clean(handle)


def test_what_is_not_reused_must_be_erased_though_it_vanishes(driver, conf) -> None:
    for reuse in (True, False):
        conf.set_override("reuse_without_erasing", reuse, group="nvmf_spdk")
        devices = found(driver).values()
        assert [each.deployables[0].clean_erases for each in devices] == [not reuse] * 3


def test_a_host_without_a_name_cannot_say_what_it_may_have(
    driver: base.Driver, conf: cfg.ConfigOpts, tmp_path: pathlib.Path, monkeypatch
) -> None:
    conf.set_override("host_nqn", None, group="nvmf_spdk")
    hostnqn = tmp_path / "hostnqn"
    monkeypatch.setattr(nvmf_spdk, "_HOST_NQN", hostnqn)
    with pytest.raises(spdk_rpc.SpdkError, match=r"set \[nvmf_spdk\] host_nqn"):
        found(driver)
    hostnqn.write_text(f"{HOST}\n")
    assert len(found(driver)) == 3


@pytest.mark.parametrize("address", ["", "spdk.sock", "host", ":1", "host:", "host:x", "h:70000"])
def test_a_driver_with_no_address_is_not_loaded(conf: cfg.ConfigOpts, address: str) -> None:
    conf.set_override("rpc_address", address, group="nvmf_spdk")
    conf.set_override("enabled_drivers", ["nvmf_spdk_driver"], group="agent")
    loaded = registry.load(conf)
    assert loaded.drivers == {}
    assert "neither the path" in loaded.errors["nvmf_spdk_driver"]


REMOTE = "nqn.2014-08.org.nvmexpress:uuid:5b0f3c1e-0000-4000-8000-000000000009"


def test_a_consumer_on_another_host_connects_and_nobody_else(driver, spdk, conf) -> None:
    handle = held(driver, 1, consumer=REMOTE)
    driver.prepare(handle)
    assert spdk.hosts(1) == [REMOTE]
    # So does an agent that has started anew.
    for each in (driver, nvmf_spdk.NvmfSpdkDriver(conf)):
        device = found(each)[1]
        assert (device.unhealthy, device.deployables[0].prepared) == (None, ("h",))
    assert driver.access_key(handle) is None
    permit(spdk.subsystem(1))
    assert found(driver)[1].unhealthy == f"subsystem {NQN}1: host {HOST} may connect to it"
    driver.clean(handle)
    assert spdk.hosts(1) == [HOST]
    assert found(driver)[1].unhealthy is None
    with pytest.raises(spdk_rpc.SpdkError, match=f"host {HOST} may connect to it"):
        driver.prepare(handle)


@pytest.fixture
def keys(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of the keys; each consumer needs one."""
    conf.set_override("key_dir", str(tmp_path / "keys"), group="nvmf_spdk")
    return tmp_path / "keys"


def test_a_name_alone_lets_nobody_in_where_there_are_keys(keys, driver, spdk, conf) -> None:
    # Somebody has permitted the name before, without a key.
    permit(spdk.subsystem(1), REMOTE)
    handle = held(driver, 1, consumer=REMOTE)
    driver.prepare(handle)
    secret = driver.access_key(handle)
    assert secret is not None
    kind, transform, encoded, end = secret.split(":")
    assert (kind, transform, end) == ("DHHC-1", "00", "")
    raw = base64.b64decode(encoded)
    assert (len(raw), zlib.crc32(raw[:32])) == (36, int.from_bytes(raw[32:], "little"))
    assert spdk.connect(1, REMOTE, secret)
    assert not spdk.connect(1, REMOTE)
    # A target that has forgotten its keys is told the same one again, by any agent.
    spdk.restart()
    again = nvmf_spdk.NvmfSpdkDriver(conf)
    assert found(again)[1].deployables[0].prepared == ()
    for each in (again, driver):
        each.prepare(handle)
        assert spdk.connect(1, REMOTE, secret)
        assert driver.access_key(handle) == secret
    driver.clean(handle)
    assert (spdk.keys, list(keys.iterdir())) == ({}, [])
    driver.clean(handle)
    driver.prepare(handle)
    second = driver.access_key(handle)
    assert second not in {None, secret}
    # An administrator has given up the clean step.
    other = held(driver, 1, consumer=OTHER, arq="b")
    driver.prepare(other)
    assert spdk.hosts(1) == [OTHER]
    assert driver.access_key(other) not in {None, second}


def test_a_guest_from_before_the_keys_is_not_cut_off(driver, spdk, conf, tmp_path) -> None:
    handle = held(driver, 1, consumer=REMOTE)
    driver.prepare(handle)
    conf.set_override("key_dir", str(tmp_path / "keys"), group="nvmf_spdk")
    driver.prepare(handle)
    assert spdk.calls.count("nvmf_subsystem_add_host") == 1
    assert spdk.connect(1, REMOTE)
    assert driver.access_key(handle) is None
    driver.clean(handle)
    assert spdk.hosts(1) == []


@pytest.mark.parametrize("with_keys", [True, False])
def test_a_next_consumer_of_the_same_name_is_another(
    driver, spdk, conf, tmp_path, with_keys
) -> None:
    if with_keys:
        conf.set_override("key_dir", str(tmp_path / "keys"), group="nvmf_spdk")
    first = held(driver, 1, consumer=REMOTE)
    driver.prepare(first)
    secret = driver.access_key(first)
    second = held(driver, 1, consumer=REMOTE, arq="b")
    for _ in range(2):
        # The first one's connections end with its permission, once.
        driver.prepare(second)
        assert spdk.calls.count("nvmf_subsystem_remove_host") == 1
    assert spdk.hosts(1) == [REMOTE]
    assert len(spdk.keys) == with_keys
    if with_keys:
        assert driver.access_key(second) not in {None, secret}
        assert not spdk.connect(1, REMOTE, secret)
    # A permission that nobody has noted may be anybody's.
    permit(spdk.subsystem(2))
    driver.prepare(held(driver, 2))
    assert spdk.calls.count("nvmf_subsystem_remove_host") == 2


def test_what_was_interrupted_begins_anew(driver, spdk, monkeypatch) -> None:
    permit(spdk.subsystem(1))
    handle = held(driver, 1)
    with monkeypatch.context() as patched:
        patched.delattr(nvmf_spdk, "_permit")
        with pytest.raises(NameError):
            driver.prepare(handle)
    assert found(driver)[1].deployables[0].prepared == ()
    driver.prepare(handle)
    assert spdk.calls.count("nvmf_subsystem_remove_host") == 1
    assert found(driver)[1].deployables[0].prepared == ("h",)


def test_a_host_that_has_another_name_by_now_gives_back_under_the_former(driver, spdk, conf):
    handle = held(driver, 1)
    driver.prepare(handle)
    conf.set_override("host_nqn", OTHER, group="nvmf_spdk")
    driver.prepare(handle)
    assert spdk.hosts(1) == [HOST]
    spdk.restart()
    driver.prepare(handle)
    assert spdk.hosts(1) == [OTHER]
    conf.set_override("host_nqn", HOST, group="nvmf_spdk")
    driver.clean(handle)
    assert spdk.hosts(1) == []


def test_a_guest_of_which_the_agent_has_lost_all_is_not_cut_off_by_keys(keys, driver, spdk) -> None:
    permit(spdk.subsystem(1))
    handle = held(driver, 1, in_use=True)
    driver.prepare(handle)
    assert found(driver)[1].deployables[0].prepared == ("h",)
    assert "nvmf_subsystem_remove_host" not in spdk.calls
    assert driver.access_key(handle) is None
    # The next one has a key.
    second = held(driver, 1, arq="b")
    driver.prepare(second)
    assert not spdk.connect(1, HOST)
    assert spdk.connect(1, HOST, driver.access_key(second))


def test_what_an_arq_has_no_more_is_taken_back_and_nothing_else(keys, driver, spdk) -> None:
    driver.prepare(held(driver, 1, consumer=REMOTE))
    driver.prepare(held(driver, 2, "i", consumer=OTHER, arq="b"))
    assert driver.given() == {"h": "a", "i": "b"}
    driver.revoke("h", "of before")
    assert spdk.hosts(1) == [REMOTE]
    # Its disk was replaced, and is another handle.
    driver.prepare(held(driver, 1, "j", consumer=REMOTE))
    assert driver.given() == {"j": "a", "i": "b"}
    driver.revoke("j", "a")
    assert (spdk.hosts(1), spdk.hosts(2)) == ([], [OTHER])
    assert [path.name for path in keys.iterdir()] == ["b"]
    assert driver.given() == {"i": "b"}


@pytest.fixture
def two(conf: cfg.ConfigOpts, spdk: SpdkServer, tmp_path: pathlib.Path) -> Iterator[SpdkServer]:
    """The second of two targets, named fast and slow; both have subsystems of the same NQNs."""
    other = SpdkServer(tmp_path / "other.sock")
    conf.set_override("targets", ["fast", "slow"], group="nvmf_spdk")
    for name, address in {"fast": spdk.address, "slow": other.address}.items():
        options.register_nvmf_target(conf, name)
        conf.set_override("rpc_address", address, group=f"nvmf_spdk_{name}")
        conf.set_override("reuse_without_erasing", True, group=f"nvmf_spdk_{name}")
    conf.set_override("subsystems", ["*cnode1"], group="nvmf_spdk_slow")
    yield other
    other.stop()


def test_of_several_targets_each_is_asked_for_its_own_subsystems(two, spdk, conf) -> None:
    driver = nvmf_spdk.NvmfSpdkDriver(conf)
    devices = list(driver.discover(contract.Host()))
    paths = [tuple(device.control_path.cpid_info.values()) for device in devices]
    assert paths == [*((f"{NQN}{number}", "fast") for number in (1, 2, 3)), (f"{NQN}1", "slow")]
    assert devices[3].deployables[0].name == f"host-1_slow_{NQN}1"
    handle = base.HeldHandle(
        attach_type="NVMF",
        attach_info=devices[3].deployables[0].attach_handles[0].attach_info,
        uuid="h",
        arq="a",
        control_path=devices[3].control_path,
    )
    driver.prepare(handle)
    assert (two.hosts(1), spdk.hosts(1)) == ([HOST], [])
    shown = [device.deployables[0].prepared for device in driver.discover(contract.Host())]
    assert shown == [(), (), (), ("h",)]
    # One that is down says nothing of the other's devices, and keeps no guest of the other.
    spdk.stop()
    with pytest.raises(spdk_rpc.SpdkError):
        list(driver.discover(contract.Host()))
    driver.clean(handle)
    assert two.hosts(1) == []
    conf.set_override("rpc_address", two.address, group="nvmf_spdk_fast")
    with pytest.raises(ValueError, match="name the same target"):
        nvmf_spdk.NvmfSpdkDriver(conf)
    conf.set_override("targets", ["a b"], group="nvmf_spdk")
    with pytest.raises(ValueError, match="must have letters"):
        nvmf_spdk.NvmfSpdkDriver(conf)
    conf.set_override("targets", ["fast"], group="nvmf_spdk")
    with pytest.raises(spdk_rpc.SpdkError, match="target 'slow' is not in"):
        nvmf_spdk.NvmfSpdkDriver(conf).clean(handle)
