# SPDX-License-Identifier: Apache-2.0
"""Hosts for tests: reports as an agent would send them, without an agent."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, liveness, metrics, rpc
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import report as inventory_report

DRIVER = "fake_driver"
#: The name of host-1's root provider.
ROOT = "host-1.example"
_counter = itertools.count(1)


def handle(number: int) -> base.AttachHandle:
    """The attach handle of that number."""
    info = {"bus": "0c", "device": f"{number:02x}", "domain": "0000", "function": "0"}
    return base.AttachHandle(attach_type="TEST_PCI", attach_info=info)


def deployable(name: str, handles: Sequence[int] = range(4), **changes: object) -> base.Deployable:
    """A deployable with the handles of those numbers."""
    fields: dict[str, object] = {
        "resource_class": "FPGA",
        "num_accelerators": len(handles),
        "attach_handles": tuple(handle(number) for number in handles),
        "traits": ("CUSTOM_FAKE_DEVICE",),
    }
    return base.Deployable(name=name, **(fields | changes))  # type: ignore[arg-type]


def device(address: str, *deployables: base.Deployable, **changes: object) -> base.Device:
    """A device at that control path."""
    fields: dict[str, object] = {
        "type": "FPGA",
        "vendor": "0xABCD",
        "model": "miss model info",
        "control_path": base.ControlPath(cpid_type="PCI", cpid_info={"address": address}),
    }
    return base.Device(
        deployables=deployables,
        **(fields | changes),  # type: ignore[arg-type]
    )


def card(
    letter: str = "a",
    handles: Sequence[int] = range(4),
    *,
    unhealthy: str | None = None,
    **changes: object,
) -> base.Device:
    """A device of host-1 with one deployable, ``host-1_`` and the letter."""
    return device(
        letter, deployable(f"host-1_{letter}", handles, **changes), unhealthy=unhealthy
    )


def report(
    *devices: base.Device,
    host: str = "host-1",
    errors: Mapping[str, str] | None = None,
    by_driver: Mapping[str, Sequence[base.Device]] | None = None,
    order: tuple[int, int] | None = None,
    unread: Sequence[str] = (),
    not_offered: int | None = None,
    present: tuple[str, ...] = (),
    not_offered_reasons: Sequence[str] = (),
    readings: metrics.Readings | None = None,
) -> rpc.HostReport:
    """A report of the host, newer than every one made before unless ``order`` says otherwise."""
    started, counter = order or (1, next(_counter))
    of_drivers = by_driver if by_driver is not None else {DRIVER: devices}
    return rpc.HostReport(
        host=host,
        node=f"{host}.example",
        started=started,
        counter=counter,
        errors=errors or {},
        devices={driver: tuple(found) for driver, found in of_drivers.items()},
        unread=tuple(unread),
        not_offered=not_offered,
        present=present,
        not_offered_reasons=tuple(not_offered_reasons),
        readings=readings or {},
    )


def deployables() -> list[models.Deployable]:
    """All deployables with their devices and attributes, oldest first."""
    row = models.Deployable
    query = sa.select(row).order_by(row.id)
    query = query.options(orm.joinedload(row.device), orm.selectinload(row.attributes))
    with db.reader() as session:
        return list(session.scalars(query))


def apply(*devices: base.Device, **options: object) -> None:
    """Report the devices and have the report applied."""
    inventory_report.apply_report(report(*devices, **options))  # type: ignore[arg-type]


def errors_of(host_name: str) -> dict[str, str]:
    """What ``GET /v2/services`` shows as the errors of a host."""
    (found,) = liveness.list_services(binary=liveness.AGENT, host=host_name)
    return found.errors


def let_pass(seconds: int) -> None:
    """Let the refusals that are shown with hosts be so much older."""
    with db.writer() as session:
        db.update(session, models.Host, refused_ms=models.Host.refused_ms - seconds * 1000)
