# SPDX-License-Identifier: Apache-2.0
"""Shells of Xilinx cards with two stages (DFX-2RP): layouts that XRT's tool loads over the base.

A card keeps its shell until the host is rebooted. The managing driver shows it, so of a card that
a guest has nothing is known but what was seen before.
"""

from __future__ import annotations

import errno
import logging
import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from oslo_config import cfg

from cyborg.drivers import kept_facts, pci, privileged, value_checks

LOG = logging.getLogger(__name__)

_OPTION = "[xilinx_fpga_driver] layouts"
_MAGIC = b"xclbin2\0"
#: Where a partition's header has its name: vendor, board, name and version.
_NAME = slice(352, 416)
#: The file of the managing function with the ids of the base and, behind it, of the shell.
_SHOWN = "logic_uuids"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
#: The kinds of the kept facts: the board of a card with two stages, its last shell, and the names
#: of shells by their ids: one may run that is not installed any more.
_BOARDS, _SHELLS, _NAMES = "boards", "shells", "names"


class ShownShell(NamedTuple):
    """The board of a card, and its shell's id, which is empty if it has none."""

    board: str
    shell: str


class Shells:
    """``[xilinx_fpga_driver] layouts``: names of shells as ``xbmgmt examine`` shows them."""

    def __init__(self, conf: cfg.ConfigOpts, kept: kept_facts.KeptFacts) -> None:
        self._kept = kept
        self._names: list[str] = conf.xilinx_fpga_driver.layouts
        for name in self._names:
            try:
                value_checks.function_id(name)
            except ValueError as exc:
                raise ValueError(f"{_OPTION}: {exc}") from exc

    def are_unknown(self, card: pci.Function) -> bool:
        """True while nothing tells if a card has layouts: a guest may have it already."""
        if not self._names or not (card.driver is None or card.has_guest_driver):
            return False
        return self._kept.get(_BOARDS, card.address) is None

    def of(self, card: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
        """The ids of the shells that a card can have now, by their names."""
        listed = self.listed(card, functions)
        there = functions.made(self._partitions) if listed else {}
        return {name: there[name] for name in listed if name in there}

    def listed(self, card: pci.Function, functions: pci.Snapshot) -> list[str]:
        """The shells of a card's board that the operator lists, installed on the host or not."""
        if not self._names:
            return []
        shown = _shown(card.address, functions)
        if shown is not None:
            self._kept.set(_BOARDS, card.address, shown.board)
        board = shown.board if shown else self._kept.get(_BOARDS, card.address)
        return [name for name in self._names if board and f"_{board}_" in name]

    def shown(self, card: pci.Function, functions: pci.Snapshot) -> str | None:
        """The name of the shell that a card shows, or its id; None if the card shows nothing."""
        shown = _shown(card.address, functions)
        if shown is None:
            return None
        by_id = {each: name for name, each in functions.made(self._partitions).items()}
        name = by_id.get(shown.shell) or self._kept.get(_NAMES, shown.shell) or shown.shell
        self._kept.set(_SHELLS, card.address, name)
        return name

    def last(self, card: pci.Function, functions: pci.Snapshot) -> str:
        """The shell that a card shows, or has shown before a guest got it."""
        shown = self.shown(card, functions) if self._names else ""
        return shown if shown is not None else self._kept.get(_SHELLS, card.address) or ""

    def _partitions(self, _functions: pci.Snapshot) -> Mapping[str, str]:
        """The ids of the partitions that are installed on the host, by their names."""
        found = {}
        for path in sorted(privileged.XILINX_PARTITIONS.glob("*/partition.xsabin")):
            if _ID.fullmatch(path.parent.name) and (name := _name(path)):
                found[name] = path.parent.name
                self._kept.set(_NAMES, path.parent.name, name)
        return found


def _shown(address: str, functions: pci.Snapshot) -> ShownShell | None:
    """The facts that a card shows; None if it has one stage only, or not its managing driver.

    :raises OSError: it cannot be read, so that it must not be taken for a card of one stage
    :raises ValueError: it shows something else
    """
    board = functions.if_there(address, "board_name")
    try:
        text = functions.if_there(address, _SHOWN)
    except OSError as exc:
        # So the driver answers for a card of which it has no such table.
        if exc.errno != errno.EINVAL:
            raise
        text = None
    # The driver has no name for some boards.
    if not board or not text:
        return None
    ids = text.lower().split()
    if not all(map(_ID.fullmatch, ids)):
        raise ValueError(f"{_SHOWN} of {address} holds no ids: {text[:40]!r}")
    return ShownShell(board, ids[1] if len(ids) > 1 else "")


def _name(partition: pathlib.Path) -> str:
    """The name in the header of a partition, as the vendor's tool writes it."""
    try:
        with partition.open("rb") as file:
            header = file.read(_NAME.stop)
    except OSError as exc:
        LOG.warning("Shell %s is not offered: %s", partition, exc)
        return ""
    if not header.startswith(_MAGIC):
        return ""
    name = header[_NAME].partition(b"\0")[0].decode("ascii", errors="replace")
    return name.replace(":", "_").replace(".", "_")
