# SPDX-License-Identifier: Apache-2.0
"""Bounds of what a host may say of itself in a report.

A host that is broken into can send any report. What is checked here keeps it from reaching beyond
its own devices: another host's node, names that are not its own, resource classes and traits that
are not Cyborg's, times that would make its later reports look old, and reports without bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, liveness, rpc
from cyborg.common import errors
from cyborg.db import locks, models
from cyborg.drivers import base
from cyborg.inventory import diff

#: Milliseconds that a time in a report may be ahead of the database's clock.
_MAX_AHEAD = 60_000

#: Of all these no host has nearly as many: drivers; traits with resource classes, also those that
#: it had and that are not swept yet; and deployables, handles and attributes a device that it may
#: have. And characters that are kept of a sentence, and that an attribute may have.
_DRIVERS_MAX = 64
_NAMES_MAX = 256
_PARTS_MAX = 16
_SENTENCE_MAX = 1000
_TEXT_MAX = 8192

#: Under these names conductors say something of a host.
_NO_DRIVERS = {liveness.CONDUCTOR, liveness.REFUSALS}

_RESOURCE_CLASS = re.compile(r"FPGA|PGPU|VGPU|CUSTOM_[A-Z0-9_]+")
_TRAIT = re.compile(r"(CUSTOM|HW)_[A-Z0-9_]+|OWNER_CYBORG")


class ReportRefused(errors.Invalid):
    """A report is refused as a whole. ``owner`` is the host whose node it names."""

    def __init__(self, text: str, owner: str | None = None) -> None:
        super().__init__(text)
        self.owner = owner


def is_timely(started: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """The time at which an agent says that it started is not in the future."""
    return started <= db.now_ms() + _MAX_AHEAD


def check_size(data: Mapping[str, Any], max_bytes: int) -> None:
    """Raise ReportRefused if the data of a report is too large."""
    try:
        size = len(base.canonical_json(data))
    except RecursionError as exc:
        raise ReportRefused("it is nested too deeply.") from exc
    if size > max_bytes:
        raise ReportRefused(
            f"its {size} bytes are more than a report may have; raise [conductor] "
            f"max_report_bytes, which is {max_bytes}, if the host really has so much."
        )


def check_report(
    report: rpc.HostReport, max_devices: int, made: frozenset[str] = frozenset()
) -> rpc.HostReport:
    """The report without the devices that no host may report, each with an error of its driver.

    What is known of such a device stays as it is. ``made`` are traits and resource classes that the
    host had before, and that Placement still has.

    :raises ReportRefused: a name is none, or there is too much of something
    """
    for field, name in (("host", report.host), ("node", report.node)):
        if not rpc.is_host_name(name):
            raise ReportRefused(f"{field}: {name!r:.300} is not a valid host name.")
    _check_amounts(report, max_devices)
    said = {driver: text for driver, text in report.errors.items() if driver not in _NO_DRIVERS}
    unknown = set(report.unknown)
    devices: dict[str, tuple[base.Device, ...]] = {}
    names = set(made)
    for driver, found in report.devices.items():
        devices[driver] = ()
        for device in found:
            its = {name for dep in device.deployables for name in (dep.resource_class, *dep.traits)}
            wrong = next(_faults(report.host, device), None) or _crowding(names, its)
            if wrong is None:
                names |= its
                devices[driver] += (replace(device, unhealthy=_cut(device.unhealthy)),)
            else:
                unknown.add(diff.path_key(device.control_path))
                said[driver] = f"{said[driver]}; {wrong}" if driver in said else wrong
    said = {driver: _cut(text) or "" for driver, text in said.items()}
    return replace(report, devices=devices, errors=said, unknown=frozenset(unknown))


def _cut(sentence: str | None) -> str | None:
    """The part of a driver's sentence that is kept; it may be of any length."""
    if sentence is None or len(sentence) <= _SENTENCE_MAX:
        return sentence
    return f"{sentence[:_SENTENCE_MAX]}… ({len(sentence)} characters, cut)"


def _crowding(names: set[str], its: set[str]) -> str | None:
    """The reason to leave out a device with these traits and classes beside the ``names``."""
    if its <= names or len(names | its) <= _NAMES_MAX:
        return None
    return (
        f"a device is left out: with {min(its - names)!r} the host has had more than {_NAMES_MAX} "
        "traits and resource classes; those that nothing names any more are removed within hours"
    )


def _check_amounts(report: rpc.HostReport, max_devices: int) -> None:
    drivers = report.errors.keys() | report.devices.keys()
    if len(drivers) > _DRIVERS_MAX:
        raise ReportRefused(
            f"devices: {len(drivers)} drivers are more than a host has, {_DRIVERS_MAX}."
        )
    count = sum(len(found) for found in report.devices.values())
    if count > max_devices:
        raise ReportRefused(
            f"devices: {count} are more than a host may report; raise [conductor] "
            f"max_report_devices, which is {max_devices}, if it really has so many."
        )
    parts = sum(
        1 + len(dep.attach_handles) + len(dep.attributes)
        for found in report.devices.values()
        for device in found
        for dep in device.deployables
    )
    if parts > max_devices * _PARTS_MAX:
        raise ReportRefused(
            f"devices: {parts} deployables, attach handles and attributes are more than "
            f"{max_devices * _PARTS_MAX}, which are {_PARTS_MAX} for each of [conductor] "
            "max_report_devices."
        )


