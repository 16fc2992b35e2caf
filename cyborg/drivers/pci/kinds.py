# SPDX-License-Identifier: Apache-2.0
"""Accelerators that have no driver of their own: their classes, vendors and subsystems."""

from __future__ import annotations

from collections.abc import Set

from cyborg.drivers.pci import sysfs
from cyborg.drivers.pci.snapshot import Function, Snapshot, Vanished

#: Subsystems of the kernel in which only accelerators have devices.
_SUBSYSTEMS = ("accel", "fpga_manager")
GRAPHICS, _RENDERER = "drm", "renderD"

PROCESSING, COPROCESSORS, DISPLAYS = "12", "0b40", "03"
#: Classes of the host's disks, networks, bridges and buses, which an accelerator's vendor may have.
_OF_HOSTS = ("01", "02", "04", "06", "0c")
#: Vendors whose coprocessors are mostly parts of chipsets, or have a driver of their own.
_CHIPSETS = ("1022", "10de", "8086")
#: Vendors of nothing but accelerators, with the name of each in resource classes and traits.
_MAKERS = {
    "1ac1": "CORAL",
    "1bcf": "NEC",
    "1d22": "KUNLUNXIN",
    "1da3": "HABANA",
    "1e36": "ENFLAME",
    "1e3e": "ILUVATAR",
    "1e52": "TENSTORRENT",
    "1e60": "HAILO",
    "1ed2": "FURIOSA",
    "1ed5": "MOORE_THREADS",
    "1ee0": "BIREN",
    "1eff": "REBELLIONS",
    "1fe9": "MEMRYX",
    "9999": "METAX",
    "cabc": "CAMBRICON",
}
#: Names of other vendors. Any further one has its id there.
_VENDORS = {
    **_MAKERS,
    "1014": "IBM",
    "1022": "AMD",
    "1ae0": "GOOGLE",
    "1d0f": "AMAZON",
    "1d94": "HYGON",
    "17cb": "QUALCOMM",
    "8086": "INTEL",
}
#: Products of other vendors by their ids. Their class does not say it, or not of this vendor's.
_KNOWN = frozenset(
    {
        ("1022", "1502"),  # NPUs of processors
        ("1022", "17f0"),
        ("8086", "2710"),  # DLB 2.0 and 2.5
        ("8086", "2714"),
        *(("8086", f"225{digit}") for digit in "0123456789abcde"),  # Xeon Phi
    }
)
#: Amazon's system peripherals are Inferentia and Trainium. Hygon's displays without a screen are
#: DCUs.
_BY_VENDOR_AND_CLASS = {"1d0f": ("0880",), "1d94": ("0302", "0380")}
#: Not offered by accel_driver, and named if nobody else offers them either: DSA and IAA, what has
#: no class, FPGAs with a class that the design on them has chosen, the switches of NVIDIA's boards,
#: memory by CXL, and OCTEON's units of cryptography.
_NAMED_CLASSES = (DISPLAYS, COPROCESSORS, "0502", "ff")
_NAMED = frozenset(("8086", device) for device in ("0b25", "0cfe", "11fb", "1212", "1216"))
_NAMED_BY_VENDOR = {
    "10de": ("0680",),
    "10ee": ("05", "07", "08", "11"),
    "1172": ("05", "07", "08", "11"),
    "177d": ("10",),
    "1d0f": ("05",),
}


def vendor(function: Function) -> str:
    """The vendor in names of resource classes and traits."""
    return _VENDORS.get(function.vendor, function.vendor.upper())


def is_accelerator(function: Function) -> bool:
    """True if a function is an accelerator, by its class, vendor and ids."""
    code = function.class_code
    if code.startswith(PROCESSING):
        return True
    if code.startswith(COPROCESSORS) and function.vendor not in _CHIPSETS:
        return True
    if function.vendor in _MAKERS:
        return not code.startswith(_OF_HOSTS)
    known = (function.vendor, function.device) in _KNOWN
    return known or code.startswith(_BY_VENDOR_AND_CLASS.get(function.vendor, ()))


def may_be_accelerator(function: Function, found: Set[str] = frozenset()) -> bool:
    """True if an operator may take the function for one; ``found`` are those that are shown."""
    classes = _NAMED_CLASSES + _NAMED_BY_VENDOR.get(function.vendor, ())
    return (
        function.class_code.startswith(classes)
        or is_accelerator(function)
        or (function.vendor, function.device) in _NAMED
        or function.address in found
    )


def shown(functions: Snapshot, *subsystems: str) -> frozenset[str]:
    """The functions with a device in one of these subsystems of accelerators, or one that renders.

    :raises OSError: they cannot be listed
    """
    found: set[str] = set()
    for subsystem in subsystems or (*_SUBSYSTEMS, GRAPHICS):
        folder = f"/sys/class/{subsystem}"
        for name in sysfs.listing(folder):
            if subsystem == GRAPHICS and not name.startswith(_RENDERER):
                continue
            place = sysfs.target(f"{folder}/{name}")
            led = list(filter(None, [function_of(place)]))
            if not led and "/usb" not in place and subsystem != GRAPHICS:
                # It may be of any function that shows such a device itself.
                led = [each for each in functions if _has_child(each, subsystem, functions)]
            found.update(led)
    return frozenset(found)


def function_of(place: str) -> str | None:
    """The PCI function of a device by its path in sysfs; None for what is on a bus behind it."""
    found = sysfs.ADDRESS.findall(place)
    if not found or "/usb" in place.rpartition(found[-1])[2]:
        return None
    return str(found[-1])


def _has_child(address: str, subsystem: str, functions: Snapshot) -> bool:
    try:
        return bool(functions.names(address, subsystem))
    except (OSError, Vanished):
        return False
