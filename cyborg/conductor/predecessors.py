# SPDX-License-Identifier: Apache-2.0
"""Work that a conductor of this host had taken when it died, given back at the next start.

Each conductor holds a lock on a file in ``[DEFAULT] state_path`` as long as it lives. Whose lock is
free is dead, so nobody has to wait for the end of its leases. Where the files cannot be written, as
on another host, the leases end by themselves.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pathlib

from oslo_config import cfg

from cyborg import work

LOG = logging.getLogger(__name__)

#: Bytes of the longest name.
_NAME_MAX = 4096
#: The descriptors of this process's locks, which must stay open.
_held: list[int] = []


def take_over(conf: cfg.ConfigOpts, name: str) -> None:
    """Show that the conductor ``name`` lives, and give back what dead ones had taken.

    ``name`` is that of a :class:`.worker.Worker`.
    """
    folder = pathlib.Path(conf.state_path, "conductors")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        dead = {file: found for file in folder.iterdir() if (found := _name_of_dead(file))}
        _held.append(_show_life(folder / hashlib.sha256(name.encode()).hexdigest(), name))
    except OSError as exc:
        LOG.info("Work of a conductor that died waits for the end of its lease: %s", exc)
        return
    for file, found in dead.items():
        if given_back := work.hand_back_of(found):
            LOG.info("Conductor %s died; its %d pieces of work are done now", found, given_back)
        file.unlink(missing_ok=True)


def _show_life(file: pathlib.Path, name: str) -> int:
    """Make a file with the name and a lock; its descriptor."""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, name.encode())
    return descriptor


def _name_of_dead(file: pathlib.Path) -> str | None:
    """The name in a file that nobody has locked."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Not by its path: another conductor that starts now may have removed it.
        return os.read(descriptor, _NAME_MAX).decode(errors="replace")
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)
