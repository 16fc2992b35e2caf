# SPDX-License-Identifier: Apache-2.0
"""The accelerators of a host that no driver offers, each with the reason and what would change it.

Nothing that an operator may take for an accelerator is left out silently.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from cyborg.agent import discovery
from cyborg.drivers import base, pci, registry

_NO_IOMMU = (
    "This host has no IOMMU groups, so no guest can have a PCI function of it: switch the IOMMU on "
    "in the firmware, and on Intel boot with intel_iommu=on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnofferedFunction:
    """A PCI function; what is not known of it is empty."""

    address: str
    ids: str = ""
    class_code: str = ""
    product: str = ""
    driver: str = ""
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class _SeenHost:
    functions: pci.Snapshot
    findings: discovery.Findings
    enabled: Mapping[str, base.Driver]
    others: Mapping[str, base.Driver] | None


def find(
    functions: pci.Snapshot,
    findings: discovery.Findings,
    enabled: Mapping[str, base.Driver],
    others: Mapping[str, base.Driver] | None = None,
) -> list[UnofferedFunction]:
    """The accelerators that a pass of the ``enabled`` drivers did not offer.

    ``others`` are the drivers that are installed and not enabled; None asks none of them.
    """
    host = _SeenHost(functions, findings, enabled, others)
    found = [
        UnofferedFunction(address=address, reason=fault)
        for address, fault in functions.faults.items()
    ]
    for function in _left_out(host):
        try:
            why = _why(function, host)
        except (OSError, ValueError, LookupError) as exc:
            why = base.Refusal(reason=f"it cannot be told why: {type(exc).__name__}: {exc}")
        found.append(
            UnofferedFunction(
                address=function.address,
                ids=f"{function.vendor}:{function.device}",
                class_code=function.class_code,
                product=functions.product(function) or "",
                driver=function.driver or "",
                reason=why.reason,
                remedy=why.remedy,
            )
        )
    return sorted(found, key=lambda each: each.address)


def lines(found: Sequence[UnofferedFunction], most: int | None = None) -> list[str]:
    """A line for the functions of one product that are not offered for one reason."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for each in found:
        reason = each.reason.replace(each.address, "it")
        key = (each.ids, each.product, reason, each.remedy)
        groups.setdefault(key, []).append(each.address)
    said = []
    for (ids, product, reason, remedy), addresses in groups.items():
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        name = " ".join(filter(None, [addresses[0] + more, ids, product]))
        said.append(f"{name}: {reason}" + (f" (see {remedy})" if remedy else ""))
    return said[:most]


def _left_out(host: _SeenHost) -> Iterator[pci.Function]:
    functions = host.functions
    offered, listed = _offered(functions, host.findings), _listed(functions, host.enabled)
    # The drivers that need those have an error.
    shown: Set[str] = frozenset()
    with contextlib.suppress(OSError):
        shown = pci.shown(functions)
    for function in functions.values():
        if function.address in offered:
            continue
        is_listed = function.address in listed
        # What is said of a card is not said again of each part, and not all parts can be used.
        if function.pf is not None and not (
            (function.pf in offered or (is_listed and function.pf not in listed))
            and _is_refused(function, host)
        ):
            continue
        if is_listed or pci.may_be_accelerator(function, shown):
            yield function


def _listed(functions: pci.Snapshot, enabled: Mapping[str, base.Driver]) -> Set[str]:
    """The functions that an operator's list names. Bridges are in many, and mean nothing."""
    found: set[str] = set()
    for driver in enabled.values():
        # A driver that fails has an error.
        with contextlib.suppress(Exception):
            found |= driver.named(functions) if isinstance(driver, base.Listing) else set()
    return {each for each in found if not functions[each].class_code.startswith(pci.BRIDGE)}


