# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH112
# pathlib takes several times as long, and a host has hundreds of functions.
"""Uses of a function by the host that show no address, no mount and no holder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set

from cyborg.drivers.pci import sysfs

_UIO = "/sys/class/uio"
_CXL = "/sys/bus/cxl/devices"
#: What a network card's driver makes, by the folder: the kernel leaves the folder of one that has
#: gone to another network namespace, and shows it empty.
_LENT = {"net": "network interface", "infiniband": "RDMA device"}


def in_user_space() -> frozenset[str]:
    """The functions with a device of the kernel's driver for programs of the host (UIO).

    :raises OSError: they cannot be listed
    """
    links = (sysfs.target(f"{_UIO}/{name}") for name in sysfs.listing(_UIO))
    # Of <function>/uio/uio0; a part of an FPGA function has one further below, which takes nothing.
    ends = (link.split("/")[-3:] for link in links)
    return frozenset(end[0] for end in ends if len(end) == 3 and end[1] == "uio")


def lent(address: str, *, has_interface: bool) -> str | None:
    """The part of a network card that is in another network namespace, or None.

    :raises OSError: that cannot be told
    """
    for folder, what in _LENT.items():
        path = f"{sysfs.DEVICES}/{address}/{folder}"
        if has_interface and folder == "net":
            continue
        if os.path.isdir(path) and not sysfs.names(path):
            return what
    return None


def of(address: str, driver: str, *, in_user_space: Set[str], lent: str | None) -> str | None:
    """Why the host uses a function that has this driver of the host, or None.

    ``lent`` is what of it is in another network namespace.

    :raises OSError: that cannot be told
    """
    if "uio" in driver or address in in_user_space:
        return (
            f"its driver {driver} is for programs of the host, such as SPDK and DPDK; to give it "
            "to guests, bind it to vfio-pci"
        )
    if lent is not None:
        return (
            f"its {lent} is in another network namespace, such as a container's; to give it to "
            "guests, end that container, or move it back"
        )
    for region in _regions(address) if driver.startswith("cxl") else ():
        return (
            f"the host has its memory, by CXL {region}; to give it to guests, run daxctl "
            f"offline-memory, and cxl destroy-region {region}"
        )
    return None


def _regions(address: str) -> Iterator[str]:
    """The regions of the host's memory that are on the memory device of a function."""
    for port in sysfs.listing(_CXL):
        if port.startswith("endpoint") and f"/{address}/" in sysfs.target(f"{_CXL}/{port}/uport"):
            for name in sysfs.names(f"{_CXL}/{port}"):
                region = sysfs.if_there(f"{_CXL}/{port}/{name}/region") if "decoder" in name else ""
                # One that is not committed yet is nobody's memory.
                if region and sysfs.if_there(f"{_CXL}/{region}/commit") != "0":
                    yield region
