# SPDX-License-Identifier: Apache-2.0
"""Which drivers this host has: loaded by name from the entry points, and checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import stevedore
from oslo_config import cfg

from cyborg.drivers import base

LOG = logging.getLogger(__name__)

NAMESPACE = "cyborg.accelerator.driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The enabled drivers in the order of the option, and why the others are absent."""

    drivers: Mapping[str, base.Driver]
    errors: Mapping[str, str]


def load(conf: cfg.ConfigOpts) -> Registry:
    """Make every driver of ``[agent] enabled_drivers``. A bad one never hinders the others."""
    names = list(dict.fromkeys(conf.agent.enabled_drivers))
    errors: dict[str, str] = {}

    def failed(_manager: object, entry_point: object, exc: BaseException) -> None:
        name = getattr(entry_point, "name", str(entry_point))
        errors[name] = f"The driver cannot be loaded: {type(exc).__name__}: {exc}"

    manager: stevedore.NamedExtensionManager[object] = stevedore.NamedExtensionManager(
        NAMESPACE,
        names,
        invoke_on_load=True,
        invoke_args=(conf,),
        on_load_failure_callback=failed,
        on_missing_entrypoints_callback=lambda _missing: None,  # told below, by name
    )
    loaded = {extension.name: extension.obj for extension in manager}
    drivers: dict[str, base.Driver] = {}
    for name in names:
        driver = loaded.get(name)
        if isinstance(driver, base.Driver):
            drivers[name] = driver
        elif driver is not None:
            errors[name] = f"{type(driver).__name__} is no driver: it has no method discover"
        else:
            errors.setdefault(name, "No driver of this name is installed")
    for name, sentence in errors.items():
        LOG.error("Driver %s: %s", name, sentence)
    return Registry(drivers=drivers, errors=errors)
