# SPDX-License-Identifier: Apache-2.0
"""Directories, files and links as sysfs has them. Paths are relative to the fake ``/sys``."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping

_BUSES = frozenset({"auxiliary", "dfl", "dsa", "mdev", "pci", "platform"})
_WRITE_ONLY = frozenset({"bind", "create", "drivers_probe", "remove", "reset", "unbind"})
_WRITABLE = frozenset(
    {
        "cfg_services",
        "current_compute_partition",
        "current_memory_partition",
        "current_vgpu_type",
        "driver_name",
        "driver_override",
        "enable",
        "group_id",
        "mode",
        "name",
        "priority",
        "reset_method",
        "size",
        "sriov_drivers_autoprobe",
        "sriov_numvfs",
        "state",
        "threshold",
        "type",
        "uevent",
    }
)


class Files:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)

    def path(self, path: str) -> pathlib.Path:
        return pathlib.Path(self.root, path)

    def real(self, path: str) -> str:
        return os.path.relpath(os.path.realpath(f"{self.root}/{path}"), os.path.realpath(self.root))

    def read(self, path: str) -> str:
        return self.path(path).read_text().strip()

    def put(self, path: str, value: object) -> None:
        """Write a file whole, with the permissions that the kernel gives it."""
        name = path.rpartition("/")[2]
        mode = 0o200 if name in _WRITE_ONLY else 0o644 if name in _WRITABLE else 0o444
        data = value if isinstance(value, bytes) else f"{value}\n".encode() if value != "" else b""
        place = f"{self.root}/{path}"
        try:
            file = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        except FileNotFoundError:
            self.directory(path.rpartition("/")[0])
            file = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        except FileExistsError:
            os.unlink(place)
            file = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        os.write(file, data)
        os.close(file)

    def directory(self, path: str) -> None:
        os.makedirs(f"{self.root}/{path}", exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """Make a link, relative as the kernel's are."""
        above = path.rpartition("/")[0]
        relative = _relative(target, above)
        try:
            os.symlink(relative, f"{self.root}/{path}")
        except FileNotFoundError:
            self.directory(above)
            os.symlink(relative, f"{self.root}/{path}")

    def unlink(self, path: str) -> None:
        self.path(path).unlink(missing_ok=True)

    def target(self, path: str) -> str | None:
        """The last part of what a link points to, or None where there is no link."""
        try:
            return os.path.basename(os.readlink(f"{self.root}/{path}"))
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """What is in a directory; nothing where there is none."""
        try:
            return sorted(os.listdir(f"{self.root}/{path}"))
        except FileNotFoundError:
            return []

    def device(
        self,
        path: str,
        subsystem: str,
        uevent: str,
        attributes: Mapping[str, object],
        directories: Iterable[str] = (),
    ) -> None:
        """Make a device: its directory, and its link at its bus or class."""
        self.directory(path)
        self.put(f"{path}/uevent", uevent)
        for name, value in attributes.items():
            self.put(f"{path}/{name}", value)
        for name in directories:
            self.directory(f"{path}/{name}")
        home = f"bus/{subsystem}" if subsystem in _BUSES else f"class/{subsystem}"
        self.link(f"{path}/subsystem", home)
        self.link(_listing(subsystem, path), path)
        if "dev" in attributes:
            self.link(_number(subsystem, attributes["dev"]), path)

    def drop(self, path: str) -> None:
        whole = f"{self.root}/{path}"
        if not os.path.isdir(whole) or os.path.islink(whole):
            os.unlink(whole)
            return
        for below, directories, files in os.walk(whole):
            if "subsystem" in directories or "subsystem" in files:
                device = os.path.relpath(below, self.root)
                subsystem = self.target(f"{device}/subsystem") or ""
                self.unlink(_listing(subsystem, device))
                if "dev" in files:
                    self.unlink(_number(subsystem, self.read(f"{device}/dev")))
                if self.target(f"{device}/driver"):
                    self.unlink(f"{self.real(f'{device}/driver')}/{os.path.basename(device)}")
        shutil.rmtree(whole)


def _listing(subsystem: str, path: str) -> str:
    name = path.rpartition("/")[2]
    kind = f"bus/{subsystem}/devices" if subsystem in _BUSES else f"class/{subsystem}"
    return f"{kind}/{name}"


def _number(subsystem: str, dev: object) -> str:
    return f"dev/{'block' if subsystem == 'block' else 'char'}/{dev}"


def _relative(target: str, above: str) -> str:
    ours, theirs = above.split("/"), target.split("/")
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    return "/".join([".."] * (len(ours) - same) + theirs[same:]) or "."
