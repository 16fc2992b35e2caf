# SPDX-License-Identifier: Apache-2.0
"""Tables of what the API lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horizon import tables

from cyborg.common import readable
from cyborg_dashboard.api import LISTS, Row

#: The most characters of a value that a table shows.
_LONGEST = 200


def words(name: str) -> str:
    """The name of a field, as a heading."""
    return name.replace("_", " ").capitalize()


def text(value: Any) -> str | None:
    """A value of the API as people read it; None for nothing, which is shown as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, dict)):
        return readable.nested(value).replace("\n", "; ") or None
    if isinstance(value, str):
        return (readable.time if readable.is_time(value) else readable.printable)(value)
    return None if value is None else str(value)


def column(name: str, **options: Any) -> tables.Column:
    """The column of a field."""
    options.setdefault("verbose_name", words(name))
    return tables.Column(name, filters=[text], truncate=_LONGEST, **options)


class Table(tables.DataTable):
    """A table of rows of the API, with the columns that its microversion has."""

    def get_object_id(self, row: Row) -> str:
        """What names the row in the API."""
        return str(row["uuid"])

    def get_object_display(self, row: Row) -> str:
        """What people call it."""
        return readable.printable(row.get("name") or self.get_object_id(row))

    @property
    def data(self) -> list[Row]:
        """The rows."""
        return self._data

    @data.setter
    def data(self, rows: list[Row]) -> None:
        self._data = rows
        for name, shown in [*self.columns.items()] if rows else ():
            is_field = not (shown.auto or callable(shown.transform))
            if is_field and not any(name in row for row in rows):
                del self.columns[name]


def filters(collection: str, *names: str) -> tuple[tuple[str, str, bool], ...]:
    """The choices of a filter by arguments of a list."""
    known = LISTS[collection]["arguments"]
    return tuple(
        (name, f"{words(name)}{_choices(known[name].get('choices', ()))} =", True) for name in names
    )


def _choices(choices: Sequence[str]) -> str:
    return f" ({', '.join(choices)})" if choices else ""
