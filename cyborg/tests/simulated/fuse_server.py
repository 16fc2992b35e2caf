# SPDX-License-Identifier: Apache-2.0
"""A process that shows a tree as ``/sys`` by FUSE, in the mount namespace that it was started in.

Arguments: the directory for the tree, and the host, a JSON text. Ends when its input is closed.
The first line of its output is ``ready``. What the tests want to be changed is written to
``/sys/.simulated``, a JSON list of a method of the tree and its arguments; what was written to
other files, and to disks, is a line each in ``writes`` beside the tree.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import pathlib
import socket
import stat
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import mfusepy

from cyborg.tests.simulated import layout, nvme_device, uevents
from cyborg.tests.simulated.kernel import Kernel
from cyborg.tests.simulated.tree import Tree

_CONTROL = "/.simulated"
#: Where the device files are; ``/dev`` has links to them.
_DEVICES = "/.devices/"
#: What of ``/dev`` the host needs, beside links.
_KEPT = ("full", "fuse", "null", "ptmx", "pts", "random", "shm", "tty", "urandom", "zero")
_MS_BIND, _MS_MOVE = 4096, 8192
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


class Sys(mfusepy.Operations):
    """Reads come from the tree on disk; writes are the kernel's."""

    use_ns = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kernel = Kernel(tree)
        self._root = tree.files.root
        self._writes = tree.root / "writes"
        self._writes.touch()
        self._devices = nvme_device.Devices(tree, self._record)
        self._link_devices()

    def init_with_config(self, _connection: Any, config: Any) -> None:
        """Let nothing be cached; tell that the file system is there."""
        config.direct_io = 1
        config.entry_timeout = config.negative_timeout = config.attr_timeout = 0
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """What a file is; as in sysfs, a file is said to have a page."""
        if path == _CONTROL:
            return {"st_mode": stat.S_IFREG | 0o200, "st_nlink": 1, "st_size": 4096}
        if path.startswith(_DEVICES) and path.removeprefix(_DEVICES) in self._devices.names():
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": 0}
        if path == _DEVICES.rstrip("/"):
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2, "st_size": 0}
        found = os.lstat(self._root + path)
        size = 4096 if stat.S_ISREG(found.st_mode) else found.st_size
        return {"st_mode": found.st_mode, "st_nlink": found.st_nlink, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._root + path)]

    def readlink(self, path: str) -> str:
        return os.readlink(self._root + path)

    def open(self, path: str, flags: int) -> int:
        """Open a file, if it is meant to be read or written so: root may not do more in sysfs."""
        mode = self.getattr(path)["st_mode"]
        access = flags & os.O_ACCMODE
        if access != os.O_RDONLY and not mode & 0o222:
            raise OSError(errno.EACCES, "read-only")
        if access != os.O_WRONLY and not mode & 0o444:
            raise OSError(errno.EACCES, "write-only")
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with open(self._root + path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        text = data.decode()
        try:
            if path == _CONTROL:
                self._control(*json.loads(text))
            else:
                self._record(f"/sys{path}", text.strip())
                self._kernel.write(path.lstrip("/"), text)
            self._link_devices()
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - mfusepy would say EINVAL, which a kernel means
            traceback.print_exc()
            raise OSError(errno.EIO, "the simulator failed") from None
        return len(data)

    def ioctl(self, path: str, cmd: int, arg: Any, fh: int, flags: int, data: Any) -> int:
        _uid, _gid, pid = mfusepy.fuse_get_context()
        name = path.removeprefix(_DEVICES)
        try:
            return self._devices.ioctl(name, cmd & 0xFFFFFFFF, arg or 0, data, pid)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - as above
            traceback.print_exc()
            raise OSError(errno.EIO, "the simulator failed") from None

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Nothing: a shell opens a file so before it writes."""
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        """Refused, as by sysfs."""
        raise OSError(errno.EACCES, "nothing can be created")

    def _record(self, path: str, text: str) -> None:
        with self._writes.open("a") as writes:
            writes.write(json.dumps([path, text]) + "\n")

    def _link_devices(self) -> None:
        there = {path.name for path in pathlib.Path("/dev").glob("nvme*")}
        for name in self._devices.names() - there:
            os.symlink(f"/sys{_DEVICES}{name}", f"/dev/{name}")
        for name in there - self._devices.names():
            os.unlink(f"/dev/{name}")

    def _control(self, method: str, *arguments: Any) -> None:
        keywords = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
        positional = arguments[: len(arguments) - bool(keywords)]
        act: Callable[..., object] = getattr(self._tree, method)
        act(*positional, **keywords)


def main() -> None:
    """Build the tree, mount it and serve it until the input is closed."""
    root, host = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    _bring_up_loopback()
    _make_own_dev(root / "dev")
    tree = Tree(root, layout.load(host), uevents.to_namespace).build()
    threading.Thread(target=_end_with_input, daemon=True).start()
    mfusepy.FUSE(
        Sys(tree), "/sys", foreground=True, nothreads=True, allow_other=True, fsname="simulated"
    )


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _make_own_dev(place: pathlib.Path) -> None:
    """Put a ``/dev`` of our own over the machine's, into which disks can be linked."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: pathlib.Path, kind: str | None, flags: int) -> None:
        parts = (source.encode(), os.fsencode(target), kind.encode() if kind else None)
        if libc.mount(*parts, flags, None):
            raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")

    place.mkdir()
    mount("dev", place, "tmpfs", 0)
    for path in pathlib.Path("/dev").iterdir():
        if path.is_symlink():
            (place / path.name).symlink_to(path.readlink())
        elif path.name in _KEPT:
            (place / path.name).mkdir() if path.is_dir() else (place / path.name).touch()
            mount(str(path), place / path.name, None, _MS_BIND)
    mount(str(place), pathlib.Path("/dev"), None, _MS_MOVE)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
