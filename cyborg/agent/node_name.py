# SPDX-License-Identifier: Apache-2.0
"""Nova's name of this host's node, which is the name of its root resource provider."""

from __future__ import annotations

import socket

from oslo_config import cfg


def of(conf: cfg.ConfigOpts) -> str:
    """The configured name, or else the fully qualified one, as libvirt's driver in Nova has it.

    That must be the host's name with a domain. A conductor that finds no root provider of that name
    takes the one with the host's name.
    """
    if conf.agent.resource_provider_name:
        return str(conf.agent.resource_provider_name)
    full = socket.getfqdn()
    return full if full.startswith(f"{conf.host}.") else str(conf.host)
