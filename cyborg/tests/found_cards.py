# SPDX-License-Identifier: Apache-2.0
"""Cards as drivers find them on a simulated host."""

from __future__ import annotations

import pytest

from cyborg.drivers import base, pci
from cyborg.drivers.nvme import controllers
from cyborg.tests.contract import passes


def names(devices) -> list[str]:
    return [deployable.name for device in devices for deployable in device.deployables]


def found(simulated, driver: str, text: str = "") -> tuple[base.Device, ...]:
    (only,) = simulated.call(passes.run, [driver], text)
    assert only.errors == {}
    return only.devices[driver]


def erase(address: str) -> str:
    """Try to erase a disk; the sentence that says why not."""
    conf = passes.configured('[nvme]\ndevice_spec = {"vendor_id": "144d"}', [], "host-1")
    handle = base.HeldHandle(
        attach_type="PCI",
        attach_info=pci.split(address),
        uuid="b1c5e0f0-6f1c-4a3e-9a41-0a7c7e5e9f11",
        arq="a",
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address)),
    )
    with pytest.raises(RuntimeError) as caught:
        controllers.NvmeDriver(conf).clean(handle)
    return str(caught.value)
