# SPDX-License-Identifier: Apache-2.0
"""What bitstreams of Intel's and Xilinx's say of themselves: which function, and for what."""

from __future__ import annotations

import json
import pathlib
import struct
import uuid
from dataclasses import dataclass
from typing import Any

from cyborg.drivers import base

_GBS_MAGIC = b"XeonFPGA\xb7GBSv001"
#: What a signature adds before a bitstream: two blocks that begin with this number.
_SIGNED_MAGIC = struct.pack("<I", 0xB6EAFD19)
_SIGNED_SIZE = 1024
_METADATA_MAX = 64 * 1024

_XCLBIN_MAGIC = b"xclbin2\0"
#: Where the identity of the program is in the header of an xclbin, and the header's end.
_XCLBIN_UUID = slice(416, 432)
_XCLBIN_SIZE = 432


@dataclass(frozen=True, slots=True, kw_only=True)
class Gbs:
    """Ids of a bitstream for Intel's cards, as sysfs shows them."""

    afu_id: str
    interface_id: str


def gbs(bitstream: pathlib.Path) -> Gbs:
    """The header of a bitstream for Intel's cards.

    :raises cyborg.drivers.base.NothingWritten: it is none
    """
    with bitstream.open("rb") as file:
        start = file.read(_SIGNED_SIZE)
        if start.startswith(_SIGNED_MAGIC):
            start = file.read(_SIGNED_SIZE)
        start += file.read(_METADATA_MAX)
    if not start.startswith(_GBS_MAGIC):
        raise base.NothingWritten("This is no bitstream for an Intel FPGA (GBS)")
    try:
        (size,) = struct.unpack_from("<I", start, len(_GBS_MAGIC))
        begin = len(_GBS_MAGIC) + 4
        image: dict[str, Any] = json.loads(start[begin : begin + size])["afu-image"]
        (cluster,) = image["accelerator-clusters"]
        return Gbs(
            afu_id=uuid.UUID(cluster["accelerator-type-uuid"]).hex,
            interface_id=uuid.UUID(image["interface-uuid"]).hex,
        )
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as exc:
        raise base.NothingWritten(f"The bitstream's header cannot be read: {exc!r}") from exc


def xclbin(bitstream: pathlib.Path) -> str:
    """The id of a program for Xilinx's cards, as sysfs shows it.

    :raises cyborg.drivers.base.NothingWritten: it is none
    """
    with bitstream.open("rb") as file:
        header = file.read(_XCLBIN_SIZE)
    if not header.startswith(_XCLBIN_MAGIC) or len(header) < _XCLBIN_SIZE:
        raise base.NothingWritten("This is no bitstream for a Xilinx FPGA (xclbin)")
    return str(uuid.UUID(bytes=header[_XCLBIN_UUID]))
