# SPDX-License-Identifier: Apache-2.0
"""PCI functions with facts given by the test."""

from __future__ import annotations

from cyborg.drivers import pci


def function(address: str, **facts) -> pci.Function:
    defaults = {
        "vendor": "10de",
        "device": "20f1",
        "subsystem_vendor": "10de",
        "subsystem_device": "145f",
        "class_code": "030200",
    }
    return pci.Function(address=address, **{**defaults, **facts})


PF = function(
    "0000:09:00.0",
    sriov_totalvfs=8,
    vfs=("0000:09:00.4", "0000:09:00.5"),
    netdevs=("ens1f0",),
)
VFS = [function(address, device="20f2", pf=PF.address) for address in PF.vfs]
