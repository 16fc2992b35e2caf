# SPDX-License-Identifier: Apache-2.0
"""The fake driver: upstream's device first, any number of others, host steps on demand."""

from __future__ import annotations

import json
import threading
import time

import pytest

from cyborg.drivers import base, fake, pci
from cyborg.tests.contract import driver as contract


def configure(conf, **options):
    for name, value in options.items():
        conf.set_override(name, value, group="fake_driver")


class TestFakeDriver(contract.HostStepContract):
    entry_point = "fake_driver"

    @pytest.fixture(
        params=[
            {},
            {"devices": 300, "handles_per_device": 2},
            {"devices": 2, "handles_per_device": 4, "host_step": True},
            {"program_mode": "dynamic", "regions": 4},
            {"program_mode": "single-program", "regions": 1},
        ]
    )
    def conf(self, request, conf):
        configure(conf, **request.param)
        return conf


@pytest.fixture
def control(conf, tmp_path):
    """The file that says what the host steps do."""
    path = tmp_path / "control.json"
    configure(conf, host_step_control=str(path))
    return path


HANDLE = base.HeldHandle(
    attach_type="TEST_PCI",
    attach_info={"bus": "0c"},
    uuid="313f7a53-cebb-4685-9640-5b054d4b82c5",
    arq="a",
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
    places = [pci.join(handle.attach_info) for handle in deployable.attach_handles]
    slots = "0.1 0.2 0.3 0.4 0.5 0.6 0.7 1.0 1.1 1.2 1.3 1.4 1.5 1.6 1.7 2.0"
    assert places == [f"0000:0c:{slot}" for slot in slots.split()]


def test_devices_are_numbered_and_ask_for_host_steps_where_the_options_say_so(conf):
    for wanted in (True, False):
        configure(conf, devices=3, host_step=wanted)
        parts = [device.deployables[0] for device in discover(conf)]
        names = ["host-1_FakeDevice", "host-1_FakeDevice_1", "host-1_FakeDevice_2"]
        assert [part.name for part in parts] == names
        assert {(part.prepares, part.cleans) for part in parts} == {(wanted, wanted)}
        # Nor is one programmable unless that is said.
        assert {(part.program_mode, part.function) for part in parts} == {(None, None)}
    configure(conf, devices=0)
    assert discover(conf) == []


@pytest.mark.parametrize("text", [None, "", "{}", '{"clean": {"fail": "no"}}'])
def test_a_step_succeeds_unless_the_control_file_says_otherwise(conf, control, text):
    if text is not None:
        control.write_text(text)

    fake.FakeDriver(conf).prepare(HANDLE)


@pytest.mark.parametrize("action", ["prepare", "clean", "discover"])
def test_what_is_to_fail_fails(conf, control, action):
    control.write_text(json.dumps({action: {"fail": "out of order"}}))
    given = contract.Host("host-1") if action == "discover" else HANDLE

    with pytest.raises(RuntimeError, match=r"^out of order$"):
        list(getattr(fake.FakeDriver(conf), action)(given))


def test_a_step_that_hangs_goes_on_when_the_file_no_longer_says_so(conf, control):
    control.write_text('{"clean": {"hang": true}}')
    thread = threading.Thread(target=fake.FakeDriver(conf).clean, args=(HANDLE,), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()

    control.unlink()

    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def bitstream(tmp_path):
    """A file that the fake FPGA takes for its function ``aes-128``."""
    path = tmp_path / "aes.bit"
    path.write_bytes(b'{"function": "aes-128"}\n' + bytes(range(256)))
    return path


@pytest.fixture(params=["in memory", "in a file"])
def programmable(request, conf, tmp_path):
    """A driver whose one device is programmable as a whole."""
    configure(conf, program_mode="single-program")
    if request.param == "in a file":
        configure(conf, state_dir=str(tmp_path / "state"))
    return fake.FakeDriver(conf)


def functions(driver):
    """What each deployable runs."""
    return {
        deployable.name: deployable.function
        for device in driver.discover(contract.Host("host-1"))
        for deployable in device.deployables
    }


def target_of(driver):
    return contract.program_targets(driver.discover(contract.Host("host-1")))[0]


def test_regions_are_below_their_card_and_share_its_handles(conf):
    whole = discover(conf)[0].deployables[0].attach_handles
    configure(conf, regions=3)

    card, *regions = discover(conf)[0].deployables

    names = [f"host-1_FakeDevice_region_{number}" for number in range(3)]
    assert (card.name, card.num_accelerators, card.parent) == ("host-1_FakeDevice", 0, None)
    assert [region.name for region in regions] == names
    assert {region.parent for region in regions} == {card.name}
    assert [region.num_accelerators for region in regions] == [5, 5, 5]
    assert sum((region.attach_handles for region in regions), ()) == whole[:15]


def test_what_is_programmed_is_shown_as_loaded(programmable, conf, bitstream):
    assert functions(programmable) == {"host-1_FakeDevice": ""}

    for _ in range(2):
        done = programmable.program(target_of(programmable), bitstream)

        assert done == base.Programmed(function="aes-128", verified_by="the fake card's memory")
        assert functions(programmable) == {"host-1_FakeDevice": "aes-128"}
    # It survives the agent where there is a directory.
    kept = conf.fake_driver.state_dir is not None
    assert functions(fake.FakeDriver(conf)) == {"host-1_FakeDevice": "aes-128" if kept else ""}


def test_regions_are_programmed_apart(conf, bitstream):
    configure(conf, program_mode="dynamic", regions=2)
    driver = fake.FakeDriver(conf)

    driver.program(target_of(driver), bitstream)

    assert functions(driver) == {
        "host-1_FakeDevice": None,
        "host-1_FakeDevice_region_0": "aes-128",
        "host-1_FakeDevice_region_1": "",
    }


def test_what_is_no_bitstream_of_its_is_refused(programmable, tmp_path):
    path = tmp_path / "other.bit"
    for text in (b"", b"\x7fELF", b"{}", b"[1]", b'{"function": "a b"}'):
        path.write_bytes(text)
        with pytest.raises(base.NothingWritten, match="not a bitstream of the fake FPGA"):
            programmable.program(target_of(programmable), path)


@pytest.mark.parametrize(
    ("place", "kind", "left"),
    [
        ("start", base.NothingWritten, "old"),
        (None, RuntimeError, ""),
        ("end", RuntimeError, "aes-128"),
    ],
)
def test_programming_fails_on_demand(programmable, control, bitstream, tmp_path, place, kind, left):
    old = tmp_path / "old.bit"
    old.write_text('{"function": "old"}')
    programmable.program(target_of(programmable), old)
    at = {} if place is None else {"fail_at": place}
    control.write_text(json.dumps({"program": {"fail": "out of order", **at}}))

    with pytest.raises(kind, match=r"^out of order$"):
        programmable.program(target_of(programmable), bitstream)

    assert functions(programmable) == {"host-1_FakeDevice": left}


def test_while_programming_hangs_nothing_is_loaded(programmable, control, bitstream):
    programmable.program(target_of(programmable), bitstream)
    control.write_text('{"program": {"hang": true}}')
    arguments = (target_of(programmable), bitstream)
    thread = threading.Thread(target=programmable.program, args=arguments, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while functions(programmable) != {"host-1_FakeDevice": ""}:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    control.unlink()

    thread.join(60)
    assert functions(programmable) == {"host-1_FakeDevice": "aes-128"}
