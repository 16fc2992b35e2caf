# SPDX-License-Identifier: Apache-2.0
"""Devices."""

from __future__ import annotations

from cyborg.api import versions
from cyborg.api.types import fields
from cyborg.api.types.base import Changed, Field, Narrowed, Object
from cyborg.db import models
from cyborg.inventory import query

_REGULAR = versions.REGULAR
_TYPE = fields.one_of(query.DEVICE_TYPES)
_STATUS = fields.one_of([models.ENABLED, models.MAINTAINING])
_HEALTH = fields.one_of([query.HEALTHY, query.UNHEALTHY])
_MANAGED_BY = fields.one_of([models.AGENT, models.IRONIC])


class Device(Object):
    """An accelerator card or function of a host."""

    uuid = Field(fields.UUID, "The UUID.")
    type = Field(fields.TEXT, "The kind of device, for example ``FPGA`` or ``GPU``.")
    vendor = Field(fields.TEXT, "The device's vendor.")
    model = Field(fields.TEXT, "The device's model.")
    std_board_info = Field(fields.TEXT_OR_NULL, "Facts about the device, from its driver.")
    vendor_board_info = Field(fields.TEXT_OR_NULL, "Further facts about the device, or null.")
    hostname = Field(fields.TEXT, "The name of the host's root resource provider.")
    address = Field(
        fields.TEXT, "Where it is on its host: a PCI address, or a name.", since=_REGULAR
    )
    managed_by = Field(
        _MANAGED_BY,
        "The source of these facts: the host's agent, or Ironic if the host has no agent.",
        since=_REGULAR,
    )
    status = Field(_STATUS, "Whether it is in service.", since=versions.DEVICE_STATUS)
    disabled_reason = Field(
        fields.TEXT_OR_NULL, "Why it is not in service, or null.", since=_REGULAR
    )
    tainted = Field(bool, "Whether only profiles that tolerate it are given it.", since=_REGULAR)
    taint_reason = Field(fields.TEXT_OR_NULL, "Why it is tainted, or null.", since=_REGULAR)
    health = Field(_HEALTH, "Whether it works, as its driver says.", since=_REGULAR)
    health_reason = Field(fields.TEXT_OR_NULL, "Why it is unhealthy.", since=_REGULAR)
    missing = Field(bool, "Whether it is gone from its host.", since=_REGULAR)
    links = Field([fields.Link], "Links to the device itself.")
    created_at = Field(fields.TIME, "When it was first reported, in UTC.")
    updated_at = Field(fields.TIME_OR_NULL, "When it was last changed, in UTC, or null.")


class WholeDevice(Device):
    """A device with what lists leave out."""

    readings = Field(
        Narrowed({str: fields.NUMBER}, type=["object", "null"]),
        "The last readings of its sensors, by name, or null.",
        since=_REGULAR,
    )


QUERY = fields.paging(
    query.DEVICE_COLUMNS,
    type=Field(
        Changed({versions.MIN: fields.TEXT, versions.REGULAR: _TYPE}), "Only devices of this type."
    ),
    vendor=Field(fields.TEXT, "Only devices of this vendor."),
    hostname=Field(fields.TEXT, "Only devices of this host."),
    **fields.FILTERS,
    model=Field(fields.TEXT, "Only devices of this model.", since=_REGULAR),
    status=Field(_STATUS, "Only devices of this status.", since=_REGULAR),
    tainted=Field(bool, "Only devices that are tainted, or are not.", since=_REGULAR),
    health=Field(_HEALTH, "Only devices of this health.", since=_REGULAR),
    missing=Field(bool, "Only devices that are missing, or not.", since=_REGULAR),
    managed_by=Field(
        _MANAGED_BY, "Only devices of hosts with an agent, or without.", since=_REGULAR
    ),
)
