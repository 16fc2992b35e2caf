# SPDX-License-Identifier: Apache-2.0
"""The texts that a kernel shows of a PCI function in sysfs, in the kernel's own formats."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

_CORRECTABLE = (
    *("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr"),
    "HeaderOF",
)
_UNCORRECTABLE = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF"),
    *("MalfTLP", "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked"),
    *("TLPBlockedErr", "PoisonTLPBlocked"),
)
#: The kernel's file of each kind of AER error: its counters and their sum, all 0.
_AER = {
    f"aer_dev_{kind}": "\n".join(f"{name} 0" for name in (*names, f"TOTAL_ERR_{total}"))
    for kind, names, total in (
        ("correctable", _CORRECTABLE, "COR"),
        ("nonfatal", _UNCORRECTABLE, "NONFATAL"),
        ("fatal", _UNCORRECTABLE, "FATAL"),
    )
}
_LINK = {"speed": "16.0 GT/s PCIe", "width": 16}
_RESOURCE = "\n".join([" ".join([f"0x{0:016x}"] * 3)] * 13)


def address(domain: int, routing: int) -> str:
    """A PCI address from its domain and the 16 bits of bus, device and function."""
    return f"{domain:04x}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}"


def uevent(function: Mapping[str, Any], slot: str, driver: str | None) -> str:
    """The uevent file; the class has no leading zeros there."""
    lines = [f"DRIVER={driver}"] if driver else []
    lines += [
        f"PCI_CLASS={int(function['class'], 16):X}",
        f"PCI_ID={function['id'].upper()}",
        f"PCI_SUBSYS_ID={function['subsystem'].upper()}",
        f"PCI_SLOT_NAME={slot}",
        f"MODALIAS={_modalias(function)}",
    ]
    return "\n".join(lines)


def attributes(function: Mapping[str, Any], *, virtual: bool) -> dict[str, object]:
    vendor, device = function["id"].split(":")
    subsystem_vendor, subsystem_device = function["subsystem"].split(":")
    texts = {
        "class": f"0x{function['class']}",
        "config": _config(function),
        "device": f"0x{device}",
        "driver_override": "(null)",
        "enable": 1 if function.get("bound") else 0,
        "irq": 0 if virtual else 16,
        "modalias": _modalias(function),
        "numa_node": function["numa"],
        "power_state": "D0",
        "remove": "",
        "reset": "",
        "reset_method": function.get("reset_method", "flr bus"),
        "resource": _RESOURCE,
        "subsystem_device": f"0x{subsystem_device}",
        "subsystem_vendor": f"0x{subsystem_vendor}",
        "vendor": f"0x{vendor}",
        **_link(function.get("link", {}), virtual=virtual),
        **_AER,
    }
    if function["class"].startswith("0300"):
        texts["boot_vga"] = function.get("boot_vga", 0)
    return texts


def sriov(function: Mapping[str, Any]) -> dict[str, object]:
    facts = function["sriov"]
    return {
        "sriov_drivers_autoprobe": 1,
        "sriov_numvfs": 0,
        "sriov_offset": facts.get("offset", 1),
        "sriov_stride": facts.get("stride", 1),
        "sriov_totalvfs": facts["total"],
        "sriov_vf_device": facts["id"].split(":")[1].lstrip("0"),  # the kernel pads it not
    }


def _link(given: Mapping[str, Any], *, virtual: bool) -> dict[str, object]:
    best = {**_LINK, **given}
    # The link status of a virtual function is reserved by the specification: it reads as 0.
    speed, width = ("Unknown", 0) if virtual else (best["speed"], best["width"])
    return {
        "current_link_speed": given.get("now_speed", speed),
        "current_link_width": given.get("now_width", width),
        "max_link_speed": best["speed"],
        "max_link_width": best["width"],
    }


def _modalias(function: Mapping[str, Any]) -> str:
    vendor, device = function["id"].upper().split(":")
    subsystem_vendor, subsystem_device = function["subsystem"].upper().split(":")
    code = function["class"].upper()
    return (
        f"pci:v0000{vendor}d0000{device}sv0000{subsystem_vendor}sd0000{subsystem_device}"
        f"bc{code[:2]}sc{code[2:4]}i{code[4:]}"
    )


def _config(function: Mapping[str, Any]) -> bytes:
    """The first 256 bytes of configuration space, as far as lspci shows them."""
    vendor, device = (int(part, 16) for part in function["id"].split(":"))
    subsystem = [int(part, 16) for part in function["subsystem"].split(":")]
    code = bytes.fromhex(function["class"])[::-1]
    header = 1 if function["class"].startswith("0604") else 0
    header |= 0x80 if function.get("others") else 0
    top = struct.pack("<HHHHB3sBBBB", vendor, device, 0x0406, 0x10, 0xA1, code, 0, 0, header, 0)
    return (top.ljust(0x2C, b"\0") + struct.pack("<HH", *subsystem)).ljust(256, b"\0")
