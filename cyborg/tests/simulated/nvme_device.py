# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers and their namespaces as device files: the few ioctls that erase them.

By NVM Express Base Specification 2.0, sections 5.17 (Identify), 5.24 (Sanitize) and 8.11
(namespaces that are there without being attached).
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable
from typing import Any

from cyborg.tests.simulated.tree import Tree

_ADMIN_COMMAND = 0xC0484E41
_BLKZEROOUT = 0x127F
_BLKGETSIZE64 = 0x80081272
_IDENTIFY, _GET_LOG_PAGE, _SANITIZE = 0x06, 0x02, 0x84
_SANITIZE_LOG = 0x81
_WAYS = {"crypto": (1, 4), "block": (2, 2)}  # the bit of the ability, the number in the command
_STATES = {"never": 0, "done": 1, "running": 2, "failed": 3}
_INVALID_FIELD = 0x4002


class Devices:
    """The device files of a tree's NVMe disks. ``record`` is told what was erased."""

    def __init__(self, tree: Tree, record: Callable[[str, str], None]) -> None:
        self._tree = tree
        self._record = record
        self._states: dict[str, str] = {}
        #: How often a controller will still answer that it is erasing itself.
        self._asks: dict[str, int] = {}

    def names(self) -> set[str]:
        files = self._tree.files
        disks = files.names("class/block") + files.names("class/nvme")
        return {name for name in disks if name.startswith("nvme")}

    def ioctl(self, name: str, command: int, argument: int, data: Any, pid: int) -> int:
        """Answer an ioctl of a process; the status of an NVMe command, or 0."""
        if command == _ADMIN_COMMAND and name in self._tree.files.names("class/nvme"):
            return self._admin(name, ctypes.string_at(data, 72), pid)
        if command == _BLKGETSIZE64 and name in self._tree.files.names("class/block"):
            ctypes.memmove(data, struct.pack("=Q", self._size(name)), 8)
            return 0
        if command == _BLKZEROOUT and name in self._tree.files.names("class/block"):
            start, length = struct.unpack("=QQ", _memory(pid, argument, 16))
            if start + length > self._size(name):
                raise OSError(errno.EINVAL, "beyond the end")
            self._record(f"/dev/{name}", f"zero {start} {length}")
            return 0
        raise OSError(errno.ENOTTY, "no such ioctl here")

    def _admin(self, name: str, command: bytes, pid: int) -> int:
        # struct nvme_passthru_cmd: of its words the five that are used.
        opcode, namespace, place, length, first = struct.unpack_from("=B3xI16xQ4xII", command)
        can = self._facts(name).get("can", ())
        if opcode == _IDENTIFY and first == 1:
            answer = bytearray(4096)
            struct.pack_into("<I", answer, 328, sum(_WAYS[way][0] for way in can))
            struct.pack_into("<H", answer, 256, 0x8 if "detached" in self._facts(name) else 0)
            _write(pid, place, bytes(answer[:length]))
            return 0
        if opcode == _IDENTIFY and first == 0x10 and "detached" in self._facts(name):
            count = len(self._namespaces(name)) + self._facts(name)["detached"]
            _write(pid, place, struct.pack("<1024I", *range(1, count + 1), *[0] * (1024 - count)))
            return 0
        if opcode == _GET_LOG_PAGE and first & 0xFF == _SANITIZE_LOG:
            log = struct.pack("<HHI24x", 0xFFFF, _STATES[self._state(name)], 0)
            _write(pid, place, log[: min(length, ((first >> 16) + 1) * 4)])
            return 0
        way = next((way for way in can if _WAYS[way][1] == first & 7), None)
        if opcode != _SANITIZE or way is None or namespace:
            return _INVALID_FIELD
        self._record(f"/dev/{name}", f"sanitize {way}")
        self._states[name] = "running"
        self._asks[name] = self._facts(name).get("asks", 1)
        return 0

    def _state(self, name: str) -> str:
        state = self._states.get(name, "never")
        if state == "running" and not self._asks[name]:
            state = self._states[name] = self._facts(name).get("ends", "done")
        elif state == "running":
            self._asks[name] -= 1
        return state

    def _facts(self, name: str) -> dict[str, Any]:
        address = self._tree.files.real(f"class/nvme/{name}").split("/")[-3]
        facts: dict[str, Any] = self._tree.function(address).facts.get("sanitize", {})
        return facts

    def _namespaces(self, name: str) -> list[str]:
        below = self._tree.files.names(self._tree.files.real(f"class/nvme/{name}"))
        return [each for each in below if each.startswith("nvme")]

    def _size(self, name: str) -> int:
        return int(self._tree.files.read(f"class/block/{name}/size")) * 512


def _memory(pid: int, place: int, length: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(place)
        return memory.read(length)


def _write(pid: int, place: int, data: bytes) -> None:
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(place)
        memory.write(data)
