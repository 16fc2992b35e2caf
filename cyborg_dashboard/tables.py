# SPDX-License-Identifier: Apache-2.0
"""Tables of what the API lists."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from django import http, urls
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


def table(
    name: str, title: str, *fields: str, key: Sequence[str] = ("uuid",),
    links: Mapping[str, Any] | None = None, headings: Mapping[str, str] | None = None,
    computed: Mapping[str, Callable[[Row], Any]] | None = None, **options: Any,
) -> type[tables.DataTable]:
    """A kind of table: the fields of rows that it shows, and those that name a row in the API.

    ``links`` and ``headings`` are of fields; ``computed`` are columns after those of fields.
    """
    meta = {
        "name": name,
        "verbose_name": title,
        "hidden_title": False,
        "pagination_param": f"{name}_after",
        "prev_pagination_param": f"{name}_before",
        **options,
    }
    columns = {
        field: tables.Column(
            field, verbose_name=(headings or {}).get(field, words(field)),
            link=(links or {}).get(field), filters=[text], truncate=_LONGEST,
        )
        for field in fields
    }
    for field, compute in (computed or {}).items():
        columns[field] = tables.Column(compute, verbose_name=words(field))
    return type(name, (_Table,), {**columns, "key": key, "Meta": type("Meta", (), meta)})


class _Table(tables.DataTable):
    """A table of rows of the API, with the columns that its microversion has."""

    key: ClassVar[Sequence[str]]

    def get_object_id(self, row: Row) -> str:
        """What names the row in the API."""
        return " ".join(str(row[name]) for name in self.key)

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


def link(
    slug: str, label: str, url: str, rule: str, fits: Callable[[Row], bool] = bool, *,
    in_dialog: bool = True,
) -> type[tables.LinkAction]:
    """An action of a table, or of the rows that fit: a link to a page."""

    class Link(tables.LinkAction):
        name = slug
        verbose_name = label
        classes = ("ajax-modal",) if in_dialog else ()
        policy_rules = (("accelerator", rule),)

        def get_link_url(self, datum: Row | None = None) -> str:
            return urls.reverse(url, args=() if datum is None else (datum["uuid"],))

        def allowed(self, _request: http.HttpRequest, datum: Row | None) -> bool:
            return datum is None or fits(datum)

    return Link


def host_url(row: Row) -> str | None:
    """The page of the host of a row; None for a name that fits no address."""
    with contextlib.suppress(urls.NoReverseMatch):
        return str(urls.reverse("horizon:admin:accelerator_devices:host", args=(row["hostname"],)))
    return None


def filters(collection: str, *names: str) -> tuple[tuple[str, str, bool], ...]:
    """The choices of a filter by arguments of a list."""
    known = LISTS[collection]["arguments"]
    return tuple(
        (name, f"{words(name)}{_choices(known[name].get('choices', ()))} =", True) for name in names
    )


def _choices(choices: Sequence[str]) -> str:
    return f" ({', '.join(choices)})" if choices else ""
