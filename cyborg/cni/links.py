# SPDX-License-Identifier: Apache-2.0
"""The network interfaces of the host and of network namespaces; no other module runs ``ip``."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

from cyborg.common import errors

#: Seconds for one change; it takes some milliseconds.
_TIMEOUT = 10

Link = dict[str, Any]


class LinkFailed(errors.CyborgError):
    """An interface cannot be seen or changed."""


def find(netns: str | None, *, name: str | None = None, index: int | None = None) -> Link | None:
    """The interface of that index, or name, in a namespace or on the host, if there is one."""
    key, value = ("ifname", name) if index is None else ("ifindex", index)
    found: list[Link] = json.loads(_ip(netns, "-json", "-details", "link", "show") or "[]")
    return next((link for link in found if link.get(key) == value), None)


def change(name: str, *words: str, netns: str | None = None) -> None:
    """Change an interface as ``ip link set`` says it."""
    _ip(netns, "link", "set", "dev", name, *words)


def move_in(name: str, netns: str, new_name: str) -> None:
    """Move an interface of the host to a namespace."""
    change(name, "netns", netns, "name", new_name)


def move_out(name: str, netns: str, new_name: str) -> None:
    """Move an interface of a namespace to this process's, the host's."""
    change(name, "netns", f"/proc/{os.getpid()}/ns/net", "name", new_name, netns=netns)


def identity(netns: str) -> list[int] | None:
    """The namespace at a path, which may be another one's later; None if there is none."""
    try:
        found = pathlib.Path(netns).stat()
    except FileNotFoundError:
        return None
    return [found.st_dev, found.st_ino]


def _ip(netns: str | None, *words: str) -> str:
    enter = [] if netns is None else ["nsenter", f"--net={netns}", "--"]
    command = [*enter, "ip", *words]
    try:
        done = subprocess.run(  # noqa: S603 - names of the kernel, and what was checked
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LinkFailed(f"{' '.join(command)}: {exc}") from exc
    if done.returncode:
        raise LinkFailed(f"{' '.join(command)}: {done.stderr.strip()[:200]}")
    return done.stdout
