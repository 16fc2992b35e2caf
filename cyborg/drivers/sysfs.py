# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH115, PTH119, PTH208
# pathlib takes several times as long, and a pass reads thousands of files.
"""Files and links that the kernel shows, read as fast as Python can."""

from __future__ import annotations

import os

_BUFFER = 65536
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
#: The most that sysfs shows in one file. Less is all of it.
_PAGE = 4096


def text(path: str) -> str:
    """All that a file says.

    :raises OSError: there is none, or it cannot be read
    """
    descriptor = os.open(path, _FLAGS)
    try:
        said = part = os.read(descriptor, _BUFFER)
        # A table of /proc comes in parts of any size.
        while part and (len(part) >= _PAGE or not path.startswith("/sys/")):
            part = os.read(descriptor, _BUFFER)
            said += part
    finally:
        os.close(descriptor)
    return said.decode("utf-8", "replace")


def beginning(path: str, size: int) -> bytes:
    """The first bytes of a file that is no text; fewer where it has fewer, or cannot be read."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def optional(path: str) -> str | None:
    """What a file says, without blanks around it, or None where it says nothing now."""
    try:
        return text(path).strip()
    except OSError:
        return None


def link(path: str) -> str | None:
    """The last name of what a link leads to."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def names(path: str) -> list[str]:
    """What is in a directory, sorted; nothing where there is none."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
