# SPDX-License-Identifier: Apache-2.0
"""The clients of Nova, Placement and Glance: one kept connection a process.

openstacksdk is loaded at the first call: it takes some 20 MiB, and not every process calls others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg.common import errors

if TYPE_CHECKING:
    from cyborg.peers import connection

_NAMES = {"glance": "Glance", "ironic": "Ironic", "nova": "Nova", "placement": "Placement"}

_lock = threading.Lock()
#: By the id of a configuration, which cannot be hashed. The connection keeps its configuration, so
#: no other one gets that id.
_connections: dict[int, connection.ServicesConnection] = {}


def proxy(conf: cfg.ConfigOpts, group: str) -> connection.Proxy:
    """The service that the options of ``group`` describe. Its verbs are keystoneauth's."""
    from cyborg.peers import connection  # noqa: PLC0415 - it loads openstacksdk

    with _lock:
        if id(conf) not in _connections:
            _connections[id(conf)] = connection.ServicesConnection(conf)
        return _connections[id(conf)].proxy(group)


def close() -> None:
    """Close every kept connection; the next call opens a new one."""
    with _lock:
        while _connections:
            _, kept = _connections.popitem()
            kept.close()


def why_not(group: str, failure: ka_exc.ClientException) -> str:
    """Which service did not serve us, and what it answered, if anything."""
    name = _NAMES[group]
    if not isinstance(failure, ka_exc.HttpError):
        return f"{name} cannot be reached: {failure}"
    if failure.url and failure.url.endswith("/auth/tokens"):
        name = "Keystone"
    return f"{name} answered {failure.http_status}: {failure.message}"


def require(conf: cfg.ConfigOpts, group: str, asked: str = "the API") -> None:
    """Raise Misconfigured if the options of ``group`` do not say how to reach the service."""
    if not configured(conf, group):
        raise errors.Misconfigured(
            f"[{group}] auth_type is not set: it says as which user {asked} is asked."
        )


def configured(conf: cfg.ConfigOpts, group: str) -> bool:
    """True if the options of ``group`` say how to reach the service."""
    return conf[group].auth_type is not None
