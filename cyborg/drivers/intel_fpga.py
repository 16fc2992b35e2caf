# SPDX-License-Identifier: Apache-2.0
"""Intel FPGA cards under the kernel's DFL driver or the older OPAE one.

A card has regions that are programmed apart. Where each has a virtual function of its own, each is
a deployable of its own, below the card's. A card with one region can be programmed by OPAE's
``fpgaconf``, which cannot be told one region of several.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from oslo_config import cfg

from cyborg.drivers import (
    base,
    bitstream_headers,
    declarative,
    facts,
    pci,
    privileged,
    vendor_tools,
)

#: Cards by the ids of their physical functions, with the name of each in a trait.
_CARDS = {
    "09c4": "PAC_ARRIA10",
    "0b2b": "PAC_D5005",
    "0b30": "PAC_N3000",
    "bcce": "OFS",
}
_NOTHING_LOADED = re.compile(r"f+|0+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """What is loaded in a region, and what fits in it."""

    afu_id: str | None
    interface_id: str | None

    @property
    def function(self) -> str | None:
        """The id of the function that is loaded; empty where none is."""
        if self.afu_id is None:
            return None
        return "" if _NOTHING_LOADED.fullmatch(self.afu_id) else self.afu_id


class IntelFpgaDriver(declarative.PciDriver):
    """Reports each card with its virtual functions, or with itself while it has none."""

    match = tuple(declarative.Match(vendor="8086", device=device) for device in _CARDS)
    type = "FPGA"
    resource_class = "FPGA"
    expose = "vfs"
    split = False
    group = "intel_fpga_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        #: Cards that have shown that they have one region; a guest's card shows nothing.
        self._single: set[str] = set()

    def groups(
        self, function: pci.Function, offered: Sequence[pci.Function], functions: pci.Snapshot
    ) -> Sequence[Sequence[pci.Function]]:
        """A region apart where it has a virtual function, else all of them together."""
        if _is_one_each(function, _regions(function, functions)):
            return [[each] for each in offered]
        return [offered]

    def _device(
        self,
        host: str,
        function: pci.Function,
        offered: Sequence[pci.Function],
        functions: pci.Snapshot,
    ) -> base.Device | None:
        """The card, which gives out nothing itself, above those of its regions that are given."""
        device = super()._device(host, function, offered, functions)
        if device is None or not _is_one_each(function, _regions(function, functions)):
            return device
        card = self._deployable(f"{host}_{function.address}", [function], functions)
        card = replace(card, num_accelerators=0, attach_handles=())
        regions = [replace(each, parent=card.name) for each in device.deployables]
        return replace(device, deployables=(card, *regions))

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The card, functions that cannot be changed, and the regions that bitstreams are for."""
        card = functions[function.pf or function.address]
        yield "CUSTOM_FPGA_INTEL"
        yield f"CUSTOM_FPGA_INTEL_{_CARDS[card.device]}"
        changes = _single_region(card, functions) is not None
        for region in _regions_of(function, functions) if not changes else ():
            if region.afu_id and not _NOTHING_LOADED.fullmatch(region.afu_id):
                yield f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{region.afu_id}"
        for region in _regions_of(function, functions):
            if region.interface_id:
                yield f"CUSTOM_FPGA_REGION_INTEL_{region.interface_id}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """The bitstream of the static part is what other cards call firmware."""
        card = function.pf or function.address
        firmware = [
            functions.text(card, f"{path}/bitstream_id") for path in _below(card, functions, "fme")
        ]
        return {"firmware": next((each for each in firmware if each), None)}

    def refine(
        self, device: base.Device, function: pci.Function, functions: pci.Snapshot
    ) -> base.Device:
        """The device with how it is programmed, and what it shows as loaded.

        A card of which another driver has a function is given as it is, and not programmed.
        """
        region = _single_region(function, functions)
        written = vendor_tools.is_running(self.conf, function.address)
        if written or region is not None:
            self._single.add(function.address)
        elif _regions(function, functions) or not declarative.is_with_guests(function):
            self._single.discard(function.address)
        if function.address not in self._single:
            return device
        (deployable,) = device.deployables
        if vendor_tools.left_out(deployable.attach_handles, _parts(function)):
            shown = region if not written else None
            return replace(device, deployables=(_with_trait(deployable, shown),))
        # Whoever has one of several handles must not see another's change what all run.
        alone = len(deployable.attach_handles) == 1
        programmable = replace(
            deployable,
            program_mode=base.DYNAMIC if alone else base.SINGLE_PROGRAM,
            function=region.function if region is not None and not written else None,
            function_vendor="INTEL",
        )
        return replace(device, deployables=(programmable,))

    def program(self, target: base.ProgramTarget, bitstream: pathlib.Path) -> base.Programmed:
        """Load a bitstream by ``fpgaconf``; sysfs shows what is loaded then."""
        wanted = bitstream_headers.gbs(bitstream)
        vendor_tools.refuse_another(target, wanted.afu_id)
        address = pci.join(target.control_path.cpid_info)
        vendor_tools.refuse_running(self.conf, address)
        functions = pci.scan()
        card = functions.get(address)
        region = _single_region(card, functions) if card is not None else None
        if card is None or region is None:
            raise base.NothingWritten(f"FPGA {address} shows no region that can be programmed")
        vendor_tools.refuse_part(target, _parts(card))
        if region.interface_id not in {None, wanted.interface_id}:
            raise base.NothingWritten(
                f"The bitstream is for region {wanted.interface_id}, not {region.interface_id}"
            )
        vendor_tools.write(self.conf, privileged.fpgaconf, address, bitstream)
        shown = _region_now(address)
        if shown is None or shown.function != wanted.afu_id:
            loaded = shown.function if shown is not None else None
            raise RuntimeError(f"FPGA {address} shows {loaded} as loaded, not {wanted.afu_id}")
        return base.Programmed(function=shown.function, verified_by="afu_id in sysfs")

    def ailment(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """A card whose static part reads as all ones does not work, unless it is being written."""
        if vendor_tools.is_running(self.conf, function.address):
            return None
        for region in _regions(function, functions):
            if region.interface_id and re.fullmatch(r"f+", region.interface_id):
                return f"A region of FPGA {function.address} cannot be read"
        return None


def _regions_of(function: pci.Function, functions: pci.Snapshot) -> Sequence[_Region]:
    """The region that a virtual function is for, or all that the card gives out with itself."""
    card = functions[function.pf or function.address]
    regions = _regions(card, functions)
    if not _is_one_each(card, regions):
        return regions
    return [regions[card.vfs.index(function.address)]] if function.pf is not None else []


def _single_region(card: pci.Function, functions: pci.Snapshot) -> _Region | None:
    """The card's region, if it shows one, and what is loaded there."""
    regions = _regions(card, functions)
    return regions[0] if len(regions) == 1 and regions[0].function is not None else None