def _faults(host: str, device: base.Device) -> Iterator[str]:
    """Reasons to leave the device out."""
    if len(f"{device.std_board_info}{device.vendor_board_info}") > 2 * _TEXT_MAX:
        yield f"device {device.control_path} is left out: its board info is too long"
    for deployable in device.deployables:
        whose = f"deployable {deployable.name!r} is left out"
        if not deployable.name.isprintable():
            yield f"{whose}: its name has characters that cannot be printed"
        if not deployable.name.startswith(f"{host}_"):
            yield f"{whose}: its name does not begin with {host}_"
        if not _RESOURCE_CLASS.fullmatch(deployable.resource_class):
            yield (
                f"{whose}: resource class {deployable.resource_class!r} is not FPGA, PGPU, VGPU "
                "or CUSTOM_…"
            )
        texts = map(str, deployable.attributes.values())
        if any(len(text) > _TEXT_MAX for text in texts):
            yield f"{whose}: an attribute has more than {_TEXT_MAX} characters"
        for trait in deployable.traits:
            if not _TRAIT.fullmatch(trait):
                yield f"{whose}: trait {trait!r} is not CUSTOM_…, HW_… or OWNER_CYBORG"


def check_host(
    session: orm.Session, host: models.Host, report: rpc.HostReport, now_ms: int
) -> None:
    """Raise ReportRefused if the node is not the host's, or the agent started in the future."""
    is_new = host.removed or not host.node or _is_from_elsewhere(host)
    if is_new or host.node != report.node:
        _check_node(session, host, report.node, is_new=is_new)
    if report.started > now_ms + _MAX_AHEAD:
        raise ReportRefused(
            "started: the agent started in the future by the database's clock; set the clock of "
            f"host {report.host}."
        )


def _is_from_elsewhere(host: models.Host) -> bool:
    """Only the import or Ironic says which node it has, since no agent has reported it."""
    is_imported = host.last_seen_ms == 0 and host.node == host.name
    return is_imported or host.managed_by == models.IRONIC


def _check_node(session: orm.Session, host: models.Host, node: str, *, is_new: bool) -> None:
    """Raise ReportRefused if the locked host may not have a node that it has not had so far.

    It may if no other host has it, and its name is that of the host, with or without a domain, as
    an agent takes it by itself. Another one an administrator must give it, see
    :mod:`cyborg.inventory.nodes`; without keys a new host may take it, too.
    """
    lock_nodes(session)
    owner = owner_of(session, node, host.id)
    # Whoever wants the node can cause these sentences, so they advise nothing that would give it.
    if owner is not None:
        raise ReportRefused(
            f"node: {node} belongs to host {owner}. If {host.name} is the same machine under "
            'another name, or has taken its place, see "A host that was renamed" in the '
            "administrator guide.",
            owner,
        )
    if node == host.name or node.startswith(f"{host.name}."):
        return
    if not is_new:
        raise ReportRefused(
            f"node: {host.name} has node {host.node}, and {node} only if an administrator says so, "
            'see "The node of a host" in the administrator guide.'
        )
    key = models.HostKey
    if session.scalar(sa.select(key.id).where(key.host_name == host.name).limit(1)) is not None:
        raise ReportRefused(
            f"node: {node} is no name of host {host.name}, which has it only if an administrator "
            'says so, see "The node of a host" in the administrator guide.'
        )


def lock_nodes(session: orm.Session) -> None:
    """Let nobody else give a node to a host until the caller's transaction ends."""
    locks.take(session, locks.NODES)


def owner_of(session: orm.Session, node: str, host_id: int | None) -> str | None:
    """The other host that has the node, until an administrator removes its record or moves it.

    What only Ironic knows is the agent's who comes.
    """
    other = models.Host
    theirs = (other.removed.is_(False), other.managed_by == models.AGENT)
    query = sa.select(other.name).where(other.node == node, *theirs)
    if host_id is not None:
        query = query.where(other.id != host_id)
    return session.scalar(query.order_by(other.id).limit(1))


def names_of_others(session: orm.Session, host_name: str, names: set[str]) -> dict[str, str]:
    """Those of the names that a deployable of the host must not have, each with the reason.

    A compute node has it, or it begins as those of another host, whose name is longer.
    """
    other = models.Host
    nodes = set(session.scalars(sa.select(other.node).where(other.node.in_(names))))
    longer = other.name.startswith(f"{host_name}_", autoescape=True)
    # A host without agent has no deployables.
    theirs = (longer, other.removed.is_(False), other.managed_by == models.AGENT)
    hosts = list(session.scalars(sa.select(other.name).where(*theirs)))
    # Also of those that have not reported yet.
    key = models.HostKey
    enrolled = key.host_name.startswith(f"{host_name}_", autoescape=True)
    hosts += session.scalars(sa.select(key.host_name).where(enrolled, key.revoked_ms.is_(None)))
    found = dict.fromkeys(nodes, "a compute node has that name")
    for name in names - nodes:
        owner = next((each for each in hosts if name.startswith(f"{each}_")), None)
        if owner is not None:
            found[name] = f"names like that are for host {owner}"
    return found
