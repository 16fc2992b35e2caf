# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH115, PTH119, PTH208
# pathlib takes several times as long, and a pass reads thousands of files.
"""Fast reading of files, links and directories of sysfs and procfs."""

from __future__ import annotations

import errno
import os
import re

#: Where the kernel shows PCI functions, each by its address.
DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BUFFER = 65536
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
#: The size limit of a file in sysfs: a shorter read is all of it.
_PAGE = 4096


def text(path: str) -> str:
    """The whole text of a file.

    :raises OSError: it does not exist or cannot be read; the error names it
    """
    descriptor = os.open(path, _FLAGS)
    try:
        read = part = os.read(descriptor, _BUFFER)
        # A file of /proc may come in parts of any size.
        while part and (len(part) >= _PAGE or not path.startswith("/sys/")):
            part = os.read(descriptor, _BUFFER)
            read += part
    except OSError as exc:
        exc.filename = path
        raise
    finally:
        os.close(descriptor)
    return read.decode("utf-8", "replace")


def beginning(path: str, size: int) -> bytes:
    """The first bytes of a binary file: fewer if it is shorter, none if it cannot be read."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def optional(path: str) -> str | None:
    """The text of a file without surrounding blanks, or None if it cannot be read."""
    try:
        return text(path).strip()
    except OSError:
        return None


def if_there(path: str) -> str | None:
    """The text of a file without surrounding blanks, or None if it does not exist.

    :raises OSError: it cannot be read
    """
    try:
        return text(path).strip()
    except FileNotFoundError:
        return None


def link_if_there(path: str) -> str | None:
    """The last part of a link's target, or None if nothing has the link's name.

    :raises OSError: it is no link
    """
    try:
        return os.path.basename(os.readlink(path))
    except FileNotFoundError:
        return None


def link(path: str) -> str | None:
    """The last part of a link's target, or None if there is no link."""
    return os.path.basename(target(path)) or None


def target(path: str) -> str:
    """The target of a link; empty if there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def names(path: str) -> list[str]:
    """The sorted names in a directory; none if it does not exist.

    :raises OSError: it cannot be read, or is a link that leads nowhere
    """
    try:
        return listing(path)
    except NotADirectoryError:
        return []


def listing(path: str) -> list[str]:
    """As :func:`names`, of what is a directory if it exists at all.

    :raises OSError: it cannot be read, or is something else
    """
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        check_no_link(path)
        return []


def check_no_link(path: str) -> None:
    """Raise OSError if what does not exist is a link that leads nowhere."""
    if os.path.lexists(path):
        raise OSError(errno.ELOOP, "it is a link that leads nowhere", path)
