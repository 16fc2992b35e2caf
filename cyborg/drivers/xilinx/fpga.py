# SPDX-License-Identifier: Apache-2.0
"""Xilinx FPGA cards: a managing function and a user function, given out together."""

from __future__ import annotations

import pathlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace

from oslo_config import cfg

from cyborg.drivers import base, card_tools, pci, privileged, value_checks
from cyborg.drivers.pci import facts
from cyborg.drivers.xilinx import shells as xilinx_shells

#: The number of a card's user function.
_USER_FUNCTION = "1"
#: Cards that xbmgmt does not know: Versal V80.
_NOT_PROGRAMMABLE = frozenset({"50b4"})
_BIND_IT = "bind it to xclmgmt once, or unset [xilinx_fpga_driver] layouts"
_NOTHING_LOADED = re.compile(r"[0-]+")

_XCLBIN_MAGIC = b"xclbin2\0"
#: Where the program's id is in the header of an xclbin, and the header's size.
_XCLBIN_UUID = slice(416, 432)
_XCLBIN_SIZE = 432


class XilinxFpgaDriver(pci.PciDriver):
    """Reports each card as one accelerator with a handle for each of its functions.

    A card of whose board the operator lists shells is given those, as layouts; any other one is
    programmed with images.
    """

    match = (pci.Match(vendor="10ee", class_code="1200*"),)
    type = "FPGA"
    resource_class = "FPGA"
    expose = "slot"
    group = "xilinx_fpga_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._shells = xilinx_shells.Shells(conf, self.kept)

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """Vendor, product and shell; the product is that of the managing function."""
        yield "CUSTOM_FPGA_XILINX"
        yield f"CUSTOM_FPGA_PRODUCT_ID_{function.device}"
        if shell := self._shells.last(function, functions):
            yield f"CUSTOM_FPGA_SHELL_{shell}"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """Facts of the managing driver; the shell is the card's firmware."""
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
        """The device with its program mode and the function that the user function shows as loaded.

        A card is not programmed if another driver has a function of it, or no tool is known for it.
        """
        (deployable,) = device.deployables
        address = pci.join(device.control_path.cpid_info)
        if function.device in _NOT_PROGRAMMABLE or card_tools.missing_functions(
            deployable.attach_handles, _slot(address, functions)
        ):
            return device
        written = card_tools.is_running(self.conf, address)
        if self._shells.listed(function, functions):
            shells = self._shells.of(function, functions)
            layouts = {f"{base.LAYOUT_PREFIX}{name}": "1" for name in shells}
            divided = replace(
                deployable,
                attributes={**deployable.attributes, **layouts},
                program_mode=base.LAYOUT,
                function=None if written else self._shells.shown(function, functions),
            )
            return replace(device, deployables=(divided,), being_written=written)
        programmable = replace(
            deployable,
            program_mode=base.DYNAMIC,
            function=None if written else _loaded(address, functions),
            function_vendor="XILINX",
        )
        return replace(device, deployables=(programmable,), being_written=written)

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """A card is of one kind or the other for good: for a guest, too."""
        is_managing = not function.address.endswith(f".{_USER_FUNCTION}")
        may_have = is_managing and function.device not in _NOT_PROGRAMMABLE
        if may_have and self._shells.are_unknown(function):
            reason = "it may have layouts, and its own driver has not shown its board"
            return base.Refusal(reason=reason, remedy=_BIND_IT)
        return None

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The user function is missing: the card is of no use, even if it was never there."""
        user = _user_function(function.address)
        if user not in functions and facts.has_others(function):
            return f"PCI function {user} is missing from the bus"
        return None

    def program(self, target: base.ProgramTarget, bitstream: pathlib.Path) -> base.Programmed:
        """Load a bitstream with ``xbmgmt``. Its exit status counts if sysfs shows nothing."""
        wanted = _program_id(bitstream)
        card_tools.check_function(target, wanted)
        address = pci.join(target.control_path.cpid_info)
        card_tools.check_not_running(self.conf, address)
        card_tools.check_whole_card(target, _slot(address, pci.scan()))
        card_tools.write(self.conf, privileged.xbmgmt, address, bitstream, target)
        shown = _loaded(address, pci.scan())
        if shown is None:
            return base.Programmed(function=wanted, verified_by="exit status of xbmgmt")
        if shown != wanted:
            raise RuntimeError(f"FPGA {address} shows {shown} as loaded, not {wanted}")
        return base.Programmed(function=shown, verified_by="xclbinuuid in sysfs")

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        """Load a shell with ``xbmgmt``, unless the card has it."""
        address = pci.join(target.control_path.cpid_info)
        functions = pci.scan()
        shells = self._shells.of(functions[address], functions) if address in functions else {}
        known = (name for name in shells if value_checks.is_same_function(target.function, name))
        wanted = next(known, None) if target.function else None
        if wanted is None:
            raise base.NothingWritten(f"Card {address} cannot have shell {target.function!r}")
        card_tools.check_not_running(self.conf, address)
        card_tools.check_whole_card(target, _slot(address, functions))
        shown = self._shells.shown(functions[address], functions)
        if shown is None:
            raise base.NothingWritten(f"Card {address} shows no shell: a guest may have it")
        if shown != wanted:
            asked = {"partition": shells[wanted], "until": target.until}
            card_tools.run(self.conf, address, privileged.set_xilinx_shell, **asked)
            functions = pci.scan()
            shown = self._shells.shown(functions[address], functions)
        self.kept.save()
        if shown != wanted:
            raise RuntimeError(f"FPGA {address} shows {shown!r} as its shell, not {wanted!r}")
        return base.Programmed(function=wanted, verified_by="logic_uuids in sysfs")


def _program_id(bitstream: pathlib.Path) -> str:
    """The id in an xclbin's header, as sysfs shows it.

    :raises cyborg.drivers.base.NothingWritten: it is no such bitstream
    """
    with bitstream.open("rb") as file:
        header = file.read(_XCLBIN_SIZE)
    if not header.startswith(_XCLBIN_MAGIC) or len(header) < _XCLBIN_SIZE:
        raise base.NothingWritten("This is not a bitstream for a Xilinx FPGA (xclbin)")
    return str(uuid.UUID(bytes=header[_XCLBIN_UUID]))


def _loaded(address: str, functions: pci.Snapshot) -> str | None:
    """The program that the card's user function shows; empty if none is loaded."""
    user = _user_function(address)
    text = functions.text(user, "xclbinuuid") if user in functions else None
    if not text:
        return None
    return "" if _NOTHING_LOADED.fullmatch(text) else text


def _slot(address: str, functions: pci.Snapshot) -> list[str]:
    """Addresses of all functions of the card with this one. They run one program."""
    slot = address.rpartition(".")[0]
    return [each for each in functions if each.rpartition(".")[0] == slot]


def _user_function(address: str) -> str:
    """The address of the user function of the card with this function."""
    return f"{address.rpartition('.')[0]}.{_USER_FUNCTION}"
