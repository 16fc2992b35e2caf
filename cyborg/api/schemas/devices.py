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
_HEALTH: dict[str, fields.Schema] = {
    "health": {"enum": [query.HEALTHY, query.UNHEALTHY]},
    "health_reason": fields.TEXT_OR_NULL,
    "missing": {"type": "boolean"},
}
_OLD = fields.shown("Device", **_IDENTITY, **_HISTORY)
_WITH_STATUS = fields.shown("Device", **_IDENTITY, **_STATUS, **_HISTORY)
_WITH_HEALTH = fields.shown("Device", **_IDENTITY, **_STATUS, **_HEALTH, **_HISTORY)

DEVICE = {
    versions.MIN: _OLD,
    versions.DEVICE_STATUS: _WITH_STATUS,
    versions.FACTS: _WITH_HEALTH,
}
DEVICES = {
    versions.MIN: fields.listed("devices", _OLD),
    versions.DEVICE_STATUS: fields.listed("devices", _WITH_STATUS),
    versions.REGULAR: fields.paged("devices", _WITH_STATUS),
    versions.FACTS: fields.paged("devices", _WITH_HEALTH),
}
_FILTERS = {
    "type": fields.TEXT,
    "vendor": fields.TEXT,
    "hostname": fields.TEXT,
    "model": fields.TEXT,
    "status": fields.TEXT,
}
QUERY = {
    versions.MIN: {
        "type": fields.TEXT,
        "vendor": fields.TEXT,
        "hostname": fields.TEXT,
        **fields.FILTERS,
    },
    versions.REGULAR: fields.paging(query.DEVICE_COLUMNS, **_FILTERS),
    versions.FACTS: fields.paging(
        query.DEVICE_COLUMNS,
        **_FILTERS,
        health=_HEALTH["health"],
        missing=_HEALTH["missing"],
    ),
}
