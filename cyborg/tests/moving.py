# SPDX-License-Identifier: Apache-2.0
"""Cards with serials that firmware gives other addresses, and what the database has of them."""

from __future__ import annotations

import json
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.drivers import base

PRODUCT = "740f"


def place(bus: str) -> dict[str, str]:
    return {"domain": "0000", "bus": bus, "device": "00", "function": "0"}


def card(
    bus: str, serial: str | None, product: str = PRODUCT, board: str = "0c34", **changes: object
) -> base.Device:
    """A whole GPU at that bus."""
    fields: dict[str, object] = {
        "name": f"host-1_0000:{bus}:00.0",
        "resource_class": "PGPU",
        "num_accelerators": 1,
        "attach_handles": (base.AttachHandle(attach_type="PCI", attach_info=place(bus)),),
        "attributes": {"pci_address": f"0000:{bus}:00.0", **({"serial": serial} if serial else {})},
    }
    kind = str(changes.pop("type", "GPU"))
    facts = {"product_id": product, "subsystem_vendor_id": "1002", "subsystem_id": board}
    return base.Device(
        type=kind,
        vendor="1002",
        model=product,
        std_board_info=json.dumps(facts),
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=place(bus)),
        deployables=(base.Deployable(**(fields | changes)),),  # type: ignore[arg-type]
    )


class Row(NamedTuple):
    """What is known of a card."""

    name: str
    path: str
    info: dict[str, str]
    provider: str
    missing: bool
    status: str


def rows() -> dict[str | None, Row]:
    """The cards by their serials."""
    device, part = models.Device, models.Deployable
    query = sa.select(device).options(
        orm.joinedload(device.control_path),
        orm.selectinload(device.deployables).selectinload(part.attach_handles),
    )
    with db.reader() as session:
        return {row.identity: _row(row) for row in session.scalars(query)}


def _row(row: models.Device) -> Row:
    (part,) = row.deployables
    (handle,) = part.attach_handles
    return Row(
        name=part.name,
        path=base.place(json.loads(row.control_path.cpid_info)),
        info=json.loads(handle.attach_info),
        provider=part.rp_uuid,
        missing=row.missing,
        status=row.status,
    )


def hold(serial: str | None, **changes: object) -> str:
    """Let an ARQ have the card; the uuid of its instance."""
    provider = rows()[serial].provider
    with db.writer() as session:
        query = sa.select(models.AttachHandle).join(models.Deployable)
        handle = session.scalars(query.where(models.Deployable.rp_uuid == provider)).one()
        arq = models.Arq(
            project_id="p",
            state=models.BOUND,
            device_profile_name="dp",
            group={},
            hostname="host-1.example",
            consumer_uuid=models.new_uuid(),
            device_rp_uuid=provider,
            attach_handle_id=handle.id,
            **changes,
        )
        session.add(arq)
    return str(arq.consumer_uuid)
