# SPDX-License-Identifier: Apache-2.0
"""``[cleaning]``: what happens to a device between two guests."""

from __future__ import annotations

from collections.abc import Collection

from oslo_config import cfg, types

OFF, ON, REQUIRED = "off", "on", "required"
_POLICY = types.String(choices=[OFF, ON, REQUIRED])

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "default",
        default=OFF,
        choices=[
            (OFF, "Cyborg does not reset PCI functions; vfio does when a guest ends"),
            (ON, "reset each PCI function after use, if the kernel has a way"),
            (REQUIRED, "the same, and do not offer a function for which the kernel has no way"),
        ],
        help="Whether PCI functions are reset before somebody else gets them. NVMe controllers, "
        "mediated devices and virtual GPUs are erased by their own drivers in any case.",
    ),
    cfg.Opt(
        "classes",
        type=types.Dict(value_type=_POLICY),
        default={},
        help="The same for single resource classes, for example PGPU:required,CUSTOM_NIC:on.",
    ),
    cfg.Opt(
        "drivers",
        type=types.Dict(value_type=_POLICY),
        default={},
        help="The same for single drivers, by their names in [agent] enabled_drivers, for example "
        "intel_qat_driver:required. What classes says of a resource class goes first.",
    ),
]


def policy(conf: cfg.ConfigOpts, resource_class: str, drivers: Collection[str]) -> str:
    """What is wanted for a resource class of a driver that has these names: one of the three."""
    options = conf.cleaning
    if resource_class in options.classes:
        return str(options.classes[resource_class])
    named = [options.drivers[name] for name in sorted(drivers) if name in options.drivers]
    return str(named[0] if named else options.default)
