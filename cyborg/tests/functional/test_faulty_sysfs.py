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
