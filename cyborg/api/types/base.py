# SPDX-License-Identifier: Apache-2.0
"""WSME types that know their JSON Schema (2020-12) at each microversion.

Requests are checked against these schemas, and the OpenAPI document shows them. The answers
themselves are plain dictionaries, since those are faster to make than WSME's objects.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from wsme import types as wsme_types

from cyborg.api import refusals, versions

Schema = dict[str, Any]
#: What differs between microversions: each value with the first that has it.
Versioned = Mapping[versions.Version, Any]

_NATIVE = {bool: "boolean", int: "integer", str: "string"}


class Field(wsme_types.wsattr):
    """One property of an object, or one argument of a query.

    A request must have the ``mandatory`` ones and cannot have the ``readonly`` ones; it may be of
    a narrower type, ``sent``. An answer has all but the ``optional`` ones.
    """

    def __init__(
        self,
        kind: Any,
        doc: str,
        *,
        sent: Any = None,
        since: versions.Version = versions.MIN,
        until: versions.Version | None = None,
        optional: bool = False,
        **options: Any,
    ) -> None:
        """``since`` is the microversion that brought it, ``until`` the first without it."""
        super().__init__(kind, **options)
        self.doc = doc
        self.optional = optional
        self._kinds = {False: kind, True: sent or kind}
        self._since = since
        self._until = until

    def is_in(self, version: versions.Version) -> bool:
        """True if ``version`` has it."""
        return self._since <= version and (self._until is None or version < self._until)

    def schema(self, version: versions.Version, *, sent: bool) -> Schema:
        """Its JSON Schema, with its line of documentation."""
        return {**schema_of(self._kinds[sent], version, sent=sent), "description": self.doc}


class Object(wsme_types.Base):
    """A JSON object: a subclass has its properties as fields, in the order of requests."""

    #: The name of requests in the OpenAPI document; that of answers is the name of the class.
    _sent_title: ClassVar[str | None] = None
    #: Further keywords of JSON Schema for requests, by the microversion that brought them.
    _rules: ClassVar[Versioned] = {versions.MIN: {}}
    #: The refusal of a request that does not have just one property, if it must.
    _exactly_one: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        # WSME would read the source for the order.
        own = (key for key, value in vars(cls).items() if isinstance(value, Field))
        cls._wsme_attr_order = [*dict.fromkeys([*own, *getattr(cls, "_wsme_attr_order", ())])]

    @classmethod
    @functools.cache
    def names(cls, version: versions.Version) -> tuple[str, ...]:
        """The names of the properties that the microversion has."""
        return tuple(each.name for each in wsme_types.list_attributes(cls) if each.is_in(version))

    @classmethod
    def absent(cls, version: versions.Version) -> list[str]:
        """The names of the properties that the microversion does not have."""
        return [each.name for each in wsme_types.list_attributes(cls) if not each.is_in(version)]

    @classmethod
    def schema(cls, version: versions.Version, *, sent: bool) -> Schema:
        """The JSON Schema of the object in requests, if ``sent``, or in answers."""
        known = [each for each in wsme_types.list_attributes(cls) if each.is_in(version)]
        fields = [field for field in known if not (sent and field.readonly)]
        needed = [f.name for f in fields if (f.mandatory if sent else not f.optional)]
        schema: Schema = {"title": (sent and cls._sent_title) or cls.__name__, "type": "object"}
        if cls._exactly_one is not None:
            counts = ("minProperties", "maxProperties")
            schema |= dict.fromkeys(counts, 1)
            schema[refusals.KEYWORD] = dict.fromkeys(counts, cls._exactly_one)
        if needed:
            schema["required"] = needed
        properties = {field.name: field.schema(version, sent=sent) for field in fields}
        schema |= {"additionalProperties": False, "properties": properties}
        return {**schema, **latest(cls._rules, version)} if sent else schema


class Value(wsme_types.UserType):
    """A value that keywords of JSON Schema describe."""

    def __init__(self, basetype: type, **keywords: Any) -> None:
        self.basetype = basetype
        self._keywords = keywords

    def schema(self, _version: versions.Version, *, sent: bool) -> Schema:
        """The JSON Schema."""
        return self._keywords


class Changed(wsme_types.UserType):
    """A type that differs between microversions."""

    def __init__(self, kinds: Versioned) -> None:
        self._kinds = kinds

    def schema(self, version: versions.Version, *, sent: bool) -> Schema:
        """The JSON Schema of the type at that microversion."""
        return schema_of(latest(self._kinds, version), version, sent=sent)


class Narrowed(wsme_types.UserType):
    """A type about which keywords of JSON Schema say more."""

    def __init__(self, kind: Any, **keywords: Any) -> None:
        self._kind = kind
        self._keywords = keywords

    def schema(self, version: versions.Version, *, sent: bool) -> Schema:
        """The JSON Schema; keywords of a list come before those of its items."""
        whole = schema_of(self._kind, version, sent=sent)
        rest = {key: value for key, value in whole.items() if key not in self._keywords}
        return {"type": whole["type"], **self._keywords, **rest}


class OneOrMany(wsme_types.UserType):
    """An object, or an object that has a list of such objects under ``key``."""

    def __init__(self, one: type[Object], key: str, **keywords: Any) -> None:
        self._one, self._key = one, key
        self._list = Narrowed([one], **keywords)

    def schema(self, version: versions.Version, *, sent: bool) -> Schema:
        """The JSON Schema; which of both it is is seen by the key."""
        many = {
            "title": f"{'New' if sent else 'Made'}{self._one.__name__}s",
            "type": "object",
            "required": [self._key],
            "additionalProperties": False,
            "properties": {self._key: schema_of(self._list, version, sent=sent)},
        }
        one = schema_of(self._one, version, sent=sent)
        return {"if": {"required": [self._key]}, "then": many, "else": one}


def latest(value: Versioned, version: versions.Version) -> Any:
    """The value that the microversion has."""
    return value[max(began for began in value if began <= version)]


def schema_of(kind: Any, version: versions.Version, *, sent: bool = False) -> Schema:
    """The JSON Schema of a type at a microversion: in requests, if ``sent``, or in answers.

    A type is one of this module, ``bool``, ``int`` or ``str``; ``[type]`` is a list of it and
    ``{str: type}`` an object that has such values.
    """
    if isinstance(kind, list):
        return {"type": "array", "items": schema_of(kind[0], version, sent=sent)}
    if isinstance(kind, dict):
        values = schema_of(kind[str], version, sent=sent)
        return {"type": "object", "additionalProperties": values}
    if kind in _NATIVE:
        return {"type": _NATIVE[kind]}
    return _cached(kind, version, sent=sent)


@functools.cache
def _cached(kind: Any, version: versions.Version, *, sent: bool) -> Schema:
    schema: Schema = kind.schema(version, sent=sent)
    return schema
