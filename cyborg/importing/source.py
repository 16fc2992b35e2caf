# SPDX-License-Identifier: Apache-2.0
"""The database of the released upstream, read in pages and never written.

The tables are those of its releases 15 to 17, as they are found in a database that these made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.common import errors

#: Revision to release. Between the first and the last, only values of two enumerations and a
#: column that nothing here reads were added.
REVISIONS = {
    "6c77bd6afea5": "15 or 16",
    "9625668549b5": "17",
    "a35b4295a0e5": "17",
    "b47c8f2d1e3a": "17",
}

_METADATA = sa.MetaData()
#: How many profiles, devices or ARQs are read at once.
PAGE = 200

Row = sa.RowMapping


def _table(name: str, *columns: str, numbers: Sequence[str] = ()) -> sa.Table:
    return sa.Table(
        name,
        _METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("created_at", sa.DateTime),
        sa.Column("updated_at", sa.DateTime),
        sa.Column("uuid", sa.String(36)),
        *(sa.Column(column, sa.Text) for column in columns),
        *(sa.Column(column, sa.Integer) for column in numbers),
    )


_REVISION = sa.Table("alembic_version", _METADATA, sa.Column("version_num", sa.String(32)))
_PROFILES = _table("device_profiles", "name", "profile_json", "description")
_DEVICES = _table(
    "devices",
    *("type", "vendor", "model", "std_board_info", "vendor_board_info", "hostname", "status"),
)
_PATHS = _table("controlpath_ids", "cpid_type", "cpid_info", numbers=["device_id"])
_DEPLOYABLES = _table(
    "deployables",
    *("name", "rp_uuid", "driver_name", "bitstream_id"),
    numbers=["device_id", "parent_id", "num_accelerators"],
)
_ATTRIBUTES = _table("attributes", "key", "value", numbers=["deployable_id"])
_HANDLES = _table(
    "attach_handles", "attach_type", "attach_info", numbers=["deployable_id", "in_use"]
)
_ARQS = _table(
    "extended_accelerator_requests",
    *("project_id", "state", "hostname", "device_rp_uuid", "instance_uuid"),
    numbers=["device_profile_id", "device_profile_group_id", "attach_handle_id"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """A device with all that belongs to it."""

    device: Row
    paths: Sequence[Row]
    deployables: Sequence[Row]
    #: By the id of the deployable.
    attributes: dict[int, list[Row]]
    handles: dict[int, list[Row]]
    #: The ids of those handles that ARQs have.
    held: frozenset[int]


class Source:
    """One reading of the database; use :func:`connect`."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def check(self) -> str:
        """The release that made the schema.

        :raises Misconfigured: it is not one that can be read
        """
        found = None
        if sa.inspect(self._connection).has_table("alembic_version"):
            found = self._connection.scalar(sa.select(_REVISION.c.version_num))
        if found not in REVISIONS:
            raise errors.Misconfigured(
                f"The database to import is at revision {found or 'none'}; only those of releases "
                f"15 to 17 can be read ({', '.join(REVISIONS)}). Upgrade it with the cyborg-dbsync "
                "of such a release first, or see whether the URL is the right one."
            )
        return REVISIONS[found]

    def count(self) -> dict[str, int]:
        """The number of rows that :meth:`profiles`, :meth:`devices` and :meth:`arqs` give."""
        tables = {"device profiles": _PROFILES, "devices": _DEVICES, "ARQs": _ARQS}
        return {
            name: self._connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for name, table in tables.items()
        }

    def profiles(self) -> Iterator[Sequence[Row]]:
        """The device profiles, a page at a time."""
        return self._pages(sa.select(_PROFILES), _PROFILES.c.id)

    def devices(self) -> Iterator[list[DeviceRows]]:
        """The devices with all that belongs to them, a page at a time; seven SELECTs each."""
        for page in self._pages(sa.select(_DEVICES), _DEVICES.c.id):
            yield self._whole(page)

    def _whole(self, devices: Sequence[Row]) -> list[DeviceRows]:
        ids = [device["id"] for device in devices]
        paths = self._by(_PATHS, "device_id", ids)
        deployables = self._by(_DEPLOYABLES, "device_id", ids)
        parts = [part["id"] for each in deployables.values() for part in each]
        attributes = self._by(_ATTRIBUTES, "deployable_id", parts)
        handles = self._by(_HANDLES, "deployable_id", parts)
        given = [handle["id"] for each in handles.values() for handle in each]
        query = sa.select(_ARQS.c.attach_handle_id).where(_ARQS.c.attach_handle_id.in_(given))
        held = frozenset(self._connection.scalars(query))
        return [
            DeviceRows(
                device=device,
                paths=paths.get(device["id"], []),
                deployables=deployables.get(device["id"], []),
                attributes=attributes,
                handles=handles,
                held=held,
            )
            for device in devices
        ]

    def arqs(self) -> Iterator[Sequence[Row]]:
        """The ARQs, each with its profile and what it has, a page at a time."""
        resource_class = (
            sa.select(sa.func.min(_ATTRIBUTES.c.value))
            .where(
                _ATTRIBUTES.c.deployable_id == _DEPLOYABLES.c.id,
                _ATTRIBUTES.c.key == "rc",
            )
            .scalar_subquery()
        )
        query = (
            sa.select(
                _ARQS,
                _PROFILES.c.name.label("profile_name"),
                _PROFILES.c.profile_json,
                _HANDLES.c.uuid.label("handle_uuid"),
                _DEPLOYABLES.c.rp_uuid.label("handle_rp_uuid"),
                _DEPLOYABLES.c.name.label("deployable_name"),
                _DEVICES.c.uuid.label("device_uuid"),
                resource_class.label("handle_class"),
            )
            .outerjoin(_PROFILES, _PROFILES.c.id == _ARQS.c.device_profile_id)
            .outerjoin(_HANDLES, _HANDLES.c.id == _ARQS.c.attach_handle_id)
            .outerjoin(_DEPLOYABLES, _DEPLOYABLES.c.id == _HANDLES.c.deployable_id)
            .outerjoin(_DEVICES, _DEVICES.c.id == _DEPLOYABLES.c.device_id)
        )
        return self._pages(query, _ARQS.c.id)

    def handles_held_twice(self) -> list[tuple[str, str]]:
        """The handles that several ARQs have, each with the uuids of these."""
        twice = (
            sa.select(_ARQS.c.attach_handle_id)
            .where(_ARQS.c.attach_handle_id.is_not(None))
            .group_by(_ARQS.c.attach_handle_id)
            .having(sa.func.count() > 1)
        )
        query = (
            sa.select(_HANDLES.c.uuid, _ARQS.c.uuid)
            .join(_HANDLES, _HANDLES.c.id == _ARQS.c.attach_handle_id)
            .where(_ARQS.c.attach_handle_id.in_(twice))
            .order_by(_HANDLES.c.id, _ARQS.c.id)
        )
        found: dict[str, list[str]] = {}
        for handle, arq in self._connection.execute(query):
            found.setdefault(handle, []).append(arq)
        return [(handle, ", ".join(arqs)) for handle, arqs in found.items()]

    def _by(self, table: sa.Table, column: str, ids: Sequence[int]) -> dict[int, list[Row]]:
        query = sa.select(table).where(table.c[column].in_(ids)).order_by(table.c.id)
        found: dict[int, list[Row]] = {}
        for row in self._connection.execute(query).mappings():
            found.setdefault(row[column], []).append(row)
        return found

    def _pages(
        self, query: sa.Select[Any], id_: sa.ColumnElement[int]
    ) -> Iterator[Sequence[Row]]:
        last = 0
        while True:
            page = query.where(id_ > last).order_by(id_).limit(PAGE)
            rows = self._connection.execute(page).mappings().all()
            if not rows:
                return
            yield rows
            last = rows[-1]["id"]


@contextlib.contextmanager
def connect(url: str) -> Iterator[Source]:
    """The database of that URL, in one transaction that is rolled back.

    :raises Misconfigured: the URL cannot be used, or the database does not answer. No message has
        the URL, which has a password.
    """
    try:
        engine = sa.create_engine(url)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as exc:
        raise errors.Misconfigured(
            "--from names no database that can be read; write it like "
            "mysql+pymysql://user:password@host/cyborg."
        ) from exc
    try:
        with engine.connect() as connection:
            yield Source(connection)
    except sa.exc.DBAPIError as exc:
        raise errors.Misconfigured(
            f"The database that --from names cannot be read ({type(exc.orig).__name__})."
        ) from exc
    finally:
        engine.dispose()
