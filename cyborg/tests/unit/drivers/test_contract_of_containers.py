# SPDX-License-Identifier: Apache-2.0
"""The contract finds what is wrong with what a driver says that containers need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import pytest

from cyborg.drivers import base, container_facts
from cyborg.tests.contract import containers

PATH = base.ControlPath(cpid_type=base.SYSFS, cpid_info={"path": "/sys/devices/platform/npu"})


class Driver:
    """A driver of a device that is no PCI function, which says what it is told to."""

    driver_api: ClassVar[int] = 1

    def __init__(self, *answers: base.ContainerEdits, named: bool = True) -> None:
        self._answers = answers
        self._named = named
        self._asked = 0

    def discover(self, host: base.Host) -> Iterable[base.Device]:
        handle = base.AttachHandle(attach_type=base.NODES, attach_info={"npu": "A1"})
        part = base.Deployable(
            name=f"{host}_npu",
            resource_class="CUSTOM_NPU",
            num_accelerators=1,
            attach_handles=(handle,),
        )
        yield base.Device(
            type="AICHIP", vendor="v", model="m", control_path=PATH, deployables=(part,)
        )

    def container_edits(self, handle: base.HeldHandle) -> base.ContainerEdits:
        self._asked += 1
        answer = self._answers[(self._asked - 1) % len(self._answers)]
        own = container_facts.named({"CYBORG_NPU": "A1"}, handle.uuid) if self._named else {}
        return replace(answer, env={**answer.env, **own})


def said(*nodes: str, **others: object) -> base.ContainerEdits:
    return base.ContainerEdits(device_nodes=nodes, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ([said("/dev/null")], None),
        ([said("/dev/vfio/7", cdi_devices=("nvidia.com/gpu=GPU-1:0",))], None),
        ([said("/dev/null", "/dev/null")], "a node is named twice"),
        ([said("/dev/nothing9")], "/dev/nothing9 is not there"),
        ([said("null")], "null is no device node by its full path"),
        ([said("/dev/../etc")], "/dev/../etc is no device node by its full path"),
        ([said(env={"A": "1"})], "two handles have the variable A"),
        ([said(env={"a b": "1"}), said(env={"a b": "1"}), said()], "'a b' is no variable"),
        ([said(mounts=(base.Mount(host_path="a", container_path="/a"),))], "a is no full path"),
        ([said(hooks=(base.Hook(name="poststop", path="b"),))], "b is no full path"),
        ([said(cdi_devices=("GPU-1",))], "GPU-1 is no CDI name"),
        ([said("/dev/null"), said()], "something else when it is asked again"),
    ],
)
def test_each_kind_of_fault_is_found(
    answers: list[base.ContainerEdits], fault: str | None
) -> None:
    driver = Driver(*answers)
    found = containers.faults(driver, driver.discover("host-1"))  # type: ignore[arg-type]
    assert len(found) == (fault is not None)
    assert all(str(fault) in each for each in found)


def test_a_container_has_a_variable_that_tells_of_its_handle() -> None:
    driver = Driver(said("/dev/null"), named=False)
    (found,) = containers.faults(driver, driver.discover("host-1"))  # type: ignore[arg-type]
    assert "no variable ends in _11111111_2222_" in found
