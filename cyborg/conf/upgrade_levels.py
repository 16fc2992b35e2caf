# SPDX-License-Identifier: Apache-2.0
"""RPC version pins for a rolling upgrade, named as in Nova."""

from oslo_config import cfg

_HELP = (
    "RPC version, such as 2.0, of messages to {}, while some of them run an older release. If "
    "unset, the version of this release. `cyborg-status upgrade check` says when to remove it."
)

OPTS: list[cfg.Opt] = [
    cfg.StrOpt("agent", regex=r"[0-9]+\.[0-9]+", help=_HELP.format("agents")),
    cfg.StrOpt("conductor", regex=r"[0-9]+\.[0-9]+", help=_HELP.format("conductors")),
]
