# SPDX-License-Identifier: Apache-2.0
"""Configuration: one module a group, declared once with prose help and handed in as ``conf``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from keystoneauth1 import loading as ka_loading
from oslo_config import cfg

from cyborg.conf import (
    agent,
    api,
    conductor,
    default,
    drivers,
    glance,
    metrics,
    nova,
    obsolete,
    placement,
    programming,
    ssl,
    upgrade_levels,
)
from cyborg.conf.obsolete import meaningless

__all__ = ["GROUPS", "SERVICES", "list_opts", "meaningless", "register"]

#: Every group of our own: group name (None for DEFAULT) to its options.
GROUPS: dict[str | None, list[cfg.Opt]] = {
    None: default.OPTS,
    "api": api.OPTS,
    "agent": agent.OPTS,
    "conductor": conductor.OPTS,
    "glance": glance.OPTS,
    "metrics": metrics.OPTS,
    "nova": nova.OPTS,
    "placement": placement.OPTS,
    "programming": programming.OPTS,
    "ssl": ssl.OPTS,
    "upgrade_levels": upgrade_levels.OPTS,
    **drivers.GROUPS,
}

#: Groups that reach a service over HTTP with keystoneauth, and the service type of each.
SERVICES = {"glance": "image", "nova": "compute", "placement": "placement"}


def register(conf: cfg.ConfigOpts) -> None:
    """Make every option of Cyborg's own known to ``conf``.

    ``[database]`` is not among them: a compute host has none. See :func:`cyborg.db.register`.
    """
    for group, opts in GROUPS.items():
        conf.register_opts(opts, group=group)
    obsolete.register(conf)
    for group, service_type in SERVICES.items():
        ka_loading.register_auth_conf_options(conf, group)
        ka_loading.register_session_conf_options(conf, group)
        ka_loading.register_adapter_conf_options(conf, group, include_deprecated=False)
        conf.set_default("service_type", service_type, group=group)
        # Without it a peer that accepts and never answers would hold a thread for good.
        conf.set_default("timeout", 30, group=group)


def list_opts() -> list[tuple[str | None, Iterable[cfg.Opt]]]:
    """Every option for ``oslo-config-generator``."""
    keystoneauth = [
        (
            group,
            list(
                itertools.chain(
                    ka_loading.get_auth_common_conf_options(),
                    ka_loading.get_session_conf_options(),
                    ka_loading.get_adapter_conf_options(include_deprecated=False),
                )
            ),
        )
        for group in SERVICES
    ]
    return [*GROUPS.items(), *keystoneauth]
