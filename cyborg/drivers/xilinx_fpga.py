# SPDX-License-Identifier: Apache-2.0
"""Xilinx FPGA cards: a function that manages the card and one for its user, given together."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cyborg.drivers import (
    base,
    bitstream_headers,
    declarative,
    pci,
    pci_facts,
    privileged,
    vendor_tools,
)

#: The function of a card that its user works with.
_USER_FUNCTION = "1"
_NOTHING_LOADED = re.compile(r"[0-]+")


class XilinxFpgaDriver(declarative.PciDriver):
    """Reports each card as one accelerator with a handle for each of its functions."""

    match = (declarative.Match(vendor="10ee", class_code="1200*"),)
    type = "FPGA"
    resource_class = "FPGA"
    expose = "slot"
    group = "xilinx_fpga_driver"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """Vendor and product; the product is that of the managing function."""
        del functions
        yield "CUSTOM_FPGA_XILINX"
        yield f"CUSTOM_FPGA_PRODUCT_ID_{function.device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """What the managing driver tells; the shell is the card's firmware."""
        shells = [
            functions.text(function.address, f"{name}/VBNV")
            for name in functions.names(function.address, "")
            if name.startswith("rom.")
        ]
        return {
            "product": functions.text(function.address, "board_name"),
            "firmware": next((shell for shell in shells if shell), None),
        }

    def refine(
        self, device: base.Device, function: pci.Function, functions: pci.Snapshot
    ) -> base.Device:
        """The device with how it is programmed, and what its user's driver shows as loaded.

        A card of which another driver has a function is given as it is, and not programmed.
        """
        (deployable,) = device.deployables
        place = pci.join(device.control_path.cpid_info)
        if vendor_tools.left_out(deployable.attach_handles, _slot(place, functions)):
            return device
        written = vendor_tools.is_running(self.conf, place)
        programmable = replace(
            deployable,
            program_mode=base.DYNAMIC,
            function=None if written else _loaded(place, functions),
            function_vendor="XILINX",
        )
        return replace(device, deployables=(programmable,))

    def ailment(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """Without its user's function a card is of no use, though the agent has never seen that."""
        user = _user(function.address)
        if user not in functions and pci_facts.has_others(function):
            return f"PCI function {user} is missing from the bus"
        return None

    def program(self, target: base.ProgramTarget, bitstream: pathlib.Path) -> base.Programmed:
        """Load a bitstream by ``xbmgmt``, whose word counts where sysfs shows nothing."""
        wanted = bitstream_headers.xclbin(bitstream)
        vendor_tools.refuse_another(target, wanted)
        address = pci.join(target.control_path.cpid_info)
        vendor_tools.refuse_running(self.conf, address)
        vendor_tools.refuse_part(target, _slot(address, pci.scan()))
        vendor_tools.write(self.conf, privileged.xbmgmt, address, bitstream)
        shown = _loaded(address, pci.scan())
        if shown is None:
            return base.Programmed(function=wanted, verified_by="exit status of xbmgmt")
        if shown != wanted:
            raise RuntimeError(f"FPGA {address} shows {shown} as loaded, not {wanted}")
        return base.Programmed(function=shown, verified_by="xclbinuuid in sysfs")


def _loaded(place: str, functions: pci.Snapshot) -> str | None:
    """The program that the card's user function shows; empty where it shows that there is none."""
    user = _user(place)
    text = functions.text(user, "xclbinuuid") if user in functions else None
    if not text:
        return None
    return "" if _NOTHING_LOADED.fullmatch(text) else text


def _slot(place: str, functions: pci.Snapshot) -> list[str]:
    """The functions of the card with a function here: one program is for all of them."""
    slot = place.rpartition(".")[0]
    return [address for address in functions if address.rpartition(".")[0] == slot]


def _user(place: str) -> str:
    """The function for the user of the card with a function here."""
    return f"{place.rpartition('.')[0]}.{_USER_FUNCTION}"
