# SPDX-License-Identifier: Apache-2.0
"""What sysfs tells of a device's health, in words that stay the same."""

from __future__ import annotations

import pytest

from cyborg.drivers import pci
from cyborg.tests.contract import driver as contract
from cyborg.tests.pci_functions import function

CARD = function("0000:0c:00.0", driver="nvidia")
LINK = {
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": 16,
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": 16,
    "../max_link_speed": "16.0 GT/s PCIe",
    "../max_link_width": 16,
}
#: As a function of a QAT 4xxx or a DSA shows it, which is built into the processor.
NO_LINK = {
    "current_link_speed": "Unknown",
    "current_link_width": 0,
    "max_link_speed": "Unknown",
    "max_link_width": 255,
}
ERRORS = "Undefined 0\nDLP {0}\nTOTAL_ERR_{1} {0}\n"


class Gpus(pci.PciDriver):
    match = (pci.Match(vendor="10de", class_code="03*"),)
    type = "GPU"
    resource_class = "PGPU"
    group = "gpu_devices"


class Cards(Gpus):
    expose = "vfs"


class Slots(Gpus):
    expose = "slot"


def health(driver: pci.PciDriver, functions, files=None) -> list[str | None]:
    host = contract.host_with(functions, {CARD.address: files or {}})
    return [driver.health(device, host) for device in driver.discover(host)]


OF = "PCI function 0000:0c:00.0"
NO_SLOT = {"../max_link_width": None, "../max_link_speed": None}
NARROW_SLOT = {"../max_link_width": 8, "../max_link_speed": "8"}


def link(**now: object) -> dict[str, object]:
    return {**LINK, **{f"current_link_{key}": value for key, value in now.items()}}


def fatal(count: int) -> dict[str, object]:
    return {"aer_dev_fatal": ERRORS.format(count, "FATAL")}


def nonfatal(count: int) -> dict[str, object]:
    return {"aer_dev_nonfatal": ERRORS.format(count, "NONFATAL")}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, None),
        (LINK, None),
        (link(speed="2.5 GT/s PCIe"), None),
        (NO_LINK, None),
        ({**NO_LINK, "max_link_width": 0}, None),
        (dict.fromkeys(NO_LINK, ""), None),
        (link(width=8) | NO_SLOT, None),
        (link(width=4), f"The link of {OF} has 4 lanes of 16"),
        (link(speed="Unknown"), None),
        (link(speed=""), None),
        (link(width=8) | NARROW_SLOT, None),
        (link(width=63, speed="Unknown"), f"{OF} does not answer: its link is down"),
        (link(width=63, speed="Unknown") | {"power_state": "D3cold"}, None),
        (fatal(0), None),
        (fatal(1), f"{OF} has had a fatal PCIe error"),
        # More are no news.
        (fatal(900), f"{OF} has had a fatal PCIe error"),
        (nonfatal(99), None),
        (nonfatal(100), f"{OF} has had 100 or more nonfatal PCIe errors"),
        ({"aer_dev_correctable": "TOTAL_ERR_COR 100000\n"}, None),
        (
            link(width=1) | fatal(1),
            f"The link of {OF} has 1 lanes of 16; {OF} has had a fatal PCIe error",
        ),
    ],
)
def test_links_and_errors(conf, files, sentence):
    assert health(Cards(conf), [CARD], files) == [sentence]


@pytest.mark.parametrize(
    ("option", "value", "files", "sentence"),
    [
        ("link_width", False, link(width=4), None),
        (
            "link_speed",
            True,
            link(speed="2.5 GT/s"),
            f"The link of {OF} runs at 2.5 GT/s instead of 16.0 GT/s",
        ),
        ("aer_fatal_errors", 0, fatal(7), None),
        ("aer_nonfatal_errors", 1, nonfatal(1), f"{OF} has had a nonfatal PCIe error"),
    ],
)
def test_the_operator_says_what_counts(conf, option, value, files, sentence):
    conf.set_override(option, value, group="pci_health")

    assert health(Cards(conf), [CARD], files) == [sentence]


PF = function("0000:0c:00.0", sriov_totalvfs=8, vfs=("0000:0c:00.4",))
VF = function("0000:0c:00.4", pf=PF.address)


def test_a_card_that_the_host_must_drive_ails_without_a_driver(conf):
    assert health(Cards(conf), [PF, VF]) == ["PCI function 0000:0c:00.0 has no driver"]
    assert health(Cards(conf), [function("0000:0c:00.0")]) == [None]
    conf.set_override("driver_unbound", False, group="pci_health")
    assert health(Cards(conf), [PF, VF]) == [None]


def test_a_card_that_loses_a_function_ails_until_it_is_back(conf):
    driver = Slots(conf)
    second = function("0000:0c:00.1")
    missing = "PCI function {} is missing from the bus"

    assert health(driver, [CARD, second]) == [None]
    assert health(driver, [CARD]) == [missing.format(second.address)]
    assert health(driver, [second]) == [missing.format(CARD.address)]
    assert health(driver, [CARD, second]) == [None]
    # Another card in its place has functions of its own.
    assert health(driver, [function(CARD.address, device="2236")]) == [None]


def test_a_function_that_vanishes_meanwhile_is_missing(conf):
    driver = Cards(conf)
    host = contract.host_with([CARD])
    (device,) = driver.discover(host)
    files = contract.Files({})
    files.vanished = {CARD.address}
    later = contract.Host(pci=contract.snapshot([CARD], files))

    assert driver.health(device, later) == "PCI function 0000:0c:00.0 is missing from the bus"
