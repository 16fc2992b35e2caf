# SPDX-License-Identifier: Apache-2.0
"""What is written to FPGAs between two guests, as ``[cleaning]`` says: their blank images."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from oslo_config import cfg

from cyborg.agent import discovery
from cyborg.conf import cleaning
from cyborg.drivers import base, registry

_NONE = (
    "[cleaning] requires that it is overwritten after use, and blank_images has no image for {}"
)


def noted(
    conf: cfg.ConfigOpts, findings: discovery.Findings, drivers: Mapping[str, base.Driver]
) -> discovery.Findings:
    """The findings with the blank image of each deployable that is to be overwritten after use.

    A device with a deployable that must be, and has no such image, is unhealthy.
    """
    devices = {}
    for name, found in findings.devices.items():
        kind = type(drivers[name])
        names = registry.names_of(kind.__module__, kind.__qualname__) | {name}
        devices[name] = tuple(_noted(conf, names, device) for device in found)
    return replace(findings, devices=devices)


def _noted(conf: cfg.ConfigOpts, names: Collection[str], device: base.Device) -> base.Device:
    if not any(map(_takes_images, device.deployables)):
        return device
    unhealthy, parts = device.unhealthy, []
    for part in device.deployables:
        policy = cleaning.policy(conf, part.resource_class, names)
        if not _takes_images(part) or policy == cleaning.OFF:
            parts.append(part)
            continue
        image = cleaning.blank_image(conf, part.traits, part.resource_class, names)
        if image is None and policy == cleaning.REQUIRED:
            unhealthy = unhealthy or _NONE.format(part.name)
        parts.append(part if image is None else replace(part, blank_image=image))
    return replace(device, unhealthy=unhealthy, deployables=tuple(parts))


def _takes_images(part: base.Deployable) -> bool:
    return part.program_mode not in {None, base.LAYOUT}
