# SPDX-License-Identifier: Apache-2.0
"""The header of a bitstream for Intel's FPGA cards: a green bitstream, as OPAE calls it (GBS).

It is a mark of 16 bytes, the length of a JSON text as a 32-bit number, that text, and then what the
card is given. If a card requires a signature, two blocks come before all of this.
"""

from __future__ import annotations

import json
import pathlib
import struct
import uuid
from dataclasses import dataclass
from typing import Any

from cyborg.drivers import base

_MAGIC = b"XeonFPGA\xb7GBSv001"
#: A signature puts two blocks before a bitstream, which begin with this number.
_SIGNED_MAGIC = struct.pack("<I", 0xB6EAFD19)
_SIGNED_SIZE = 1024
_METADATA_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Ids as sysfs shows them, whether there are blocks of a signature, and where the bits begin.

    ``begin`` is the number of bytes before what the card is given, without those blocks.
    """

    afu_id: str
    interface_id: str
    signed: bool
    begin: int

    @classmethod
    def read(cls, bitstream: pathlib.Path) -> Header:
        """The header of the file.

        :raises cyborg.drivers.base.NothingWritten: it is no such bitstream
        """
        with bitstream.open("rb") as file:
            start = file.read(_SIGNED_SIZE)
            signed = start.startswith(_SIGNED_MAGIC)
            if signed:
                start = file.read(_SIGNED_SIZE)
            start += file.read(_METADATA_MAX)
        if not start.startswith(_MAGIC):
            raise base.NothingWritten("This is not a bitstream for an Intel FPGA (GBS)")
        try:
            (size,) = struct.unpack_from("<I", start, len(_MAGIC))
            begin = len(_MAGIC) + 4
            image: dict[str, Any] = json.loads(start[begin : begin + size])["afu-image"]
            (cluster,) = image["accelerator-clusters"]
            return cls(
                afu_id=uuid.UUID(cluster["accelerator-type-uuid"]).hex,
                interface_id=uuid.UUID(image["interface-uuid"]).hex,
                signed=signed,
                begin=begin + size,
            )
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as exc:
            raise base.NothingWritten(f"The bitstream's header cannot be read: {exc!r}") from exc
