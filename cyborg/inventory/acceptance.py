# SPDX-License-Identifier: Apache-2.0
"""What a host may say of itself in a report.

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

from cyborg import db, errors, rpc
from cyborg.db import models
from cyborg.drivers import base

#: Milliseconds that a time in a report may be ahead of the database's clock.
_MAX_AHEAD = 60_000

#: More PCI functions than any host has.
_FUNCTIONS_MAX = 1_000_000

_RESOURCE_CLASS = re.compile(r"FPGA|PGPU|VGPU|CUSTOM_[A-Z0-9_]+")
_TRAIT = re.compile(r"(CUSTOM|HW)_[A-Z0-9_]+|OWNER_CYBORG")


class Refused(errors.Invalid):
    """A report is refused as a whole. ``owner`` is the host whose node it claims."""

    def __init__(self, text: str, owner: str | None = None) -> None:
        super().__init__(text)
        self.owner = owner


def is_timely(started: int) -> sa.ColumnElement[bool]:
    """Whether the time at which an agent says that it started is not in the future."""
    return sa.literal(started) <= db.now_ms() + _MAX_AHEAD


def check_size(data: Mapping[str, Any], max_bytes: int) -> None:
    """Check that the data of a report is not too large.

    :raises Refused: it is
    :raises TypeError, ValueError: it is no JSON
    """
    size = len(base.canonical_json(data))
    if size > max_bytes:
        raise Refused(
            f"its {size} bytes are more than a report may have; raise [conductor] "
            f"max_report_bytes, which is {max_bytes}, if the host really has so much."
        )


def check_report(report: rpc.HostReport, max_devices: int) -> rpc.HostReport:
    """The report without the devices that no host may report, each with an error of its driver.

    What is known of such a device stays as it is.

    :raises Refused: a name is none, or there are too many devices
    """
    for field, name in (("host", report.host), ("node", report.node)):
        if not rpc.is_host_name(name):
            raise Refused(f"{field}: {name!r} is no name of a host.")
    left_out: object = report.not_offered
    if left_out is not None and not (type(left_out) is int and 0 <= left_out <= _FUNCTIONS_MAX):
        raise Refused(f"not_offered: {left_out!r:.40} is no number of PCI functions.")
    count = sum(len(found) for found in report.devices.values())
    if count > max_devices:
        raise Refused(
            f"devices: {count} are more than a host may report; raise [conductor] "
            f"max_report_devices, which is {max_devices}, if it really has so many."
        )
    said, unknown = dict(report.errors), set(report.unknown)
    devices: dict[str, tuple[base.Device, ...]] = {}
    for driver, found in report.devices.items():
        kept = []
        for device in found:
            wrong = next(_faults(report.host, device), None)
            if wrong is None:
                kept.append(device)
            else:
                path = device.control_path
                unknown.add((path.cpid_type, base.canonical_json(dict(path.cpid_info))))
                said[driver] = "; ".join([*([said[driver]] if driver in said else []), wrong])
        devices[driver] = tuple(kept)
    return replace(report, devices=devices, errors=said, unknown=frozenset(unknown))


def _faults(host: str, device: base.Device) -> Iterator[str]:
    """Why a device is left out."""
    for deployable in device.deployables:
        whose = f"deployable {deployable.name!r} is left out"
        if not deployable.name.startswith(f"{host}_"):
            yield f"{whose}: its name does not begin with {host}_"
        if not _RESOURCE_CLASS.fullmatch(deployable.resource_class):
            yield (
                f"{whose}: resource class {deployable.resource_class!r} is not FPGA, PGPU, VGPU "
                "or CUSTOM_…"
            )
        for trait in deployable.traits:
            if not _TRAIT.fullmatch(trait):
                yield f"{whose}: trait {trait!r} is not CUSTOM_…, HW_… or OWNER_CYBORG"


def check_host(
    session: orm.Session, host: models.Host, report: rpc.HostReport, now_ms: int
) -> None:
    """Check that the node is the host's, and that the agent did not start in the future.

    A node belongs to the first host that has reported it, until an administrator removes the
    record of that host.

    :raises Refused: one of both is not so
    """
    other, owner = models.Host, None
    if host.last_seen_ms == 0 or host.node != report.node:
        owner = session.scalar(
            sa.select(other.name)
            .where(other.node == report.node, other.id != host.id, other.removed.is_(False))
            .order_by(other.id)
            .limit(1)
        )
    if owner is not None:
        raise Refused(
            f"node: {report.node} belongs to host {owner}, which was first to report it. If "
            f"{report.host} is the same machine under another name, run `cyborg-status "
            f"rename-host {owner} {report.host}`; if it has taken its place, remove the record of "
            f"{owner}.",
            owner,
        )
    if report.started > now_ms + _MAX_AHEAD:
        raise Refused(
            "started: the agent started in the future by the database's clock; set the clock of "
            f"host {report.host}."
        )


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
    found = dict.fromkeys(nodes, "a compute node has that name")
    for name in names - nodes:
        owner = next((each for each in hosts if name.startswith(f"{each}_")), None)
        if owner is not None:
            found[name] = f"names like that are for host {owner}"
    return found
