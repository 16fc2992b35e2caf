# SPDX-License-Identifier: Apache-2.0
"""Intel FPGA cards under the kernel's DFL driver or the older OPAE one.

A card has regions, each with a program of its own. If each region has a virtual function, each is
a deployable below the card's. A card with one region is programmed by OPAE's ``fpgaconf``, a region
of several by the kernel's DFL driver.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from oslo_config import cfg

from cyborg.drivers import base, card_tools, pci, privileged, trait_names
from cyborg.drivers.intel import gbs

#: Cards by vendor and device of their physical functions, with the name of each in a trait.
_CARDS = {
    ("8086", "09c4"): "PAC_ARRIA10",
    ("8086", "0b2b"): "PAC_D5005",
    ("8086", "0b30"): "PAC_N3000",
    ("8086", "af00"): "OFS",
    ("8086", "bcbd"): "INTEGRATED_5",
    ("8086", "bcc0"): "INTEGRATED_6",
    ("8086", "bcce"): "OFS",
    ("1c2c", "1000"): "PAC_N5010",
    ("1c2c", "1001"): "PAC_N5011",
}
#: Cards of the Open FPGA Stack have further functions with the same ids, which guests can use.
_OFS = (("8086", "af00"), ("8086", "bcce"))
_NOTHING_LOADED = re.compile(r"f+|0+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """The function that is loaded in a region, and the interface that bitstreams for it have.

    ``node`` and ``port`` are the device file and the number by which the kernel's DFL driver writes
    it.
    """

    afu_id: str | None
    interface_id: str | None
    node: str | None = None
    port: int | None = None

    @property
    def is_written_by_kernel(self) -> bool:
        """True if the kernel can write it, and it shows what is loaded then."""
        return None not in {self.node, self.port, self.afu_id}

    @property
    def function(self) -> str | None:
        """The id of the function that is loaded; empty if none is, None if it is not known."""
        if self.afu_id is None:
            return None
        return "" if _NOTHING_LOADED.fullmatch(self.afu_id) else self.afu_id


class IntelFpgaDriver(pci.PciDriver):
    """Reports each card with its virtual functions, or with the physical one if it has none."""

    match = tuple(pci.Match(vendor=vendor, device=device) for vendor, device in _CARDS)
    type = "FPGA"
    resource_class = "FPGA"
    expose = "vfs"
    split = False
    group = "intel_fpga_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        #: Cards that have shown one region. They show none while a guest has them.
        self._single: set[str] = set()

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """No device for a further function of a card, which has no region of its own."""
        first = _first_of_slot(function)
        if function.address == first or functions.names(function.address, "fpga_region"):
            return None
        if (function.vendor, function.device) not in _OFS:
            return None
        self.refuse(function, f"it is a part of FPGA {first}")
        return ()

    def groups(
        self, function: pci.Function, offered: Sequence[pci.Function], functions: pci.Snapshot
    ) -> Sequence[Sequence[pci.Function]]:
        """Each region by itself if it has a virtual function, else all of them together."""
        if _has_vf_per_region(function, _regions(function, functions)):
            return [[each] for each in offered]
        return [offered]

    def _device(
        self, function: pci.Function, offered: Sequence[pci.Function], host: base.Host
    ) -> base.Device | None:
        """The card with its regions; if they are deployables, the card gives out nothing itself."""
        device, functions = super()._device(function, offered, host), host.pci
        if device is None or not _has_vf_per_region(function, _regions(function, functions)):
            return device
        card = self._deployable(f"{host.name}_{function.address}", [function], functions)
        card = replace(card, num_accelerators=0, attach_handles=())
        regions = [replace(each, parent=card.name) for each in device.deployables]
        return replace(device, deployables=(card, *regions))

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The card, functions that cannot be changed, and the regions that bitstreams must fit."""
        card = functions[function.pf or function.address]
        yield "CUSTOM_FPGA_INTEL"
        yield f"CUSTOM_FPGA_INTEL_{_CARDS[card.vendor, card.device]}"
        regions = _regions_of(function, functions)
        if _single_region(card, functions) is None and _own_region(function, functions) is None:
            for region in regions:
                if region.function:
                    yield f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{region.afu_id}"
        for region in regions:
            if region.interface_id:
                yield f"CUSTOM_FPGA_REGION_INTEL_{region.interface_id}"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """The firmware: on these cards it is the bitstream of the static part."""
        card = function.pf or function.address
        firmware = [
            functions.text(card, f"{path}/bitstream_id") for path in _below(card, functions, "fme")
        ]
        return {"firmware": next((each for each in firmware if each), None)}

    def refine(
        self, device: base.Device, function: pci.Function, functions: pci.Snapshot
    ) -> base.Device:
        """The device with its program mode and the function that it shows as loaded.

        A card is not programmed if another driver has a function of it.
        """
        if _has_vf_per_region(function, _regions(function, functions)):
            return self._refine_regions(device, functions)
        region = _single_region(function, functions)
        written = card_tools.is_running(self.conf, function.address)
        if written or region is not None:
            self._single.add(function.address)
        elif _regions(function, functions) or not function.has_guest_driver:
            self._single.discard(function.address)
        if function.address not in self._single:
            return device
        (deployable,) = device.deployables
        users = _program_users(function, functions)
        if card_tools.missing_functions(deployable.attach_handles, users):
            shown = region if not written else None
            shows = _with_trait(deployable, shown)
            return replace(device, deployables=(shows,), being_written=written)
        # The guest of one handle must not change the program of the other handles.
        alone = len(deployable.attach_handles) == 1
        programmable = replace(
            deployable,
            program_mode=base.DYNAMIC if alone else base.SINGLE_PROGRAM,
            function=region.function if region is not None and not written else None,
            function_vendor="INTEL",
        )
        return replace(device, deployables=(programmable,), being_written=written)

    def _refine_regions(self, device: base.Device, functions: pci.Snapshot) -> base.Device:
        """The device with each region that the kernel can write as one that is programmed."""
        card, *parts = device.deployables
        found, written = [], False
        for part in parts:
            address = pci.join(part.attach_handles[0].attach_info)
            running = card_tools.is_running(self.conf, address)
            region = _own_region(functions[address], functions)
            written = written or running
            if region is None and not running:
                found.append(part)
                continue
            shown = region.function if region is not None and not running else None
            mode, vendor = base.DYNAMIC, "INTEL"
            found.append(
                replace(part, program_mode=mode, function=shown, function_vendor=vendor)
            )
        return replace(device, deployables=(card, *found), being_written=written)

    def program(self, target: base.ProgramTarget, bitstream: pathlib.Path) -> base.Programmed:
        """Load a bitstream; sysfs shows then what is loaded."""
        wanted = gbs.Header.read(bitstream)
        card_tools.check_function(target, wanted.afu_id)
        card = pci.join(target.control_path.cpid_info)
        # The card, or the virtual function of the region that is written.
        (first, *others) = [pci.join(each.attach_info) for each in target.attach_handles] or [card]
        functions = pci.scan()
        region = _own_region(functions[first], functions) if first in functions else None
        if region is not None and not others:
            # It is locked by its own address: the other regions of the card go on.
            card_tools.check_not_running(self.conf, first)
            _check_interface(wanted, region)
            if wanted.signed:
                raise base.NothingWritten(
                    "The bitstream has blocks of a signature, which only fpgaconf can write"
                )
            tool = functools.partial(privileged.dfl_region, f"{region.node}/{region.port}")
            return self._load(target, bitstream, wanted, first, tool, _own_region)
        card_tools.check_not_running(self.conf, card)
        region = _single_region(functions[card], functions) if card in functions else None
        if region is None:
            raise base.NothingWritten(f"FPGA {card} shows no region that can be programmed")
        card_tools.check_whole_card(target, _program_users(functions[card], functions))
        _check_interface(wanted, region)
        tool = privileged.fpgaconf
        return self._load(target, bitstream, wanted, card, tool, _single_region)

    def _load(
        self,
        target: base.ProgramTarget,
        bitstream: pathlib.Path,
        wanted: gbs.Header,
        address: str,
        tool: Callable[..., None],
        region_of: Callable[[pci.Function, pci.Snapshot], _Region | None],
    ) -> base.Programmed:
        """Load a bitstream with a tool, and see what the region shows then."""
        card_tools.write(self.conf, tool, address, bitstream, target)
        functions = pci.scan()
        region = region_of(functions[address], functions) if address in functions else None
        loaded = region.function if region is not None else None
        if loaded != wanted.afu_id:
            raise RuntimeError(f"FPGA {address} shows {loaded} as loaded, not {wanted.afu_id}")
        return base.Programmed(function=loaded, verified_by="afu_id in sysfs")

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The static part reads as all ones, unless the card is being written: it does not work."""
        if card_tools.is_running(self.conf, function.address):
            return None
        for region in _regions(function, functions):
            if region.interface_id and re.fullmatch(r"f+", region.interface_id):
                return f"A region of FPGA {function.address} cannot be read"
        return None


def _regions_of(function: pci.Function, functions: pci.Snapshot) -> Sequence[_Region]:
    """The region of a virtual function, or all regions that are given out with the card."""
    card = functions[function.pf or function.address]
    regions = _regions(card, functions)
    if not _has_vf_per_region(card, regions):
        return regions
    return [regions[card.vfs.index(function.address)]] if function.pf is not None else []


def _single_region(card: pci.Function, functions: pci.Snapshot) -> _Region | None:
    """The card's only region, or None if it shows none or several."""
    regions = _regions(card, functions)
    return regions[0] if len(regions) == 1 and regions[0].function is not None else None


