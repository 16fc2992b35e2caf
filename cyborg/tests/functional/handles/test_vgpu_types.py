# SPDX-License-Identifier: Apache-2.0
"""Newer NVIDIA cards: a virtual function is given its vGPU type when a request is bound."""

from __future__ import annotations

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, registry
from cyborg.tests import layouts_site
from cyborg.tests.contract import passes

#: Without the limit the card's memory decides, which is read from the name in ``pci.ids`` here.
OPTIONS = "[gpu_devices]\nenabled_vgpu_types = 1137\n[vgpu_1137]\nmax_instances = 2\n"
DRIVER = "nvidia_gpu_driver"
HOST = {"cards": [{"card": "h100", "vfs": 4}]}
UUID = "b1c5e0f0-6f1c-4a3e-9a41-0a7c7e5e9f11"


def held(device: base.Device) -> base.HeldHandle:
    (handle,) = device.deployables[0].attach_handles
    return base.HeldHandle(
        attach_type=handle.attach_type,
        attach_info=handle.attach_info,
        uuid=UUID,
        arq="a",
        control_path=device.control_path,
    )


def prepared(devices: tuple[base.Device, ...]) -> list[tuple[str, ...] | None]:
    return [device.deployables[0].prepared for device in devices]


def test_a_type_is_given_and_taken_back(simulate_live):
    host = simulate_live(HOST)

    def discover() -> tuple[base.Device, ...]:
        found: tuple[base.Device, ...] = host.call(layouts_site._discover, DRIVER, OPTIONS)
        return found

    def step(name: str, handle: base.HeldHandle) -> None:
        assert host.call(layouts_site._act, DRIVER, OPTIONS, name, handle) == ("", None)

    first, second = discover()
    vf = first.deployables[0].name.removeprefix("host-1_")
    current = host.device(vf) / "nvidia/current_vgpu_type"
    assert prepared((first, second)) == [(), ()]

    for _ in range(2):
        step("prepare", held(first))
        assert current.read_text().strip() == "1137"
    assert prepared(discover()) == [(UUID,), ()]

    # After a restart a handle is prepared again, which changes nothing.
    host.call(layouts_site.forget)
    again, _second = discover()
    assert again.deployables[0].attach_handles == first.deployables[0].attach_handles
    assert again.deployables[0].prepared == ()
    step("prepare", held(again))
    assert prepared(discover()) == [(UUID,), ()]

    for _ in range(2):
        step("clean", held(first))
        assert current.read_text().strip() == "0"
    assert prepared(discover()) == [(), ()]


TYPE = "[gpu_devices]\nenabled_vgpu_types = nvidia-222\n"
LAYOUTS = "[gpu_devices]\nlayouts = T4-1Q, T4-16Q\n"


def offered(simulated, text):
    """The resource classes that are offered, and what the driver says."""
    (only,) = simulated.call(passes.run, [DRIVER], text)
    devices = only.devices[DRIVER]
    classes = [part.resource_class for device in devices for part in device.deployables]
    return classes, only.errors.get(DRIVER, "")


def remembering(text: str) -> list[str]:
    """The resource classes that an agent offers, which keeps what it has seen."""
    loaded = registry.load(passes.configured(text, [DRIVER], "host-1"))
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    found = looking.run().devices[DRIVER]
    looking.remember()
    return [part.resource_class for device in found for part in device.deployables]


#: An option by which cards are divided.
divided = pytest.mark.parametrize("text", [TYPE, LAYOUTS], ids=["a type", "layouts"])


@divided
def test_a_card_that_may_have_to_be_divided_is_never_whole(simulate, tmp_path, text):
    """Neither without its driver, nor with another one than that by which it was divided."""
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n{text}"
    without = simulate({"cards": [{"card": "t4", "driver": None}]})
    classes, said = offered(without, text)
    assert classes == []
    assert f"GPU {without.card('t4')} is not offered: " in said
    assert "load the vendor's vGPU driver" in said

    simulated = simulate({"cards": ["t4"]})
    assert simulated.call(remembering, text) == ["VGPU"]
    simulated.files.drop(f"{simulated.path(simulated.card('t4'))}/mdev_supported_types")
    classes, said = offered(simulated, text)
    assert (classes, "shows no types" in said) == ([], True)


@pytest.mark.parametrize("driver", ["nvidia", None])
def test_a_product_that_is_never_divided_stays_whole(simulate, driver):
    """The type is shown by another product, or the driver of the card shows none."""
    other = {"card": "t4", "name": "other", "id": "10de:1db4", "mdev": None, "driver": driver}

    assert sorted(offered(simulate({"cards": ["t4", other]}), TYPE)[0]) == ["PGPU", "VGPU"]


@divided
def test_the_operators_tags_are_of_the_parts_too(simulate, text):
    spec = '{"vendor_id": "10de", "traits": "CUSTOM_GOLD", "resource_class": "CUSTOM_MY_GPU", '
    simulated = simulate({"cards": ["t4"]})

    (only,) = simulated.call(
        passes.run, [DRIVER], f'{text}device_spec = {spec}"type": "AICHIP"}}\n'
    )

    (device,) = only.devices[DRIVER]
    (part,) = device.deployables
    assert (device.type, part.resource_class) == ("AICHIP", "CUSTOM_MY_GPU")
    assert "CUSTOM_GOLD" in part.traits
