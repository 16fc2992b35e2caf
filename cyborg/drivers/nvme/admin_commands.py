# SPDX-License-Identifier: Apache-2.0
"""The NVMe admin commands that erase a controller, sent to the kernel by ioctl."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
from enum import IntEnum

#: ``_IOWR('N', 0x41, struct nvme_passthru_cmd)``
_ADMIN_COMMAND = 0xC0484E41
#: That structure; what is always 0 is left out: opcode, namespace, address and size of the answer,
#: ``cdw10``, and the time-out.
_COMMAND = struct.Struct("=B3xI16xQ4xII20xI4x")
#: ``_IO(0x12, 127)`` and ``_IOR(0x12, 114, size_t)``
_BLKZEROOUT = 0x127F
_BLKGETSIZE64 = 0x80081272

_GET_LOG_PAGE = 0x02
_IDENTIFY = 0x06
_SANITIZE = 0x84
_EVERY_NAMESPACE = 0xFFFFFFFF
_IDENTIFY_CONTROLLER = 1
_IDENTIFY_ALLOCATED = 0x10
_NAMESPACES_MAX = 1024
_OACS = 256
_NAMESPACE_MANAGEMENT = 1 << 3
_SANITIZE_LOG = 0x81
_SANITIZE_LOG_BYTES = 32
_SANICAP = 328
_TIMEOUT_MS = 60_000


class Sanitize(IntEnum):
    """Methods to erase everything on a controller, by their number in the command."""

    BLOCK = 2
    CRYPTO = 4


class State(IntEnum):
    """The state of the last erasure, by its number in the log."""

    NEVER = 0
    DONE = 1
    RUNNING = 2
    FAILED = 3
    DONE_AND_DEALLOCATED = 4


def sanitize_methods(identity: bytes) -> frozenset[Sanitize]:
    """The methods that a controller supports. ``identity`` is the answer of :func:`identify`."""
    (capabilities,) = struct.unpack_from("<I", identity, _SANICAP)
    bits = {Sanitize.CRYPTO: capabilities & 1, Sanitize.BLOCK: capabilities & 2}
    return frozenset(method for method, bit in bits.items() if bit)


def state_of(log: bytes) -> State:
    """The state in a log page of :func:`sanitize_log`."""
    (status,) = struct.unpack_from("<H", log, 2)
    return State(status & 0b111)


def identify(descriptor: int) -> bytes:
    """The identify data of a controller."""
    return _command(descriptor, _IDENTIFY, answer=4096, cdw10=_IDENTIFY_CONTROLLER)


def count_allocated(descriptor: int) -> int | None:
    """The number of namespaces, attached to the controller or not; None if all must be attached."""
    (commands,) = struct.unpack_from("<H", identify(descriptor), _OACS)
    if not commands & _NAMESPACE_MANAGEMENT:
        return None
    answer = _command(descriptor, _IDENTIFY, answer=4096, cdw10=_IDENTIFY_ALLOCATED)
    numbers: tuple[int, ...] = struct.unpack(f"<{_NAMESPACES_MAX}I", answer)
    return len(numbers) - numbers.count(0)


def sanitize_log(descriptor: int) -> bytes:
    """The log page of sanitize operations."""
    words = _SANITIZE_LOG_BYTES // 4 - 1
    return _command(
        descriptor,
        _GET_LOG_PAGE,
        namespace=_EVERY_NAMESPACE,
        answer=_SANITIZE_LOG_BYTES,
        cdw10=_SANITIZE_LOG | words << 16,
    )


def sanitize(descriptor: int, method: Sanitize) -> None:
    """Begin to erase everything."""
    _command(descriptor, _SANITIZE, cdw10=method)


def zero(descriptor: int) -> None:
    """Overwrite a block device with zeroes, to the end."""
    size = bytearray(8)
    fcntl.ioctl(descriptor, _BLKGETSIZE64, size)
    fcntl.ioctl(descriptor, _BLKZEROOUT, struct.pack("=QQ", 0, *struct.unpack("=Q", size)))


def _command(
    descriptor: int, opcode: int, *, namespace: int = 0, answer: int = 0, cdw10: int = 0
) -> bytes:
    buffer = ctypes.create_string_buffer(max(answer, 1))
    address = ctypes.addressof(buffer) if answer else 0
    command = bytearray(
        _COMMAND.pack(opcode, namespace, address, answer, cdw10, _TIMEOUT_MS)
    )
    status = fcntl.ioctl(descriptor, _ADMIN_COMMAND, command)
    if status:
        raise OSError(errno.EIO, f"NVMe status {status:#x} for admin command {opcode:#x}")
    return buffer.raw[:answer]
