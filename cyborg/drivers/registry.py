# SPDX-License-Identifier: Apache-2.0
"""The drivers of this host, loaded by name from the entry points and checked."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import stevedore
from oslo_config import cfg

from cyborg.drivers import base

LOG = logging.getLogger(__name__)

NAMESPACE = "cyborg.accelerator.driver"
#: The name under which it is reported that there is no driver, beside the errors of drivers.
NO_DRIVER = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The drivers that were loaded, in the order of the option, and why others were not."""

    drivers: Mapping[str, base.Driver]
    errors: Mapping[str, str]


def load(conf: cfg.ConfigOpts) -> Registry:
    """Load every driver of ``[agent] enabled_drivers``. A faulty one never stops the others."""
    enabled = list(dict.fromkeys(conf.agent.enabled_drivers))
    found = _load(enabled, conf)
    errors = dict(found.errors)
    if not enabled:
        errors[NO_DRIVER] = (
            "[agent] enabled_drivers is not set, so no device of this host is reported. Set it to "
            f"some of the installed drivers: {', '.join(_installed())}"
        )
    for name, sentence in errors.items():
        LOG.error("%s", told(name, sentence))
    return Registry(drivers=found.drivers, errors=errors)


def told(name: str, sentence: str) -> str:
    """The sentence of an error after the driver's name, if a driver has the error."""
    return sentence if name == NO_DRIVER else f"Driver {name}: {sentence}"


def load_others(conf: cfg.ConfigOpts) -> Mapping[str, base.Driver]:
    """The drivers that are installed and not enabled, as far as they can be loaded."""
    others = set(_installed()) - set(conf.agent.enabled_drivers)
    return _load(sorted(others), conf).drivers


def _installed() -> list[str]:
    return sorted(importlib.metadata.entry_points(group=NAMESPACE).names)


@functools.cache
def names_of(module: str, name: str) -> frozenset[str]:
    """The names under which a driver is installed whose class is that one."""
    where = f"{module}:{name}"
    installed = importlib.metadata.entry_points(group=NAMESPACE)
    return frozenset(each.name for each in installed if each.value == where)


def _load(names: Iterable[str], conf: cfg.ConfigOpts) -> Registry:
    drivers: dict[str, base.Driver] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            found = _instances(name, conf)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - each driver is code of its own
            errors[name] = f"The driver cannot be loaded: {type(exc).__name__}: {exc}"
            continue
        if not found:
            known = ", ".join(_installed())
            errors[name] = f"No driver of this name is installed; installed are {known}"
        elif not isinstance(found[-1], base.Driver):
            errors[name] = f"{type(found[-1]).__name__} is not a driver: it has no method discover"
        elif why_not := _why_other_api(found[-1]):
            errors[name] = why_not
        else:
            drivers[name] = found[-1]
    return Registry(drivers=drivers, errors=errors)


def _why_other_api(driver: base.Driver) -> str | None:
    """Why a driver was written for another interface than this agent has, or None."""
    kind, asked = type(driver).__name__, getattr(driver, "driver_api", None)
    if asked is None:
        return (
            f"{kind} does not say for which driver API it was written. Compare it with "
            f"cyborg/drivers/base.py of this release, then set driver_api = {base.DRIVER_API}"
        )
    if type(asked) is not int or asked != base.DRIVER_API:
        return (
            f"{kind} was written for driver API {asked!r}, and this agent has {base.DRIVER_API}. "
            f"Install the driver's release for driver API {base.DRIVER_API}"
        )
    return None


def _instances(name: str, conf: cfg.ConfigOpts) -> list[object]:
    """The drivers that are installed under a name: one, or none.

    Each name is loaded by itself: stevedore loads none of several if one fails an assertion.
    """

    def failed(_manager: object, _entry_point: object, exc: BaseException) -> None:
        raise exc

    manager: stevedore.NamedExtensionManager[object] = stevedore.NamedExtensionManager(
        NAMESPACE,
        [name],
        invoke_on_load=True,
        invoke_args=(conf,),
        on_load_failure_callback=failed,
        on_missing_entrypoints_callback=lambda _missing: None,  # the caller reports it
    )
    return [extension.obj for extension in manager]
