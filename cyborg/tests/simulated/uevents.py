# SPDX-License-Identifier: Apache-2.0
"""Messages of the kernel about devices, sent to whoever listens on a simulated host."""

from __future__ import annotations

import itertools
import os
import pathlib
import socket
import struct
from collections.abc import Mapping

_NETLINK_KOBJECT_UEVENT = 15
_REQUEST_AND_ACKNOWLEDGE = 1 | 4

_numbers = itertools.count(1)


def to_preloaded(root: pathlib.Path, properties: Mapping[str, str]) -> None:
    """Tell the processes for which umockdev shows ``root``: as udev, and as the kernel."""
    # The kernel counts its messages, and libudev takes none without a number.
    body = _lines({**properties, "SEQNUM": str(next(_numbers))})
    subsystem = _murmur2(properties["SUBSYSTEM"].encode())
    header = b"libudev\0" + struct.pack(">I", 0xFEEDCAFE) + struct.pack("=III", 40, 40, len(body))
    message = header + struct.pack(">IIII", subsystem, 0, 0, 0) + body
    for path in root.glob("event[0-9]*"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_RAW) as listener:
            try:
                listener.connect(str(path))
                listener.send(message)
            except ConnectionRefusedError:
                path.unlink()


def to_namespace(properties: Mapping[str, str]) -> None:
    """Let the kernel tell every listener in this network namespace; for root."""
    first = f"{properties['ACTION']}@{properties['DEVPATH']}\0".encode()
    body = first + _lines(properties)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_KOBJECT_UEVENT) as kernel:
        kernel.bind((0, 0))
        header = struct.pack("=IHHII", 16 + len(body), 16, _REQUEST_AND_ACKNOWLEDGE, 1, 0)
        kernel.sendto(header + body, (0, 0))
        (error,) = struct.unpack("=i", kernel.recv(4096)[16:20])
    if error:
        raise OSError(-error, os.strerror(-error))


def _lines(properties: Mapping[str, str]) -> bytes:
    return b"".join(f"{key}={value}\0".encode() for key, value in properties.items())


def _murmur2(data: bytes) -> int:
    """The hash by which libudev filters subsystems."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    value = len(data)
    while len(data) >= 4:
        part = int.from_bytes(data[:4], "little") * factor & mask
        part = (part ^ part >> 24) * factor & mask
        value = (value * factor & mask) ^ part
        data = data[4:]
    if data:
        value = (value ^ int.from_bytes(data, "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return value ^ value >> 15
