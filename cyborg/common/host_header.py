# SPDX-License-Identifier: Apache-2.0
"""The names in the Host of a request that are this machine's.

A web page may have a name of its own lead to this machine, and would then read the answers.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
import urllib.parse

#: How many texts of clients are remembered with what they mean: few, since they may be long.
KEPT = 16


def is_own(header: str, *names: str) -> bool:
    """True if the header has no name, an address, or a name of this machine or of ``names``."""
    name = name_of(f"//{header}")
    own = {"", "localhost", socket.gethostname().lower(), *map(str.lower, names)}
    return name in own or is_address(name)


@functools.lru_cache(KEPT)
def name_of(url: str) -> str:
    """The name of the host of a URL, in small letters."""
    try:
        return (urllib.parse.urlsplit(url).hostname or "").lower()
    except ValueError:
        return "?"


@functools.lru_cache(KEPT)
def is_address(host: str) -> bool:
    """True if ``host`` is an IP address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
