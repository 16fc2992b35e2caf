# SPDX-License-Identifier: Apache-2.0
"""Cleaning of deployables by ``[cleaning]``: their blank images, and which must be clean again.

How a handle is cleaned is its driver's affair; that one is not given out unclean is the
conductor's, who knows nothing but what is noted here.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import replace

from oslo_config import cfg

from cyborg.agent import discovery
from cyborg.conf import cleaning
from cyborg.drivers import base, registry

_NONE = (
    "[cleaning] requires that it is overwritten after use, and blank_images has no image for {}"
)

_NOT_ERASED = "[cleaning] requires that it is erased after use, and nothing erases {}"


def noted(
    conf: cfg.ConfigOpts, findings: discovery.Findings, drivers: Mapping[str, base.Driver]
) -> discovery.Findings:
    """The findings with what ``[cleaning]`` says of each deployable.

    One that is to be overwritten after use has its blank image; its device is unhealthy if it must
    be, and has none. So is a disk that must be erased, and is not. One that must be cleaned waits
    for that though it is not reported meanwhile.
    """
    devices = {}
    for name, found in findings.devices.items():
        kind = type(drivers[name])
        names = registry.names_of(kind.__module__, kind.__qualname__) | {name}
        devices[name] = tuple(_noted(conf, names, device) for device in found)
    return replace(findings, devices=devices)


def _noted(conf: cfg.ConfigOpts, names: Collection[str], device: base.Device) -> base.Device:
    unhealthy, parts = device.unhealthy, []
    for part in device.deployables:
        policy = cleaning.policy(conf, part.resource_class, names)
        parts.append(part if policy == cleaning.OFF else _part(conf, names, part, policy))
        if policy == cleaning.REQUIRED and _takes_images(part) and parts[-1].blank_image is None:
            unhealthy = unhealthy or _NONE.format(part.name)
        if policy == cleaning.REQUIRED and device.type in base.DISKS and not part.clean_erases:
            unhealthy = unhealthy or _NOT_ERASED.format(part.name)
    if unhealthy == device.unhealthy and all(map(operator.is_, parts, device.deployables)):
        return device
    return replace(device, unhealthy=unhealthy, deployables=tuple(parts))


def _part(
    conf: cfg.ConfigOpts, names: Collection[str], part: base.Deployable, policy: str
) -> base.Deployable:
    image = None
    if _takes_images(part):
        image = cleaning.blank_image(conf, part.traits, part.resource_class, names)
    erases = part.clean_erases or (policy == cleaning.REQUIRED and part.cleans)
    if image is None and erases == part.clean_erases:
        return part
    return replace(part, blank_image=image, clean_erases=erases)


def _takes_images(part: base.Deployable) -> bool:
    return part.program_mode not in {None, base.LAYOUT}
