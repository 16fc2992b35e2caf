# SPDX-License-Identifier: Apache-2.0
"""Devices."""

from __future__ import annotations

from cyborg.api import versions
from cyborg.api.schemas import fields
from cyborg.inventory import admin, query

_IDENTITY = {
    "uuid": fields.UUID,
    "type": fields.TEXT,
    "vendor": fields.TEXT,
    "model": fields.TEXT,
    "std_board_info": fields.TEXT_OR_NULL,
    "vendor_board_info": fields.TEXT_OR_NULL,
    "hostname": fields.TEXT,
}
_STATUS = {"status": {"enum": [admin.ENABLED, admin.MAINTAINING]}}
_HISTORY = {
    "links": fields.LINKS,
    "created_at": fields.TIME,
    "updated_at": fields.TIME_OR_NULL,
}
_OLD = fields.shown("Device", **_IDENTITY, **_HISTORY)
_NEW = fields.shown("Device", **_IDENTITY, **_STATUS, **_HISTORY)

DEVICE = {versions.MIN: _OLD, versions.DEVICE_STATUS: _NEW}
DEVICES = {
    versions.MIN: fields.listed("devices", _OLD),
    versions.DEVICE_STATUS: fields.listed("devices", _NEW),
    versions.REGULAR: fields.paged("devices", _NEW),
}
QUERY = {
    versions.MIN: {
        "type": fields.TEXT,
        "vendor": fields.TEXT,
        "hostname": fields.TEXT,
        **fields.FILTERS,
    },
    versions.REGULAR: fields.paging(
        query.DEVICE_COLUMNS,
        type=fields.TEXT,
        vendor=fields.TEXT,
        hostname=fields.TEXT,
        model=fields.TEXT,
        status=fields.TEXT,
    ),
}
