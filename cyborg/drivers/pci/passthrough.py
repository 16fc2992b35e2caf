# SPDX-License-Identifier: Apache-2.0
"""Any PCI device that the operator lists, passed through to guests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from oslo_config import cfg

from cyborg.drivers import base, pci, trait_names
from cyborg.drivers.pci import devices

#: Names of vendors in traits. The trait of any other vendor has its id.
_VENDORS = {
    "1002": "AMD",
    "10de": "NVIDIA",
    "10ee": "XILINX",
    "144d": "SAMSUNG",
    "15b3": "MELLANOX",
    "19e5": "HUAWEI",
    "1bd4": "INSPUR",
    "8086": "INTEL",
}


#: The attributes of a board: its name, and how many functions it has when it is whole.
_BOARD, _FUNCTIONS = "board", base.BOARD_FUNCTIONS_KEY


class PciPassthroughDriver(pci.PciDriver):
    """Reports the functions that ``[pci] device_spec`` matches, one device each.

    Those with the same ``board`` are one device, which a guest can only have as a whole. Which they
    are is kept, so that a board that has lost one is not taken for a smaller board.
    """

    match = (pci.Match(),)
    type = "PCI"
    resource_class = "CUSTOM_PCI"
    expose = "each"
    listed = True
    group = "pci"
    own_keys = MappingProxyType({_BOARD: None})

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._has_boards = any(_BOARD in each.own for each in self._specs)

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The traits that device profiles of earlier releases ask for."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_PCI_{_VENDORS.get(function.vendor, function.vendor)}"
        yield f"CUSTOM_PCI_PRODUCT_ID_{function.device}"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """The kind of function, in Nova's terms."""
        if function.pf is not None:
            return {"dev_type": "type-VF", "parent_addr": function.pf}
        return {"dev_type": "type-PF" if function.sriov_totalvfs else "type-PCI"}

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """The whole board, with its first function; None for a function that is on no board."""
        board = self._board_of(function, functions)
        if board is None:
            return None
        listed = functions.made(self._boards)[board]
        members = [functions[address] for address in listed if address not in host.foreign]
        if function != members[0]:
            return []
        if unread := self._unread_of(board, functions):
            functions.give_up(function)
            reason = f"{min(unread)}, which is or may be of its board {board}, cannot be read"
            self._problems.append(f"{function.address}: {reason}")
            self.refuse(function, reason, f"address in {self.option}")
            return []
        if len(members) < len(listed):
            self._refuse_divided(board, members, min(host.foreign.intersection(listed)))
            return []
        mine = self.exactness(functions).keys() - host.foreign
        if not self._offered(members, mine, host, f"board {board}"):
            return []
        return [self._board(board, members, host)]

    def health(self, device: base.Device, host: base.Host) -> str | None:
        """Of a board, what is wrong with any of its functions."""
        board = device.deployables[0].attributes.get(_BOARD)
        if board is None:
            return super().health(device, host)
        functions = host.pci
        sentences = [
            f"PCI function {address} of board {board} is missing from the bus"
            for address in self._known(str(board))
            if address not in functions
        ]
        for handle in device.deployables[0].attach_handles:
            path = base.ControlPath(cpid_type="PCI", cpid_info=handle.attach_info)
            sentence = super().health(dataclasses.replace(device, control_path=path), host)
            sentences += [sentence] if sentence is not None else []
        return "; ".join(dict.fromkeys(sentences)) or None

    def _board_of(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        return self.own(function, functions).get(_BOARD) if self._has_boards else None

    def _boards(self, functions: pci.Snapshot) -> Mapping[str, Sequence[str]]:
        """The addresses of the functions of each board, in their order."""
        found: dict[str, list[str]] = {}
        for address in sorted(self.exactness(functions)):
            board = self._board_of(functions[address], functions)
            if board is not None:
                found.setdefault(board, []).append(address)
        return found

    def _unread_of(self, board: str, functions: pci.Snapshot) -> Set[str]:
        """The functions that cannot be read and belong to a board.

        Of a board that was never seen, those that may belong to it: their ids are not known.
        """
        known = self._known(board)
        if known:
            return functions.unread.intersection(known)
        specs = [each for each in self._specs if each.own.get(_BOARD) == board]
        return {
            address
            for address in functions.faults
            if any(each.address.may_be(address) for each in specs)
        }

    def _refuse_divided(
        self, board: str, members: Sequence[pci.Function], foreign: str
    ) -> None:
        """Another driver has a function of the board: a guest could not get the whole of it."""
        self._problems.append(f"board {board} is not offered: {foreign} is another driver's")
        for each in members:
            reason = f"{foreign} of its board {board} is another driver's"
            self.refuse(each, reason, "give product_id or address in [pci] device_spec too")

    def _known(self, board: str) -> list[str]:
        """The addresses of the functions that a board has, or has had."""
        return list(self.kept.get(_BOARD, board) or ())

    def _board(
        self, board: str, members: Sequence[pci.Function], host: base.Host
    ) -> base.Device:
        functions = host.pci
        known = sorted({*self._known(board), *(each.address for each in members)})
        self.kept.set(_BOARD, board, known)
        parts = [self._deployable(each.address, [each], functions) for each in members]
        attributes = {
            key: value
            for key, value in parts[0].attributes.items()
            if all(part.attributes.get(key) == value for part in parts)
        }
        traits = (trait for part in parts for trait in part.traits)
        deployable = dataclasses.replace(
            parts[0],
            name=f"{host.name}_board_{board}",
            num_accelerators=len(members),
            attach_handles=tuple(self.handle(each, functions) for each in members),
            traits=trait_names.legal_names((*traits, "CUSTOM_PCI_BOARD")),
            attributes={**attributes, _BOARD: board, _FUNCTIONS: len(known)},
            prepares=False,
            # What one of them keeps of a guest is given to the next with the whole board.
            cleans=all(part.cleans for part in parts),
            clean_erases=any(part.clean_erases for part in parts),
        )
        return devices.device_of(members[0], self.type, (deployable,), place=known[0])

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The host has a volume or RAID on a disk of the controller.

        It need not be mounted: virtual machines and storage daemons use volumes directly.
        """
        for each in (function, *(functions[vf] for vf in function.vfs if vf in functions)):
            disk = functions.volume(each) if pci.can_carry(each) else None
            if disk is not None:
                return f"The host has a volume or a RAID on {disk} of PCI function {each.address}"
        return None
