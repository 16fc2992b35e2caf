# SPDX-License-Identifier: Apache-2.0
"""Why a function stays with the host: the host's use of it, the operator's list, or its parts."""

from __future__ import annotations

from collections.abc import Sequence, Set

from cyborg.drivers import base
from cyborg.drivers.pci import device_spec, facts
from cyborg.drivers.pci.snapshot import (
    BOOTED_WITH,
    FAR_DOMAIN,
    Function,
    Snapshot,
    reason_to_keep,
    split,
)

_FREE_ITS_PARTS = "remove its parts, of virtual functions with 0 in sriov_numvfs, or list those"

_Specs = Sequence[device_spec.Spec]


def by_host(
    function: Function, functions: Snapshot, spec: device_spec.Spec | None, option: str
) -> base.Refusal | None:
    """The reason that keeps it whoever wants it, and what lifts that; None if nothing does.

    ``spec`` is the object of the operator's list that matches it.
    """
    is_listed = spec is not None and not spec.exclude
    far = spec is not None and spec.address.domain == split(function.address)["domain"]
    reason = reason_to_keep(function, functions, listed=is_listed, far=far and is_listed)
    if reason is None:
        return None
    lifts = {
        BOOTED_WITH: f"{option} if it is bound to vfio-pci: the host has no screen then",
        FAR_DOMAIN: f"{option} with the domain in full, for guests other than Nova's",
    }
    return base.Refusal(reason=reason, remedy=lifts.get(reason, ""))


def by_list(
    function: Function, functions: Snapshot, specs: _Specs, option: str
) -> base.Refusal | None:
    """The reason why the operator's list forbids to give a card out whole, or None."""
    for vf in function.vfs if specs else ():
        spec = device_spec.first_match(specs, functions[vf], functions)
        if spec is not None and spec.exclude:
            reason = f"its virtual function {vf} stays with the host"
            return base.Refusal(reason=reason, remedy=option)
    return None


def by_parts(function: Function, functions: Snapshot, foreign: Set[str]) -> base.Refusal | None:
    """The users of its parts, from whom a guest that gets it whole would take them, or None."""
    reason = _why_not_whole(function, functions, foreign)
    return base.Refusal(reason=reason, remedy=_FREE_ITS_PARTS) if reason else None


def _why_not_whole(function: Function, functions: Snapshot, foreign: Set[str]) -> str | None:
    divided = facts.division(function, functions)
    if divided is not None:
        return f"it is divided: {divided}"
    for vf in function.vfs:
        if vf in foreign:
            return f"its virtual function {vf} is another driver's"
        if functions[vf].has_guest_driver:
            return f"its virtual function {vf} is kept for a guest"
        reason = reason_to_keep(functions[vf], functions, listed=True, far=True)
        reason = reason or facts.division(functions[vf], functions, of_card=True)
        if reason is not None:
            return f"its virtual function {vf} is in use: {reason}"
    return "its virtual functions are enabled" if function.vfs else None