def _program_users(card: pci.Function, functions: pci.Snapshot) -> Sequence[str]:
    """Addresses of the functions of a card that are given out, by anybody. They run one program."""
    lent = (
        each.address
        for each in functions.of_vendor(card.vendor)
        if each.has_guest_driver and each.pf is None and _first_of_slot(each) == card.address
    )
    return list(dict.fromkeys((*(card.vfs or (card.address,)), *lent)))


def _first_of_slot(function: pci.Function) -> str:
    return f"{function.address.rpartition('.')[0]}.0"


def _with_trait(deployable: base.Deployable, region: _Region | None) -> base.Deployable:
    """The deployable with the trait of its function, which the conductor does not add here."""
    if region is None or not region.function:
        return deployable
    trait = trait_names.legal(f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{region.function}")
    return replace(deployable, traits=tuple(dict.fromkeys((*deployable.traits, trait))))


def _own_region(function: pci.Function, functions: pci.Snapshot) -> _Region | None:
    """The region of a virtual function, if it is one of several and the kernel can write it."""
    if function.pf is None:
        return None
    card = functions[function.pf]
    if not _has_vf_per_region(card, _regions(card, functions)):
        return None
    (region,) = _regions_of(function, functions)
    if region.afu_id is None:
        # The kernel moves the port of a region to its virtual function.
        for port in _regions(function, functions):
            region = replace(
                region, afu_id=port.afu_id, port=port.port, node=_node(card.address, functions)
            )
    return region if region.is_written_by_kernel else None


def _check_interface(wanted: gbs.Header, region: _Region) -> None:
    if region.interface_id not in {None, wanted.interface_id}:
        raise base.NothingWritten(
            f"The bitstream is for region {wanted.interface_id}, not {region.interface_id}"
        )


def _has_vf_per_region(card: pci.Function, regions: Sequence[_Region]) -> bool:
    return len(regions) > 1 and len(card.vfs) == len(regions)


@pci.once
def _regions(card: pci.Function, functions: pci.Snapshot) -> Sequence[_Region]:
    """A card's regions in the order of their ports.

    :raises OSError: what one has loaded cannot be read
    """
    address = card.address
    interfaces = list(_interfaces(address, functions))
    ports = sorted(
        _below(address, functions, "port"),
        key=lambda path: (functions.number(address, f"{path}/id") or 0, path),
    )
    if not ports:
        return [_Region(afu_id=None, interface_id=interface) for interface in interfaces]
    node = _node(address, functions)
    return [
        _Region(
            # One that cannot be read is not one that cannot be programmed: the port may be busy.
            afu_id=functions.if_there(address, f"{path}/afu_id"),
            # All ports of one region have the same interface.
            interface_id=interfaces[min(number, len(interfaces) - 1)] if interfaces else None,
            node=node,
            port=functions.number(address, f"{path}/id"),
        )
        for number, path in enumerate(ports)
    ]


def _node(address: str, functions: pci.Snapshot) -> str | None:
    """The device file by which the kernel's driver writes a card; older ones have another call."""
    names = [path.rpartition("/")[2] for path in _below(address, functions, "fme")]
    return names[0] if len(names) == 1 and names[0].startswith("dfl-fme.") else None


def _interfaces(address: str, functions: pci.Snapshot) -> Iterator[str]:
    """The id of the interface between the static part and each region."""
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
    """The paths of a card's ports (``port``) or of its management engines (``fme``)."""
    for place in ("fpga", "fpga_region"):
        for top in functions.names(address, place):
            for child in functions.names(address, f"{place}/{top}"):
                if child.startswith((f"intel-fpga-{kind}.", f"dfl-{kind}.")):
                    yield f"{place}/{top}/{child}"
