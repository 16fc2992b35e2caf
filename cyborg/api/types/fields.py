# SPDX-License-Identifier: Apache-2.0
"""The types and fields that several resources have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cyborg.api import arguments, validation, versions
from cyborg.api.types.base import Changed, Field, Narrowed, Object, Value

#: The arguments of a query by their names.
Query = Mapping[str, Field]

ANY = Value(object)
UUID = Value(str, type="string", format="uuid")
UUID_OR_NULL = Value(str, type=["string", "null"], format="uuid")
TEXT = Value(str, type="string", maxLength=arguments.TEXT_MAX)
#: A text that is not empty.
WORDS = Value(str, type="string", minLength=1, maxLength=arguments.TEXT_MAX)
TEXT_OR_NULL = Value(str, type=["string", "null"])
DESCRIPTION_MAX = 65535
TEXT_OR_NUMBER = Value(str, type=["string", "integer"])
NUMBER = Value(float, type="number")
COUNT = Value(int, type="integer", minimum=0)
COUNT_OR_NULL = Value(int, type=["integer", "null"], minimum=0)
ID = Value(int, type="integer", minimum=0, maximum=arguments.ID_MAX)
ID_OR_NULL = Value(int, type=["integer", "null"])
TIME = Value(str, type="string", format="date-time")
TIME_OR_NULL = Value(str, type=["string", "null"], format="date-time")


def text(*others: str, **keywords: Any) -> Changed:
    """A text, for which up to 2.3 a number may be sent, or one of some other types."""
    return Changed(
        {
            versions.MIN: Value(str, type=["string", "integer", *others], **keywords),
            versions.REGULAR: Value(str, type=["string", *others], **keywords),
        }
    )


def one_of(values: Iterable[str | None]) -> Value:
    """One of some texts."""
    return Value(str, enum=list(values))


class Link(Object):
    """A link to a resource, or to the next page of a list."""

    href = Field(str, "The URL.")
    rel = Field(one_of(["self", "bookmark", "next"]), "The thing that the URL leads to.")


def list_of(kind: type[Object], key: str) -> type[Object]:
    """A whole list of a resource."""
    return type(f"{kind.__name__}List", (Object,), {key: Field([kind], "The items.")})


def page_of(kind: type[Object], key: str) -> Changed:
    """A list of a resource: from 2.4 a page, with a link to the next page if there is one."""
    links = Field([Link], "A link to the next page; absent on the last page.", optional=True)
    fields = {key: Field([kind], "The items."), f"{key}_links": links}
    page = type(f"{kind.__name__}Page", (Object,), fields)
    return Changed({versions.MIN: list_of(kind, key), versions.REGULAR: page})


#: Several names in one query argument.
NAMES = Narrowed([TEXT], **{validation.SEPARATOR: ","})
LIMIT = Value(
    int,
    type="integer",
    minimum=1,
    refusal="limit must be a whole number from 1, not '{value}'.",
)


def paging(sort_keys: Iterable[str], /, **filters: Field) -> Query:
    """The query arguments of a list, which from 2.4 can be sorted by any of ``sort_keys``."""
    sort_key = Value(
        str,
        enum=list(sort_keys),
        refusal='The sort_key value "{value}" is an invalid field for sorting; use one of '
        "{wanted}.",
    )
    since = versions.REGULAR
    return {
        **filters,
        "limit": Field(LIMIT, "The most items that the answer may have.", since=since),
        "marker": Field(UUID, "The UUID of the item before the first one.", since=since),
        "sort_key": Field(sort_key, "The field by which the list is sorted.", since=since),
        "sort_dir": Field(one_of(["asc", "desc"]), "The direction of the order.", since=since),
    }


_FILTER = Value(
    str,
    enum=[
        *("name", "parent_uuid", "root_uuid", "board", "availability", "interface_type"),
        *("instance_uuid", "limit", "marker", "sort_key", "sort_dir"),
    ],
    refusal="Invalid input for field/attribute field. Value: '{value}'. Value should be one of: "
    "{wanted}",
)
#: Query arguments that sort, cut and narrow a list of hardware up to 2.3.
FILTERS: Query = {
    "filters.field": Field([_FILTER], "The field of each filter.", until=versions.REGULAR),
    "filters.value": Field([TEXT], "The value of each filter.", until=versions.REGULAR),
}
