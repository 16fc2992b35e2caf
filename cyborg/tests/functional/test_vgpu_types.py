# SPDX-License-Identifier: Apache-2.0
"""Newer NVIDIA cards: a virtual function is given its vGPU type when a request is bound."""

from __future__ import annotations

import functools
from typing import Any

from cyborg.agent import discovery
from cyborg.drivers import base, privileged, registry
from cyborg.tests.contract import passes

#: Without the limit the card's memory decides, which is read from the name in ``pci.ids`` here.
OPTIONS = "[gpu_devices]\nenabled_vgpu_types = 1137\n[vgpu_1137]\nmax_instances = 2\n"
HOST = {"cards": [{"card": "h100", "vfs": 4}]}
UUID = "b1c5e0f0-6f1c-4a3e-9a41-0a7c7e5e9f11"


@functools.cache
def drivers() -> Any:
    """The drivers of an agent; the functions of one host are called in one process."""
    privileged.context.set_client_mode(False)
    return registry.load(passes.configured(OPTIONS, ["nvidia_gpu_driver"], "host-1")).drivers


def discover() -> tuple[base.Device, ...]:
    found = discovery.Discovery("host-1", drivers(), timeout=60).run()
    return found.devices["nvidia_gpu_driver"]


def restart() -> None:
    drivers.cache_clear()


def held(device: base.Device) -> base.HeldHandle:
    (handle,) = device.deployables[0].attach_handles
    return base.HeldHandle(
        attach_type=handle.attach_type,
        attach_info=handle.attach_info,
        uuid=UUID,
        control_path=device.control_path,
    )


def step(name: str, handle: base.HeldHandle) -> None:
    getattr(drivers()["nvidia_gpu_driver"], name)(handle)


def prepared(devices: tuple[base.Device, ...]) -> list[tuple[str, ...] | None]:
    return [device.deployables[0].prepared for device in devices]


def test_a_type_is_given_and_taken_back(simulate_live):
    host = simulate_live(HOST)
    first, second = host.call(discover)
    vf = first.deployables[0].name.removeprefix("host-1_")
    current = host.device(vf) / "nvidia/current_vgpu_type"
    assert prepared((first, second)) == [(), ()]

    for _ in range(2):
        host.call(step, "prepare", held(first))
        assert current.read_text().strip() == "1137"
    assert prepared(host.call(discover)) == [(UUID,), ()]

    for _ in range(2):
        host.call(step, "clean", held(first))
        assert current.read_text().strip() == "0"
    assert prepared(host.call(discover)) == [(), ()]


def test_after_a_restart_a_handle_is_prepared_again_which_changes_nothing(simulate_live):
    host = simulate_live(HOST)
    first, _second = host.call(discover)
    host.call(step, "prepare", held(first))

    host.call(restart)

    again, _second = host.call(discover)
    assert again.deployables[0].attach_handles == first.deployables[0].attach_handles
    assert again.deployables[0].prepared == ()
    host.call(step, "prepare", held(again))
    assert prepared(host.call(discover)) == [(UUID,), ()]
