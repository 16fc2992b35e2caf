# SPDX-License-Identifier: Apache-2.0
"""Lists in pages, which SQL filters, sorts and cuts.

A page begins after a marker row, not at an offset, so that rows added or removed between two
pages make no other row appear twice or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.common import errors

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which part of a list to return, and in what order; by default all of it, oldest first."""

    sort_key: str = "id"
    descending: bool = False
    limit: int | None = None
    #: The uuid of the row after which the page begins.
    marker: str | None = None


ALL = Page()


def columns(of: Any, *names: str, **others: Any) -> dict[str, Any]:
    """The columns of a model or a table by their names; ``others`` are called otherwise there."""
    return {name: others[name] if name in others else getattr(of, name) for name in names}


def fetch(
    session: orm.Session,
    visible: sa.Select[Any],
    columns: Mapping[str, Any],
    page: Page,
    wanted: Mapping[str, Any],
    *,
    filters: Mapping[str, Any] | None = None,
    where: Sequence[sa.ColumnElement[bool]] = (),
    options: Sequence[Any] = (),
) -> list[Any]:
    """The mapped rows of a page; see :func:`select`. ``options`` say how they are loaded."""
    query = select(session, visible, columns, page, wanted, filters=filters, where=where)
    return list(session.scalars(query.options(*options)))


def select(
    session: orm.Session,
    visible: sa.Select[Any],
    columns: Mapping[str, Any],
    page: Page,
    wanted: Mapping[str, Any],
    *,
    filters: Mapping[str, Any] | None = None,
    where: Sequence[sa.ColumnElement[bool]] = (),
) -> sa.Select[Any]:
    """The query for the rows of ``page`` among those of ``visible`` with the values ``wanted``.

    ``columns`` are those to sort by, ``id`` and ``uuid`` among them; ``wanted`` names columns of
    ``filters``, or of ``columns``. It takes one SELECT, and one more for a marker. That may be any
    visible row, even one that does not have the values, or does not meet ``where``, any more.

    :raises Invalid: the list cannot be sorted by that key, or the marker is not one of its rows
    """
    column, ids = columns.get(page.sort_key), columns["id"]
    if column is None:
        raise errors.Invalid(
            f'The sort_key value "{page.sort_key}" is an invalid field for sorting; use one of '
            f"{', '.join(columns)}."
        )
    equal = (
        (columns if filters is None else filters)[name] == value for name, value in wanted.items()
    )
    rows = visible.where(*equal, *where).order_by(*_order(column, ids, descending=page.descending))
    if page.marker is not None:
        marked = visible.with_only_columns(column, ids).where(columns["uuid"] == page.marker)
        found = session.execute(marked).one_or_none()
        if found is None:
            raise errors.Invalid(f"marker: the list has no item {page.marker}.")
        rows = rows.where(_after(column, ids, tuple(found), descending=page.descending))
    return rows.limit(page.limit)


def get(
    session: orm.Session,
    visible: sa.Select[Row],
    columns: Mapping[str, Any],
    kind: str,
    *,
    options: Sequence[Any] = (),
    **key: str,
) -> Row:
    """The one row of ``visible`` whose column has the value of ``key``, such as ``uuid=…``.

    :raises NotFound: there is no such row; the message calls it ``kind``
    """
    ((name, value),) = key.items()
    found = session.scalar(visible.where(columns[name] == value).options(*options))
    if found is None:
        raise errors.NotFound.of(kind, **key)
    return found


def _order(column: Any, ids: Any, *, descending: bool) -> list[Any]:
    # Servers sort NULL differently; here it comes first. The id orders rows with equal values.
    by = [column.is_not(None), column, ids] if _nullable(column) else [column, ids]
    return [part.desc() for part in by] if descending else by


def _after(
    column: Any, ids: Any, marked: tuple[Any, ...], *, descending: bool
) -> sa.ColumnElement[bool]:
    """The WHERE clause for the rows after the one with the ``marked`` value and id."""
    value, row_id = marked
    behind = ids < row_id if descending else ids > row_id
    if column is ids:
        return sa.and_(behind)
    if value is None:
        rest = sa.and_(column.is_(None), behind)
        return rest if descending else sa.or_(rest, column.is_not(None))
    beyond = column < value if descending else column > value
    rest = sa.or_(beyond, sa.and_(column == value, behind))
    return sa.or_(rest, column.is_(None)) if descending and _nullable(column) else rest


def _nullable(column: Any) -> bool:
    # A computed column has no such attribute, and is never null.
    return bool(getattr(column.expression, "nullable", False))
