# SPDX-License-Identifier: Apache-2.0
"""Locks of cards, which last as long as a tool that writes one, and not as long as its agent.

A lock is held by an open file, which the tool inherits: it ends with the last process that has it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
import struct
from collections.abc import Iterator

#: The kernel's ``struct flock`` of a write lock on all of a file.
_WHOLE_FILE = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def is_held(path: pathlib.Path) -> bool:
    """Whether somebody holds the lock; nobody need have made its file.

    Whoever may not look at the file, as somebody who tries drivers, takes it for free.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    finally:
        os.close(descriptor)
    (kind,) = struct.unpack_from("h", found)
    return bool(kind != fcntl.F_UNLCK)


@contextlib.contextmanager
def taken(path: pathlib.Path) -> Iterator[int]:
    """Hold the lock; the descriptor, given to a child, lets the child hold it as well.

    :raises BlockingIOError: somebody holds it
    """
    descriptor = os.open(path, os.O_RDWR | _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{path} is no file")
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        yield descriptor
    finally:
        os.close(descriptor)
