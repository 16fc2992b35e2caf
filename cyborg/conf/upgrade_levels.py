# SPDX-License-Identifier: Apache-2.0
"""Pins for a rolling upgrade, by the names that they have in Nova and elsewhere."""

from oslo_config import cfg

_HELP = (
    "Version of the RPC interface of {} that messages keep to, such as 2.0, while some of them "
    "are still of an older release. Unset, what this release speaks. `cyborg-status upgrade check` "
    "tells when to remove it."
)

OPTS: list[cfg.Opt] = [
    cfg.StrOpt("agent", regex=r"[0-9]+\.[0-9]+", help=_HELP.format("agents")),
    cfg.StrOpt("conductor", regex=r"[0-9]+\.[0-9]+", help=_HELP.format("conductors")),
]
