# SPDX-License-Identifier: Apache-2.0
"""Cards as drivers find them on a simulated host."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, pci, registry
from cyborg.drivers.nvme import controllers
from cyborg.tests.contract import passes


def names(devices) -> list[str]:
    return [deployable.name for device in devices for deployable in device.deployables]


def in_one_group(simulated, first: str, *others: str) -> None:
    """Put functions into the IOMMU group of the first one."""
    group = simulated.files.target(f"{simulated.path(first)}/iommu_group")
    for other in others:
        place = f"{simulated.path(other)}/iommu_group"
        simulated.files.unlink(place)
        simulated.files.link(place, f"kernel/iommu_groups/{group}")


def handle(address: str, **more: str) -> base.AttachHandle:
    return base.AttachHandle(attach_type="PCI", attach_info={**pci.split(address), **more})


def found(simulated, driver: str, text: str = "", *others: str) -> tuple[base.Device, ...]:
    """What a driver finds, beside others."""
    (only,) = simulated.call(passes.run, [driver, *others], text)
    assert only.errors == {}
    return only.devices[driver]


def twice(
    driver: str,
    text: str,
    changes: Mapping[str, str | None],
    taken: Iterable[str] = (),
    *,
    anew: bool = True,
) -> list[tuple[base.Device, ...]]:
    """What an agent finds, and the next one, or it again, when files have other texts or are gone.

    Meanwhile guests have ``taken`` functions.
    """
    loaded = registry.load(passes.configured(text, [driver], "host-1"))
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    before = looking.run().devices[driver]
    looking.remember()
    for path, said in changes.items():
        pathlib.Path(path).unlink() if said is None else pathlib.Path(path).write_text(said)
    for address in taken:
        uevent = pathlib.Path(f"/sys/bus/pci/devices/{address}/uevent")
        lines = [each for each in uevent.read_text().splitlines() if "DRIVER=" not in each]
        uevent.write_text("\n".join(["DRIVER=vfio-pci", *lines, ""]))
    if anew:
        loaded = registry.load(passes.configured(text, [driver], "host-1"))
        looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    return [before, looking.run().devices[driver]]


def whys(driver: str, text: str = "") -> dict[str, tuple[str, str]]:
    """Reason and remedy of the functions of this host that a driver does not offer."""
    loaded = registry.load(passes.configured(text, [driver], "host-1"))
    discovery.Discovery("host-1", loaded.drivers, timeout=60).run()
    explaining: Any = loaded.drivers[driver]
    functions = pci.scan()
    found = {name: explaining.why_not_offered(each, functions) for name, each in functions.items()}
    return {name: (why.reason, why.remedy) for name, why in found.items() if why is not None}


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
