# SPDX-License-Identifier: Apache-2.0
"""Configuration options: one module per group. Functions get the options as ``conf``."""

from __future__ import annotations

from collections.abc import Iterable

from keystoneauth1 import loading as ka_loading
from oslo_config import cfg

from cyborg.conf import (
    agent,
    api,
    cleaning,
    cni,
    conductor,
    default,
    drivers,
    glance,
    kube,
    metrics,
    nova_watcher,
    obsolete,
    placement,
    programming,
    ssl,
    upgrade_levels,
)
from cyborg.conf.obsolete import meaningless
from cyborg.conf.written import files, passed_over

__all__ = ["GROUPS", "SERVICES", "files", "list_opts", "meaningless", "passed_over", "register"]

_MODULES = [agent, api, cleaning, cni, conductor, glance, kube, metrics, nova_watcher]
_MODULES += [placement, programming, ssl, upgrade_levels]

#: The options of Cyborg's own groups, by group name (None for DEFAULT): a module has the name of
#: its group.
GROUPS: dict[str | None, list[cfg.Opt]] = {
    None: default.OPTS,
    **{module.__name__.rpartition(".")[2]: module.OPTS for module in _MODULES},
    **drivers.GROUPS,
}

#: Groups with keystoneauth options for another service, and the type of that service.
SERVICES = {
    "cni": "accelerator",
    "glance": "image",
    "ironic": "baremetal",
    "kube": "accelerator",
    # Without an auth_type there is no Nova, and events are logged.
    "nova": "compute",
    "nova_watcher": "accelerator",
    "placement": "placement",
}
#: The endpoints of the catalogue that are used, the first one that there is.
_INTERFACES = ["internal", "public"]
#: Those of keystoneauth's plugins whose options the sample shows.
_PLUGINS = ("password", "v3applicationcredential")


def register(conf: cfg.ConfigOpts) -> None:
    """Register every option of Cyborg's own.

    ``[database]`` is not among them, as a compute host has no database: see
    :func:`cyborg.db.register`.
    """
    for group, opts in GROUPS.items():
        conf.register_opts(opts, group=group)
    obsolete.register(conf)
    # oslo.limit registers the rest when it is first used.
    ka_loading.register_auth_conf_options(conf, "oslo_limit")
    for group, service_type in SERVICES.items():
        ka_loading.register_auth_conf_options(conf, group)
        ka_loading.register_session_conf_options(conf, group)
        ka_loading.register_adapter_conf_options(conf, group, include_deprecated=False)
        conf.set_default("service_type", service_type, group=group)
        conf.set_default("valid_interfaces", _INTERFACES, group=group)
        # Without it a service that accepts a connection and never answers would block a thread.
        conf.set_default("timeout", 30, group=group)


def list_opts() -> list[tuple[str | None, Iterable[cfg.Opt]]]:
    """Every option, for ``oslo-config-generator``."""
    plugins = [ka_loading.get_auth_plugin_conf_options(name) for name in _PLUGINS]
    credentials = {option.dest: option for options in plugins for option in options}.values()
    common = ka_loading.get_auth_common_conf_options()
    calls = [*common, *credentials, *ka_loading.get_session_conf_options()]
    calls += ka_loading.get_adapter_conf_options(include_deprecated=False)
    cfg.set_defaults(calls, valid_interfaces=_INTERFACES)
    return [*GROUPS.items(), *((group, calls) for group in SERVICES), ("oslo_limit", common)]
