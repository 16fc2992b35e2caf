# SPDX-License-Identifier: Apache-2.0
"""A fault in one file that a pass reads costs one device, and takes nothing that is known of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.contract import faults, passes
from cyborg.tests.found_cards import in_one_group

pytestmark = pytest.mark.slow

ABSENT = frozenset({"missing", "dangling"})
#: The drivers that are tried beside each other on one host, each with the name of its facts.
DRIVERS = {
    "accel_driver": "accel_driver",
    "amd_gpu_driver": "amd_gpu_driver",
    "intel_gpu_driver": "intel_gpu_driver",
    "intel_qat_driver": "intel_qat_driver",
    "mdev_driver": None,
    "nic_driver": "nic_driver",
    "nvidia_gpu_driver": "gpu_devices",
    "nvme_driver": "nvme",
    "pci_driver": "pci",
    "xilinx_fpga_driver": "xilinx_fpga_driver",
}
#: What disks and networks of the host may be on depends on it.
OF_CARRIERS = faults.Source(carriers=True)
OF_GPUS = faults.Source(frozenset({"amd_gpu_driver", "nvidia_gpu_driver"}))
#: Everything that a pass reads and that is of no single function.
SOURCES = {
    "/kmsg": OF_GPUS,
    "/proc/driver/nvidia/capabilities": faults.Source(
        frozenset({"nvidia_gpu_driver"}), removals=ABSENT
    ),
    "/proc/net/if_inet6": OF_CARRIERS._replace(removals=ABSENT | {"empty"}),
    "/proc/net/route": OF_CARRIERS,
    "/proc/self/mountinfo": OF_CARRIERS,
    "/proc/swaps": OF_CARRIERS._replace(removals=ABSENT),
    "/proc/sys/kernel/random/boot_id": OF_GPUS,
    **{
        f"/state/facts/{name}.json": faults.Source(frozenset({driver}))
        for driver, name in DRIVERS.items()
        if name is not None
    },
    "/sys/bus/pci/devices": faults.Source(frozenset(DRIVERS)),
    "/sys/class/accel": faults.Source(frozenset({"accel_driver"}), removals=ABSENT),
    "/sys/devices/virtual/kfd/kfd/topology/nodes": faults.Source(
        frozenset({"amd_gpu_driver"}), removals=ABSENT
    ),
    "/sys/class/block": OF_CARRIERS,
    "/sys/class/drm": faults.Source(frozenset({"accel_driver"}), removals=ABSENT),
    "/sys/class/mdev_bus": faults.Source(frozenset({"mdev_driver"}), removals=ABSENT),
    "/sys/class/block/dm-0/holders": OF_CARRIERS,
    "/sys/class/block/dm-1/holders": OF_CARRIERS,
    "/sys/class/net": OF_CARRIERS,
    "/sys/class/uio": faults.Source(frozenset(DRIVERS), removals=ABSENT),
    "/sys/class/net/br0": OF_CARRIERS,
    "/sys/devices/virtual/block/dm-1/slaves": OF_CARRIERS,
    "/sys/fs/btrfs": OF_CARRIERS._replace(removals=frozenset({"missing"})),
    "/sys/kernel/config/nvmet/subsystems": OF_CARRIERS._replace(removals=frozenset({"missing"})),
    "/sys/kernel/config/target/core": OF_CARRIERS._replace(removals=frozenset({"missing"})),
}
VGPUS = "[gpu_devices]\nenabled_vgpu_types = 1137\n"
LAYOUTS = "[gpu_devices]\nlayouts = H100XM-40C\n[intel_qat_driver]\nlayouts = dc\n"
MDEVS = '[mdev]\nmdev_spec = {"mdev_type": "nvidia-222"}\n'
BOARD = '[pci]\ndevice_spec = {"vendor_id": "10de", "board": "b"}\n'
PORTS = '[nic_driver]\ndevice_spec = {"vendor_id": "15b3"}\n'
XID = "6,1,5000000,-;NVRM: Xid (PCI:{slot}): 79, pid='<unknown>', GPU has fallen off the bus.\n"
OPTIONS = """
[gpu_devices]
enabled_vgpu_types = 1137
unhealthy_xids = 79
[amd_gpu_driver]
heal_by_word = true
[mdev]
mdev_spec = {"mdev_type": "nvidia-222", "parent": "THE_T4"}
[pci]
device_spec = [{"vendor_id": "10de", "product_id": "22a3", "board": "b"}, {"vendor_id": "1bd4"}]
[nic_driver]
device_spec = [{"vendor_id": "15b3"}, {"vendor_id": "8086"}]
[nvme]
device_spec = {"vendor_id": "144d"}
"""
DISKS = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'


NVIDIA, QAT, AMD = "nvidia_gpu_driver", "intel_qat_driver", "amd_gpu_driver"
GENERIC = ("accel_driver", "habana_driver", "intel_gpu_driver", "intel_dsa_driver", "nic_driver")
FPGAS = ("intel_fpga_driver", "xilinx_fpga_driver", "intel_nic_driver", "huawei_ascend_driver")
H100, ENDPOINT = {"card": "h100", "vfs": 2}, {"card": "qat-4xxx", "vfs": 1}
X710, FLEX = {"card": "x710", "vfs": 1}, {"card": "flex170", "vfs": 1}
ANY_CLASS = {"card": "ai100", "class": "ff0000"}
#: Cards, drivers and options of hosts.
HOSTS = {
    "gpus": ([H100, ENDPOINT, "mi210"], [NVIDIA, QAT, AMD], VGPUS),
    "fpgas and networks": (["n3000", "u250", X710, "ascend310"], FPGAS, ""),
    "mediated devices and disks": (
        ["t4", "nvme-pm1733", "fpga-inspur"],
        ["mdev_driver", NVIDIA, "nvme_driver", "inspur_fpga_driver"],
        MDEVS + DISKS,
    ),
    "generic drivers": ([ANY_CLASS, "gaudi2", FLEX, "dsa", "connectx6"], GENERIC, PORTS),
    "a board": (["nvswitch", {"card": "t4", "switch": 1}, "mi210"], ["pci_driver", AMD], BOARD),
    "layouts": ([H100, ENDPOINT], [NVIDIA, QAT], LAYOUTS),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_fault_costs_one_device_and_is_named(simulate, name):
    cards, drivers, text = HOSTS[name]
    simulated = simulate({"cards": cards})

    result = simulated.call(faults.inject, str(simulated.root), drivers, text)

    assert result.harm == []
    # Each driver has facts of its own.
    shared = {path for path in result.shared if not path.startswith("/state/facts/")}
    assert shared <= SOURCES.keys()
    assert result.faults > 500


SOUND = {"id": "10de:10f0", "subsystem": "10de:12a2", "class": "040300", "driver": "snd_hda_intel"}
CONSOLE = {"card": "t4", "boot_vga": 1, "class": "030000", "mdev": None}


def grouped(simulated):
    """Put the sound function of a card into the IOMMU group of the card."""
    first = simulated.card("t4")
    in_one_group(simulated, first, f"{first[:-1]}1")


def put(card, path, text):
    """What somebody has done on the host: a file of a card has that text."""

    def change(simulated):
        simulated.files.put(f"{simulated.path(simulated.card(card))}/{path}", text)

    return change


def typed(simulated):
    """Somebody has given a virtual function a vGPU type."""
    vf = simulated.vfs(simulated.card("h100"))[0]
    simulated.write(f"{simulated.path(vf)}/nvidia/current_vgpu_type", "1137")


def no_heartbeat(simulated):
    folder = f"kernel/debug/qat_4xxx_{simulated.card('qat-4xxx')}"
    simulated.files.put(f"{folder}/heartbeat/status", "-1")


def unchanged(_simulated):
    """The host as it is described."""


UNCORRECTABLE, DEAD = ("ras/umc_err_count", "ue: 2\nce: 0"), ("nvme/nvme0/state", "dead")


#: Cards in use by the host, or ill: what was done to them, and their driver and its options.
KEPT: dict[str, tuple[object, Callable[[Any], None], str, str]] = {
    "a group that the host has a part of": (
        {"card": "t4", "mdev": None, "functions": [SOUND]},
        grouped,
        NVIDIA,
        "",
    ),
    "the screen": (CONSOLE, unchanged, NVIDIA, ""),
    "somebody's virtual GPU": (H100, typed, NVIDIA, ""),
    "the uplink": ("connectx6", unchanged, "nic_driver", PORTS),
    "a volume's disk": ("nvme-pm1733", unchanged, "nvme_driver", DISKS),
    "DSA in use": ("dsa", put("dsa", "dsa0/state", "enabled"), "intel_dsa_driver", ""),
    "DSA halted": ("dsa", put("dsa", "dsa0/state", "halted"), "intel_dsa_driver", ""),
    "memory errors": ("mi300x", put("mi300x", *UNCORRECTABLE), AMD, ""),
    "QAT down": (ENDPOINT, put("qat-4xxx", "qat/state", "down"), QAT, ""),
    "QAT without a heartbeat": ("qat-4xxx", no_heartbeat, QAT, ""),
    "what is reset after use": (
        {"card": "gaudi2", "reset_method": "flr"},
        unchanged,
        "habana_driver",
        "[cleaning]\ndefault = on\n",
    ),
    "what cannot be reset": (
        {"card": "gaudi2", "reset_method": ""},
        unchanged,
        "habana_driver",
        "[cleaning]\ndefault = required\n",
    ),
    "Gaudi given up": ("gaudi2", put("gaudi2", "status", "Malfunction"), "habana_driver", ""),
    "lanes lost": ("mi210", put("mi210", "current_link_width", "4"), AMD, ""),
    "fatal errors": ("mi210", put("mi210", "aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 1"), AMD, ""),
    "dead disk": ("nvme-pm1733", put("nvme-pm1733", *DEAD), "nvme_driver", DISKS),
}
#: What else there is on their hosts.
BESIDE: dict[str, dict[str, object]] = {
    "the uplink": {"default_route": "ens1f0"},
    "a volume's disk": {"volumes": {"dm-0": ["nvme0n1"]}},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_fault_frees_and_heals_nothing(simulate, name):
    card, change, driver, text = KEPT[name]
    simulated = simulate({"cards": [card], **BESIDE.get(name, {})})
    change(simulated)

    result = simulated.call(faults.inject, str(simulated.root), [driver], text)

    assert result.harm == []
    assert result.faults > 50


def test_no_device_depends_on_the_lists_of_names(simulate):
    simulated = simulate({"cards": ["t4", H100, "mi210", "qat-c62x"]})

    harm = simulated.call(faults.inject_shared, str(simulated.root), [NVIDIA, AMD, QAT], VGPUS)

    assert harm == []


WHOLE = {
    "cards": [
        "x710",
        {"card": "e810", "name": "ipv6"},
        "connectx6",
        "nvme-system",
        *({"card": "nvme-pm1733", "name": name} for name in ("swap", "spare", "data")),
        "nvme-inspur",
        *(H100, "t4", "mi300x", ANY_CLASS, "nvswitch", ENDPOINT, "u250", FLEX),
        {"card": "t4", "name": "whole"},
    ],
    "mounts": {"/": "nvme0n1p2", "/srv": "dm-1"},
    "swaps": ["nvme1n1"],
    "volumes": {"dm-0": ["nvme4n1"], "dm-1": ["nvme3n1"]},
    "bridges": {"br0": ["ens1f0"]},
    "default_route": "br0",
    "ipv6": ["ens2f0"],
}


def test_a_source_of_the_whole_host_frees_nothing_and_fails_no_other_driver(simulate):
    simulated = simulate(WHOLE)
    put("mi300x", *UNCORRECTABLE)(simulated)
    boot = simulated.root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("3f0c7b9e-52d1-4c8a-9d56-0a7e1b2c3d4e\n")
    slot = simulated.card("h100").removesuffix(".0")
    (simulated.root / "kmsg").write_text(XID.format(slot=slot))

    text = OPTIONS.replace("THE_T4", simulated.card("t4"))

    (sound,) = simulated.call(passes.run, [*DRIVERS], text)
    result = simulated.call(faults.inject_host, str(simulated.root), [*DRIVERS], text, SOURCES)

    # Of the disks and networks all but one are in use; pci_driver has one of its own in a volume.
    counts = {name: len(devices) for name, devices in sound.devices.items()}
    assert counts == {**dict.fromkeys(DRIVERS, 1), "nvidia_gpu_driver": 3, "pci_driver": 2}

    assert result.harm == []
    assert result.shared == SOURCES.keys()


def test_networks_that_cannot_be_told_are_the_doubt_of_networks_alone(simulate):
    simulated = simulate({"cards": ["connectx6", "nvme-pm1733", "t4"]})
    networks = simulated.root / "sys/class/net"
    shutil.rmtree(networks)
    networks.write_text("")
    drivers = ["nvidia_gpu_driver", "nic_driver", "nvme_driver"]

    (seen,) = simulated.call(passes.run, drivers, PORTS + DISKS)

    assert seen.errors.keys() == {"nic_driver"}
    assert "/sys/class/net" in seen.errors["nic_driver"]
    assert [len(seen.devices[name]) for name in drivers] == [1, 0, 1]
