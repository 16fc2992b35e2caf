# SPDX-License-Identifier: Apache-2.0
"""Shares of a card: several containers use the same device nodes, and nothing isolates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from oslo_config import cfg

from cyborg.drivers import base
from cyborg.drivers.pci import device_spec
from cyborg.drivers.pci.snapshot import Function

_NUMBER, _MIXED = "shares", "mix_projects"
#: The keys of a ``device_spec`` for them, as :attr:`.PciDriver.own_keys` has these.
KEYS: Mapping[str, device_spec.Values] = MappingProxyType(
    {_NUMBER: range(2, 65), _MIXED: frozenset({"true", "false"})}
)


def are_wanted(own: Mapping[str, str]) -> bool:
    """True if the operator's values of these keys divide a card into shares."""
    return _NUMBER in own


def mix_projects(own: Mapping[str, str]) -> bool:
    """True if shares of a card may be of several projects at a time."""
    return own.get(_MIXED) == "true"


def why_not(
    own: Mapping[str, str], function: Function, conf: cfg.ConfigOpts
) -> base.Refusal | None:
    """Why there can be no shares of a function that is to have some, or None."""
    if not are_wanted(own):
        return None
    if conf.agent.cdi_dir is None:
        reason = "it is to have shares, and [agent] cdi_dir is not set"
        return base.Refusal(reason=reason, remedy="[agent] cdi_dir")
    if function.driver is None or function.has_guest_driver:
        reason = "it is to have shares, and no driver of the host has it"
        return base.Refusal(reason=reason, remedy="bind it to the driver of its vendor")
    return None


def of(deployable: base.Deployable, own: Mapping[str, str]) -> base.Deployable:
    """A whole card as its shares, if it is to have some."""
    if not are_wanted(own):
        return deployable
    (whole,) = deployable.attach_handles
    handles = tuple(
        base.AttachHandle(
            attach_type=base.NODES,
            attach_info={**whole.attach_info, base.SHARE_KEY: str(number)},
        )
        for number in range(int(own[_NUMBER]))
    )
    return replace(
        deployable,
        resource_class=base.SHARE_CLASS,
        num_accelerators=len(handles),
        attach_handles=handles,
        shared=base.OF_ALL_PROJECTS if mix_projects(own) else base.OF_ONE_PROJECT,
    )