def _parts(card: pci.Function) -> Sequence[str]:
    """The functions that are given out of a card, which run one program."""
    return card.vfs or (card.address,)


def _with_trait(deployable: base.Deployable, region: _Region | None) -> base.Deployable:
    """The deployable with the trait of the function that it runs, which no conductor makes."""
    if region is None or not region.function:
        return deployable
    trait = facts.trait(f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{region.function}")
    return replace(deployable, traits=tuple(dict.fromkeys((*deployable.traits, trait))))


def _region_now(address: str) -> _Region | None:
    functions = pci.scan()
    return _single_region(functions[address], functions) if address in functions else None


def _is_one_each(card: pci.Function, regions: Sequence[_Region]) -> bool:
    return len(regions) > 1 and len(card.vfs) == len(regions)


@pci.once
def _regions(card: pci.Function, functions: pci.Snapshot) -> Sequence[_Region]:
    """A card's regions, each with the port through which it is used."""
    address = card.address
    interfaces = list(_interfaces(address, functions))
    ports = sorted(
        _below(address, functions, "port"),
        key=lambda path: (functions.number(address, f"{path}/id") or 0, path),
    )
    if not ports:
        return [_Region(afu_id=None, interface_id=interface) for interface in interfaces]
    return [
        _Region(
            afu_id=functions.text(address, f"{path}/afu_id"),
            # Ports of one region have one interface.
            interface_id=interfaces[min(number, len(interfaces) - 1)] if interfaces else None,
        )
        for number, path in enumerate(ports)
    ]


def _interfaces(address: str, functions: pci.Snapshot) -> Iterator[str]:
    """The ids of the interfaces between the static part and each region."""
    found = []
    for fme in _below(address, functions, "fme"):
        found.append(functions.text(address, f"{fme}/pr/interface_id"))
        for child in functions.names(address, fme):
            if child.startswith("dfl-fme-region."):
                place = f"{fme}/{child}/fpga_region"
                found += [
                    functions.text(address, f"{place}/{region}/compat_id")
                    for region in functions.names(address, place)
                ]
    if not any(found):
        found = [
            functions.text(address, f"fpga_region/{region}/compat_id")
            for region in functions.names(address, "fpga_region")
        ]
    yield from (interface for interface in found if interface)


def _below(address: str, functions: pci.Snapshot, kind: str) -> Iterator[str]:
    """The paths of a card's ports (``port``) or of its management engine (``fme``)."""
    for place in ("fpga", "fpga_region"):
        for top in functions.names(address, place):
            for child in functions.names(address, f"{place}/{top}"):
                if child.startswith((f"intel-fpga-{kind}.", f"dfl-{kind}.")):
                    yield f"{place}/{top}/{child}"
