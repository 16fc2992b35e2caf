# SPDX-License-Identifier: Apache-2.0
"""Load a bitstream into one region of an Intel FPGA, by the kernel's DFL driver (Linux 4.19).

    python -m cyborg.drivers.intel.dfl_region NODE PORT FILE

OPAE's ``fpgaconf`` cannot select one of several regions. This is a process of its own, like the
tools of vendors: the kernel may take long, and the card stays locked if the agent dies meanwhile.
The facts are those of ``linux/fpga-dfl.h``.
"""

from __future__ import annotations

import ctypes
import fcntl
import pathlib
import struct
import sys
from collections.abc import Sequence

from cyborg.drivers import base
from cyborg.drivers.intel import gbs

#: ``DFL_FPGA_FME_PORT_PR``, and its ``struct dfl_fpga_fme_port_pr``: its own size, flags, the port,
#: and length and address of the bits.
_PORT_PR = 0xB680
_REQUEST = struct.Struct("=IIIIQ")


def load(node: pathlib.Path, port: int, bitstream: pathlib.Path) -> None:
    """Load the bitstream into the region of that port, and wait for the kernel.

    :raises NothingWritten: it is no bitstream for an Intel FPGA
    :raises OSError: the kernel's error
    """
    begin = gbs.Header.read(bitstream).begin
    bits = bitstream.read_bytes()[begin:]
    buffer = ctypes.create_string_buffer(bits, len(bits))
    request = _REQUEST.pack(_REQUEST.size, 0, port, len(bits), ctypes.addressof(buffer))
    with node.open("rb+", buffering=0) as file:
        fcntl.ioctl(file, _PORT_PR, request)


def main(arguments: Sequence[str]) -> str | None:
    """Run the command; return why it failed, if it did."""
    node, port, bitstream = arguments
    try:
        load(pathlib.Path(node), int(port), pathlib.Path(bitstream))
    except (OSError, base.NothingWritten) as exc:
        return str(exc)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
