# SPDX-License-Identifier: Apache-2.0
"""Faults of cards in the kernel's log are known by what they say, whatever the form of words."""

from __future__ import annotations

import pytest

from cyborg.tests.gpu_log import TOLD, XIDS, healths

HAPPENED = "4,{number},{number},-;{text}\n"


def lines(*texts: str) -> list[str]:
    return ["".join(HAPPENED.format(number=n, text=each) for n, each in enumerate(texts, 100))]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:{slot} GPU-I:05): 48, pid=7194, name=a, DBE",
        "NVRM: Xid (PCI:{slot} GPU-I:05 GPU-CI:01): 48, pid=7194, name=a, DBE",
        "NVRM: Xid ({slot}): 48, pid=7194",
        "NVRM: Xid (PCI:{slot}.0): 48, pid=7194",
        "NVRM: GPU {slot}.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:{slot}: GPU-3f1c has fallen off the bus",
        r"NVRM: The NVIDIA GPU {slot}.0\x0aNVRM: (PCI ID: 10de:1) has\x0aNVRM: fallen off the bus",
        "NVRM: GPU {slot}.0: RmInitAdapter failed! (0x62:0xffff:2351)",
        "pcieport 0000:00:01.1: AER: Multiple Uncorrected (Fatal) error received: {slot}.0",
        "pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from {slot}.0",
        "nvidia {slot}.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        "vfio-pci {slot}.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible",
    ],
)
def test_nvidia_gpus(simulate, log, kept, text):
    simulated = simulate({"cards": [{"card": "t4", "count": 2}]})
    first, second = simulated.card("t4"), simulated.card("t4", 1)
    slot = first.removesuffix(".0")
    told = [TOLD.format(time=9, slot=slot)]

    seen = simulated.call(
        healths, "nvidia_gpu_driver", kept + XIDS, log, [*lines(text.format(slot=slot)), *told]
    )

    assert [each[first] is None for each in seen] == [False, True]
    assert {each[second] for each in seen} == {None}


def test_a_line_without_an_address_is_of_the_gpu_that_was_named_before(simulate, log, kept):
    simulated = simulate({"cards": [{"card": "t4", "count": 2, "driver": None}]})
    first, second = simulated.card("t4"), simulated.card("t4", 1)

    told = lines(
        f"NVRM: The NVIDIA GPU {second}",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        f"nouveau: probe of {first} failed with error -12",
    )
    (seen,) = simulated.call(healths, "nvidia_gpu_driver", kept, log, told)

    assert seen[first] is None
    assert "fallen off the bus; " in seen[second]
    assert seen[second].endswith("its driver could not take it")


@pytest.mark.parametrize(
    ("driver", "healthy"), [(None, False), ("nvidia", True), ("vfio-pci", True)]
)
@pytest.mark.parametrize(
    "text",
    [
        "nvidia: probe of {address} failed with error -1",
        "nvidia {address}: probe with driver nvidia failed with error -1",
    ],
)
def test_a_driver_that_could_not_take_a_card_that_another_has_now(
    simulate, log, kept, driver, healthy, text
):
    simulated = simulate({"cards": [{"card": "t4", "driver": driver}]})
    card = simulated.card("t4")

    (seen,) = simulated.call(
        healths, "nvidia_gpu_driver", kept, log, lines(text.format(address=card))
    )

    assert (seen[card] is None) == healthy


AMD_FAULTS = [
    "amdgpu {address}: amdgpu: Fatal error during GPU init",
    "amdgpu {address}: Fatal error during GPU init",
    "amdgpu {address}: amdgpu: failed to initialize the TMR",
    "amdgpu {address}: amdgpu: amdgpu_device_ip_init failed",
    "amdgpu {address}: amdgpu: hw_init of IP block <psp> failed -22",
    "amdgpu {address}: amdgpu: GPU reset(3) failed",
    "amdgpu {address}: amdgpu: device lost from the bus!",
    "amdgpu {address}: device lost from bus!",
]
NO_FAULTS = [
    "amdgpu {address}: amdgpu: failed to initialize backlight",
    "amdgpu {address}: amdgpu: GPU reset begin!",
    "amdgpu {address}: [drm] device wedged, but recovered through reset",
    "amdgpu {address}: Ring gfx_0.0.0 reset failed",
    "amdgpu {address}: amdgpu: failed to reset legacy queue",
    "amdgpu {address}: [drm] *ERROR* Failed to initialize parser -125!",
    "amdgpu {other}: amdgpu: Fatal error during GPU init",
    "pcieport 0000:00:01.1: AER: Corrected error received: {address}",
    "amdgpu {address}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction",
]


@pytest.mark.parametrize("text", [*AMD_FAULTS, *NO_FAULTS])
def test_amd_gpus(simulate, log, kept, text):
    simulated = simulate({"cards": [{"card": "mi300x", "count": 2}]})
    first, second = simulated.card("mi300x"), simulated.card("mi300x", 1)
    told = text.format(address=first, other=first.replace(".0", ".1"))

    (seen,) = simulated.call(healths, "amd_gpu_driver", kept, log, lines(told))

    assert seen[second] is None
    if text in NO_FAULTS:
        assert seen[first] is None
    else:
        assert first in seen[first]


@pytest.mark.parametrize("node", ["accel accel0", "habanalabs hl0", "habanalabs {address}"])
def test_gaudi_processors(simulate, log, kept, node):
    simulated = simulate({"cards": [{"card": "gaudi2", "count": 2}]})
    first, second = simulated.card("gaudi2"), simulated.card("gaudi2", 1)
    simulated.files.put("class/habanalabs/hl0/pci_addr", first)
    text = f"{node}: Failed to initialize CPU".format(address=first)

    (seen,) = simulated.call(healths, "habana_driver", kept, log, lines(text))

    assert seen == {
        first: f"The kernel has logged a fault of PCI function {first}: Failed to initialize",
        second: None,
    }


BOARD = (
    '[pci]\ndevice_spec = {"vendor_id": "10de", "product_id": "22a3", "board": "hgx", '
    '"resource_class": "CUSTOM_HGX"}\n'
)


@pytest.mark.parametrize(("severity", "healthy"), [("Fatal", False), ("Non-fatal", True)])
def test_switches_of_an_hgx_board(simulate, log, kept, severity, healthy):
    switch = {"id": "10de:22a3", "class": "068000", "driver": "nvidia-nvswitch"}
    simulated = simulate(
        {"cards": [{"card": "t4", "count": 2, "sriov": None, "attributes": {}, **switch}]}
    )
    last = simulated.card("t4", 1)
    text = f"nvidia-nvswitch1: SXid (PCI:{last}): 12028, {severity}, Link 46 egress error (First)"

    (seen,) = simulated.call(healths, "pci_driver", kept + BOARD, log, lines(text))

    assert [health is None for health in seen.values()] == [healthy]


def test_the_next_agent_counts_no_line_twice(simulate, log, kept):
    simulated = simulate({"cards": ["mi300x"]})
    card = simulated.card("mi300x")
    error = f"amdgpu {card}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Data Link Layer"

    def seen(logged: list[str], option: str = "aer_nonfatal_errors = 3") -> bool:
        text = f"{kept}[pci_health]\n{option}\n"
        return simulated.call(healths, "amd_gpu_driver", text, log, logged)[-1][card] is None

    assert seen(lines(error, error))
    assert seen([""])
    assert not seen([HAPPENED.format(number=900, text=error)])
    # The operator may look away.
    fatal = HAPPENED.format(number=901, text=f"amdgpu {card}: amdgpu: Fatal error during GPU init")
    assert seen([fatal], "logged_faults = false")
