# SPDX-License-Identifier: Apache-2.0
"""A fault in one file of sysfs costs one device, and takes nothing that is known of it."""

from __future__ import annotations

import pytest

from cyborg.tests.contract import faults

#: Directories that have no function, and files whose faults are those of the whole host.
SHARED = {
    "/sys/bus/pci/devices",
    "/sys/class/accel",
    "/sys/class/block",
    "/sys/class/mdev_bus",
    "/sys/class/net",
    "/sys/fs/btrfs",
}
VGPUS = "[gpu_devices]\nenabled_vgpu_types = 1137\n"
LAYOUTS = "[gpu_devices]\nlayouts = H100XM-40C\n[intel_qat_driver]\nlayouts = dc\n"
MDEVS = '[mdev]\nmdev_spec = {"mdev_type": "nvidia-222"}\n'
BOARD = '[pci]\ndevice_spec = {"vendor_id": "10de", "board": "b"}\n'
PORTS = '[nic_driver]\ndevice_spec = {"vendor_id": "15b3"}\n'
DISKS = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'


@pytest.mark.parametrize(
    ("cards", "drivers", "text"),
    [
        (
            [{"card": "h100", "vfs": 2}, {"card": "qat-4xxx", "vfs": 1}, "mi210"],
            ["nvidia_gpu_driver", "intel_qat_driver", "amd_gpu_driver"],
            VGPUS,
        ),
        (
            ["n3000", "u250", {"card": "x710", "vfs": 1}, "ascend310"],
            [
                "intel_fpga_driver",
                "xilinx_fpga_driver",
                "intel_nic_driver",
                "huawei_ascend_driver",
            ],
            "",
        ),
        (
            ["t4", "nvme-pm1733", "fpga-inspur"],
            ["mdev_driver", "nvidia_gpu_driver", "nvme_driver", "inspur_fpga_driver"],
            MDEVS + DISKS,
        ),
        (
            ["ai100", "gaudi2", {"card": "flex170", "vfs": 1}, "dsa", "connectx6"],
            [
                "accel_driver",
                "habana_driver",
                "intel_gpu_driver",
                "intel_dsa_driver",
                "nic_driver",
            ],
            PORTS,
        ),
        (
            ["nvswitch", {"card": "t4", "switch": 1}, "mi210"],
            ["pci_driver", "amd_gpu_driver"],
            BOARD,
        ),
        (
            [{"card": "h100", "vfs": 2}, {"card": "qat-4xxx", "vfs": 1}],
            ["nvidia_gpu_driver", "intel_qat_driver"],
            LAYOUTS,
        ),
    ],
    ids=[
        "gpus",
        "fpgas and networks",
        "mediated devices and disks",
        "generic drivers",
        "a board",
        "layouts",
    ],
)
def test_a_fault_costs_one_device_and_is_named(simulate, cards, drivers, text):
    simulated = simulate({"cards": cards})

    result = simulated.call(faults.inject, str(simulated.root), drivers, text)

    assert result.harm == []
    assert result.shared <= SHARED
    assert result.faults > 500


SOUND = {
    "id": "10de:10f0",
    "subsystem": "10de:12a2",
    "class": "040300",
    "driver": "snd_hda_intel",
    "bound": "snd_hda_intel",
}
CONSOLE = {"card": "t4", "boot_vga": 1, "class": "030000", "mdev": None}


def in_one_group(simulated):
    """Put the sound function of a card into the IOMMU group of the card."""
    first = simulated.card("t4")
    group = simulated.files.target(f"{simulated.path(first)}/iommu_group")
    sound = f"{simulated.path(f'{first[:-1]}1')}/iommu_group"
    simulated.files.unlink(sound)
    simulated.files.link(sound, f"kernel/iommu_groups/{group}")


def put(card, path, text):
    """What somebody has done on the host: a file of a card has that text."""

    def change(simulated):
        simulated.files.put(f"{simulated.path(simulated.card(card))}/{path}", text)

    return change


def typed(simulated):
    """Somebody has given a virtual function a vGPU type."""
    vf = simulated.vfs(simulated.card("h100"))[0]
    simulated.write(f"{simulated.path(vf)}/nvidia/current_vgpu_type", "1137")


def unchanged(_simulated):
    """The host as it is described."""


@pytest.mark.parametrize(
    ("host", "change", "driver", "text"),
    [
        (
            {"cards": [{"card": "t4", "mdev": None, "functions": [SOUND]}]},
            in_one_group,
            "nvidia_gpu_driver",
            "",
        ),
        ({"cards": [CONSOLE]}, unchanged, "nvidia_gpu_driver", ""),
        ({"cards": [{"card": "h100", "vfs": 2}]}, typed, "nvidia_gpu_driver", ""),
        (
            {"cards": ["connectx6"], "default_route": "ens1f0"},
            unchanged,
            "nic_driver",
            PORTS,
        ),
        (
            {"cards": ["nvme-pm1733"], "volumes": {"dm-0": ["nvme0n1"]}},
            unchanged,
            "nvme_driver",
            DISKS,
        ),
        ({"cards": ["dsa"]}, put("dsa", "dsa0/state", "enabled"), "intel_dsa_driver", ""),
        ({"cards": ["dsa"]}, put("dsa", "dsa0/state", "halted"), "intel_dsa_driver", ""),
        (
            {"cards": ["mi300x"]},
            put("mi300x", "ras/umc_err_count", "ue: 2\nce: 0"),
            "amd_gpu_driver",
            "",
        ),
        (
            {"cards": [{"card": "qat-4xxx", "vfs": 1}]},
            put("qat-4xxx", "qat/state", "down"),
            "intel_qat_driver",
            "",
        ),
        ({"cards": ["gaudi2"]}, put("gaudi2", "status", "Malfunction"), "habana_driver", ""),
        (
            {"cards": ["mi210"]},
            put("mi210", "current_link_width", "4"),
            "amd_gpu_driver",
            "",
        ),
        (
            {"cards": ["mi210"]},
            put("mi210", "aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 1"),
            "amd_gpu_driver",
            "",
        ),
        (
            {"cards": ["nvme-pm1733"]},
            put("nvme-pm1733", "nvme/nvme0/state", "dead"),
            "nvme_driver",
            DISKS,
        ),
    ],
    ids=[
        "a group that the host has a part of",
        "the screen",
        "somebody's virtual GPU",
        "the uplink",
        "a volume's disk",
        "DSA in use",
        "DSA halted",
        "memory errors",
        "QAT down",
        "Gaudi given up",
        "lanes lost",
        "fatal errors",
        "dead disk",
    ],
)
def test_a_fault_frees_and_heals_nothing(simulate, host, change, driver, text):
    simulated = simulate(host)
    change(simulated)

    result = simulated.call(faults.inject, str(simulated.root), [driver], text)

    assert result.harm == []
    assert result.faults > 50


def test_no_device_depends_on_the_lists_of_names(simulate):
    simulated = simulate({"cards": ["t4", {"card": "h100", "vfs": 2}, "mi210", "qat-c62x"]})
    drivers = ["nvidia_gpu_driver", "amd_gpu_driver", "intel_qat_driver"]

    harm = simulated.call(faults.inject_shared, str(simulated.root), drivers, VGPUS)

    assert harm == []