def remarks(findings: discovery.Findings, enabled: Mapping[str, base.Driver]) -> dict[str, str]:
    """The objects of the operator's lists that select nothing, and that there is no IOMMU."""
    said: dict[str, str] = {}
    functions = findings.functions
    if functions is None:
        return said
    for name, driver in enabled.items():
        with contextlib.suppress(Exception):
            if isinstance(driver, base.Listing):
                said[name] = "; ".join(driver.unmatched(functions))
    has_groups = any(each.iommu_group for each in functions.values())
    if not has_groups and functions.keys() & _offered(functions, findings):
        said[registry.NO_DRIVER] = _NO_IOMMU
    return {name: sentence for name, sentence in said.items() if sentence}


def joined(*said: Mapping[str, str]) -> dict[str, str]:
    """The sentences of all, by driver."""
    names = dict.fromkeys(name for each in said for name in each)
    sentences = {name: [each[name] for each in said if each.get(name)] for name in names}
    return {name: "; ".join(found) for name, found in sentences.items() if found}


def _is_refused(part: pci.Function, host: _SeenHost) -> bool:
    """True if a part of a card is kept from guests for a reason of its own."""
    try:
        return _drivers_why(part, host) is not None
    except (OSError, ValueError, LookupError):
        return True


def _offered(functions: pci.Snapshot, findings: discovery.Findings) -> set[str]:
    """The functions that are offered, with the cards of those that are parts."""
    found = set()
    for device in (device for found in findings.devices.values() for device in found):
        for info in _infos(device):
            with contextlib.suppress(KeyError):
                address = pci.join(info)
                function = functions.get(address)
                found |= {address, function.pf or address} if function is not None else {address}
    return found


def _infos(device: base.Device) -> Iterator[Mapping[str, str]]:
    for handle in device.handles:
        is_slice = handle.attach_type == base.NODES
        yield device.control_path.cpid_info if is_slice else handle.attach_info


def _drivers_why(function: pci.Function, host: _SeenHost) -> base.Refusal | None:
    """Why an enabled driver does not offer a function, as that says itself or by its error."""
    # Another driver may say that its own list lacks what this one has.
    exact = {
        name: _exactness(name, host.enabled, host).get(function.address, 0) for name in host.enabled
    }
    for name, driver in sorted(host.enabled.items(), key=lambda each: -exact[each[0]]):
        if isinstance(driver, base.Explaining):
            why = driver.why_not_offered(function, host.functions)
            if why is not None:
                return base.Refusal(reason=f"{name}: {why.reason}", remedy=why.remedy)
    for name, sentence in host.findings.errors.items():
        # An error that names no part may be of any other card.
        if function.address in sentence or (
            function.pf is None and function.address in _exactness(name, host.enabled, host)
        ):
            return base.Refusal(reason=f"{name}: {sentence}")
    return None


def _why(function: pci.Function, host: _SeenHost) -> base.Refusal:
    why = _drivers_why(function, host)
    if why is not None:
        return why
    kept = _kept(function, host.functions)
    if kept is not None:
        return base.Refusal(reason=kept)
    if host.others is None:
        return base.Refusal(
            reason="no enabled driver claims it", remedy="cyborg-agent discover on the host"
        )
    by_driver = {
        name: _exactness(name, host.others, host).get(function.address) for name in host.others
    }
    # The most exact first: that is the vendor's own.
    would = sorted(
        (each for each in by_driver if by_driver[each]), key=lambda each: -(by_driver[each] or 0)
    )
    if would:
        names = " or ".join(would)
        return base.Refusal(
            reason=f"no enabled driver claims it, and {names} would",
            remedy=f"[agent] enabled_drivers = {would[0]}",
        )
    return base.Refusal(
        reason="no driver claims it", remedy="[pci] device_spec, for the driver pci_driver"
    )


def _kept(function: pci.Function, functions: pci.Snapshot) -> str | None:
    try:
        return pci.reason_to_keep(function, functions)
    except OSError as exc:
        return f"it cannot be told whether the host uses it: {exc}"


def _exactness(name: str, drivers: Mapping[str, base.Driver], host: _SeenHost) -> Mapping[str, int]:
    driver = drivers.get(name)
    if driver is None or not isinstance(driver, base.Matching):
        return {}
    try:
        return driver.exactness(host.functions)
    except Exception:  # noqa: BLE001 - each driver is code of its own, and its error is shown
        return {}
