# SPDX-License-Identifier: Apache-2.0
"""Accelerators that are no PCI functions: of a system on chip, or behind a USB controller."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from cyborg.drivers import base
from cyborg.tests import found_cards
from cyborg.tests.contract import cdi_rounds, passes

NPU = "platform/fdab0000.npu"
STICK = "usb1/1-2/1-2:1.0"
UUID = "11111111-2222-3333-4444-555555555555"
#: Where no node of an accelerator is.
OTHERS = {
    "": ValueError,
    "../class/accel": ValueError,
    "platform/../platform/fdab0000.npu": ValueError,
    "platform/gone": FileNotFoundError,
    "platform": FileNotFoundError,
}


def add(host: Any, path: str, name: str, driver: str, bus: str) -> None:
    """A device with an accelerator of that name."""
    place = f"devices/{path}"
    host.files.put(
        f"{place}/accel/{name}/uevent", f"MAJOR=261\nMINOR=0\nDEVNAME=accel/{name}\n"
    )
    host.files.link(f"class/accel/{name}", f"{place}/accel/{name}")
    host.files.link(f"{place}/accel/{name}/subsystem", "class/accel")
    host.files.link(f"{place}/driver", f"bus/{bus}/drivers/{driver}")
    host.files.link(f"{place}/subsystem", f"bus/{bus}")


@pytest.fixture
def host(simulate: Any) -> Any:
    """A host with a PCI card, an NPU of its chip, and a USB stick behind a function."""
    made = simulate({"cards": ["ai100", "nvme-pm1733"]})
    add(made, NPU, "accel5", "rocket", "platform")
    made.files.put(f"devices/{NPU}/of_node/compatible", b"rockchip,rk3588-rknn\0rockchip,rknn\0")
    stick = stick_of(made)
    add(made, stick, "accel6", "edgetpu-usb", "usb")
    above = f"devices/{stick.rpartition('/')[0]}"
    for name, text in (("idVendor", "18d1"), ("product", "Edge TPU"), ("serial", "S1")):
        made.files.put(f"{above}/{name}", text)
    return made


def stick_of(host: Any) -> str:
    """The path of the stick, behind a function that is no accelerator."""
    controller = host.files.real(host.path(host.card("nvme-pm1733")))
    return f"{controller.removeprefix('devices/')}/{STICK}"


def found(host: Any, text: str = "") -> dict[str, base.Device]:
    devices = found_cards.found(host, "accel_driver", text)
    return {each.deployables[0].resource_class: each for each in devices}


def held(path: str) -> base.HeldHandle:
    return base.HeldHandle(
        attach_type=base.NODES,
        attach_info={"path": path},
        uuid=UUID,
        arq="a",
        control_path=base.ControlPath(cpid_type=base.SYSFS, cpid_info={"path": "/sys"}),
    )


def test_what_is_no_pci_function_is_reported_with_its_nodes(host: Any) -> None:
    devices = found(host)

    assert devices.keys() == {
        "CUSTOM_QUALCOMM_QAIC", "CUSTOM_ACCEL_ROCKET", "CUSTOM_ACCEL_EDGETPU_USB"
    }
    npu, stick = devices["CUSTOM_ACCEL_ROCKET"], devices["CUSTOM_ACCEL_EDGETPU_USB"]
    assert (npu.vendor, npu.model) == ("rockchip", "rk3588-rknn")
    assert (stick.vendor, stick.model) == ("18d1", "Edge TPU")
    path = base.ControlPath(cpid_type="SYSFS", cpid_info={"path": f"/sys/devices/{NPU}"})
    assert npu.control_path == path
    (part,) = npu.deployables
    (handle,) = part.attach_handles
    assert (handle.attach_type, handle.attach_info) == ("NODES", {"path": NPU})
    assert {"OWNER_CYBORG", "CUSTOM_ACCEL_PLATFORM"} <= set(part.traits)
    assert stick.deployables[0].attributes["serial"] == "S1"
    # After a reboot another node, and the same device.
    host.files.path("class/accel/accel5").unlink()
    host.files.path(f"devices/{NPU}/accel/accel5").rename(
        host.files.path(f"devices/{NPU}/accel/accel9")
    )
    host.files.link("class/accel/accel9", f"devices/{NPU}/accel/accel9")
    assert found(host) == devices


def test_a_container_gets_its_nodes_and_no_message_leads_to_others(host: Any) -> None:
    for path, node in ((NPU, "accel5"), (stick_of(host), "accel6")):
        edits = host.call(passes.container_edits, "accel_driver", "", held(path))
        assert edits.device_nodes == (f"/dev/accel/{node}",)
        assert edits.env == {f"CYBORG_PATH_{UUID.replace('-', '_')}": path}
    for path, error in OTHERS.items():
        with pytest.raises(error):
            host.call(passes.container_edits, "accel_driver", "", held(path))


def test_it_is_prepared_and_cleaned_as_any_other(simulate: Any, tmp_path: pathlib.Path) -> None:
    host = simulate({"cards": ["nvme-pm1733"]})
    add(host, NPU, "accel5", "rocket", "platform")

    done = host.call(cdi_rounds.go, "accel_driver", "", str(tmp_path / "cdi"))

    (device,) = done.file["devices"]
    (node,) = device["containerEdits"]["deviceNodes"]
    assert node["path"] == "/dev/accel/accel5"
    assert [part.prepared for part in (done.before, done.used, done.after)] == [
        (), (cdi_rounds.HANDLE,), ()
    ]


def test_what_the_operator_selects_or_requires_counts(host: Any) -> None:
    listed = '[accel_driver]\ndevice_spec = {"vendor_id": "17cb"}\n'
    assert found(host, listed).keys() == {"CUSTOM_QUALCOMM_QAIC"}
    excluded = '[accel_driver]\ndevice_spec = {"vendor_id": "17cb", "exclude": true}\n'
    assert found(host, excluded).keys() == {"CUSTOM_ACCEL_ROCKET", "CUSTOM_ACCEL_EDGETPU_USB"}
    required = found(host, "[cleaning]\ndefault = required\n")["CUSTOM_ACCEL_ROCKET"]
    assert "requires that it is cleaned" in str(required.unhealthy)
