# SPDX-License-Identifier: Apache-2.0
"""The fake driver: upstream's device first, any number of others, host steps on demand."""

from __future__ import annotations

import json
import threading

import pytest

from cyborg.drivers import base, fake
from cyborg.tests.contract import driver as contract


class TestFakeDriver(contract.HostStepContract):
    entry_point = "fake_driver"

    @pytest.fixture(params=[(1, 16, False), (300, 2, False), (2, 4, True)])
    def conf(self, request, conf):
        devices, handles, host_step = request.param
        conf.set_override("devices", devices, group="fake_driver")
        conf.set_override("handles_per_device", handles, group="fake_driver")
        conf.set_override("host_step", host_step, group="fake_driver")
        return conf


@pytest.fixture
def control(conf, tmp_path):
    """The file that says what the host steps do."""
    path = tmp_path / "control.json"
    conf.set_override("host_step_control", str(path), group="fake_driver")
    return path


HANDLE = base.HeldHandle(
    attach_type="TEST_PCI",
    attach_info={"bus": "0c"},
    uuid="313f7a53-cebb-4685-9640-5b054d4b82c5",
    control_path=base.ControlPath(cpid_type="PCI", cpid_info={"bus": "0c"}),
)


def discover(conf):
    return list(fake.FakeDriver(conf).discover(contract.Host("host-1")))


def test_the_first_device_looks_like_upstreams(conf):
    (device,) = discover(conf)

    (deployable,) = device.deployables
    assert (device.type, device.vendor, device.model) == ("FPGA", "0xABCD", "miss model info")
    assert device.std_board_info == '{"device_id": "0xabcd", "class": "Fake class"}'
    assert device.vendor_board_info == "fake_vendor_info"
    assert device.control_path == base.ControlPath(
        cpid_type="PCI",
        cpid_info={"domain": "0000", "bus": "0c", "device": "00", "function": "0"},
    )
    assert deployable.name == "host-1_FakeDevice"
    assert (deployable.resource_class, deployable.traits) == ("FPGA", ("CUSTOM_FAKE_DEVICE",))
    assert deployable.num_accelerators == 16
    assert {handle.attach_type for handle in deployable.attach_handles} == {"TEST_PCI"}
    places = [
        f"{handle.attach_info['domain']}:{handle.attach_info['bus']}:"
        f"{handle.attach_info['device']}.{handle.attach_info['function']}"
        for handle in deployable.attach_handles
    ]
    slots = "0.1 0.2 0.3 0.4 0.5 0.6 0.7 1.0 1.1 1.2 1.3 1.4 1.5 1.6 1.7 2.0"
    assert places == [f"0000:0c:{slot}" for slot in slots.split()]


def test_the_next_devices_are_numbered(conf):
    conf.set_override("devices", 3, group="fake_driver")

    names = [device.deployables[0].name for device in discover(conf)]

    assert names == ["host-1_FakeDevice", "host-1_FakeDevice_1", "host-1_FakeDevice_2"]


def test_there_may_be_no_device(conf):
    conf.set_override("devices", 0, group="fake_driver")

    assert discover(conf) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_host_steps_are_asked_for_where_the_option_says_so(conf, wanted):
    conf.set_override("host_step", wanted, group="fake_driver")

    (device,) = discover(conf)

    assert device.deployables[0].prepares is wanted
    assert device.deployables[0].cleans is wanted


@pytest.mark.parametrize("text", [None, "", "{}", '{"clean": {"fail": "no"}}'])
def test_a_step_succeeds_unless_the_control_file_says_otherwise(conf, control, text):
    if text is not None:
        control.write_text(text)

    fake.FakeDriver(conf).prepare(HANDLE)


@pytest.mark.parametrize("action", ["prepare", "clean"])
def test_a_step_fails_on_demand(conf, control, action):
    control.write_text(json.dumps({action: {"fail": "out of order"}}))

    with pytest.raises(RuntimeError, match=r"^out of order$"):
        getattr(fake.FakeDriver(conf), action)(HANDLE)


def test_a_step_that_hangs_goes_on_when_the_file_no_longer_says_so(conf, control):
    control.write_text('{"clean": {"hang": true}}')
    thread = threading.Thread(target=fake.FakeDriver(conf).clean, args=(HANDLE,), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()

    control.unlink()

    thread.join(30)
    assert not thread.is_alive()
