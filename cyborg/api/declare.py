# SPDX-License-Identifier: Apache-2.0
"""Each operation of the API declared once: rule, microversions, arguments, bodies, answers.

:func:`operation` makes a handler of a method that has only its work left to do: first the policy
is checked, and the request is validated against the types of the declaration, which are those of
:mod:`cyborg.api.types`. :mod:`cyborg.api.openapi` describes the same declarations.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import pecan
import webob

from cyborg.api import refusals, validation, versions
from cyborg.api.request import Request, place
from cyborg.api.types import fields
from cyborg.api.types.base import Schema, schema_of
from cyborg.common import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The segment of a path that names one object of a collection."""

    name: str = "uuid"
    type: Any = fields.UUID
    #: What errors call the object, if a malformed segment is answered like an unknown one.
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The JSON document of a request."""

    #: What messages call it.
    name: str
    type: Any
    #: What messages about it begin with.
    prefix: str = ""
    #: The key of an object in which some clients send the document.
    wrapper: str | None = None
    #: The microversion from which requests may have it, or not; before, what they have is ignored.
    #: None if they must have it.
    optional_since: versions.Version | None = None

    def is_in(self, version: versions.Version) -> bool:
        """True if requests at ``version`` can have it."""
        return self.optional_since is None or version >= self.optional_since


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpMethod:
    """One HTTP method on one path, and all that is declared of it."""

    summary: str
    #: The policy rule; None if everyone may read it.
    rule: str | None
    success: int = 200
    #: The microversion that brought it.
    since: versions.Version = versions.MIN
    member: Member | None = None
    query: fields.Query
    body: Body | None = None
    #: The type of the answer's body; None if it has none.
    answer: Any = None
    #: Codes of errors besides those that every operation can answer with.
    faults: Collection[int] = ()
    #: Whether it may be done twice, so that another service need not come back if the database is
    #: away for a moment.
    waits: bool = False


class Declared(Protocol):
    """A handler with its declaration."""

    operation: HttpMethod
    __qualname__: str

    def __call__(
        self, resource: Any, request: Request, response: pecan.Response, *segments: str
    ) -> Any:
        """Serve one request."""


class _Schemas(NamedTuple):
    """The schemas of an operation's arguments at one microversion."""

    #: Those of the query's arguments, by name, and of all of them.
    query: dict[str, Schema]
    whole_query: Schema
    member: Schema
    body: Schema


_SchemasAt = Callable[[versions.Version], _Schemas]

#: For how many microversions the schemas of an operation are kept: clients use one or two, and
#: nobody can have all of them kept by asking.
_VERSIONS_KEPT = 4
#: Seconds after which the database is tried again.
_PAUSE = 0.25


def operation(rule: str | None, **declared: Any) -> Callable[[Callable[..., Any]], Declared]:
    """Declare the method below to be an operation, with the fields of :class:`HttpMethod`.

    The method is called with the request and, if they are declared, the member, the query
    arguments and the body. The answer's body is the value that it returns.
    """

    def decorate(handler: Callable[..., Any]) -> Declared:
        known = HttpMethod(
            rule=rule,
            summary=(inspect.getdoc(handler) or "").partition("\n")[0],
            query=declared.pop("query", {}),
            **declared,
        )

        schemas_at = functools.lru_cache(_VERSIONS_KEPT)(functools.partial(_schemas, known))

        @functools.wraps(handler)
        def serve(self: Any, request: Request, response: pecan.Response, *segments: str) -> Any:
            def attempt() -> Any:
                return handler(self, request, *_arguments(known, schemas_at, request, segments))

            body = _patiently(request, attempt) if known.waits else attempt()
            if known.answer is None:
                return webob.Response(status=known.success)
            response.status = known.success
            return body

        served = cast(Declared, pecan.expose("json")(serve))
        served.operation = known
        return served

    return decorate


def _patiently(request: Request, attempt: Callable[[], Any]) -> Any:
    """The result of ``attempt``; while the database is away, a request of another service waits."""
    while True:
        try:
            return attempt()
        except errors.DatabaseUnreachable as exc:
            # What is read, or bound once more, ends alike.
            is_done_once = exc.in_doubt and request.method not in {"GET", "PATCH"}
            may_wait = request.caller.has_service_token and request.bind_wait > _PAUSE
            if is_done_once or not may_wait:
                raise
            with place(request.wait_places) as has_place:
                if not has_place:
                    raise
                time.sleep(_PAUSE)


def _schemas(known: HttpMethod, version: versions.Version) -> _Schemas:
    query = query_schemas(known.query, version)
    member, body = known.member, known.body
    return _Schemas(
        query=query,
        whole_query=validation.Prepared({"properties": query}),
        member=validation.Prepared(schema_of(member.type, version) if member else {}),
        body=validation.Prepared(schema_of(body.type, version, sent=True) if body else {}),
    )


def _arguments(
    known: HttpMethod, schemas_at: _SchemasAt, request: Request, segments: tuple[str, ...]
) -> list[Any]:
    """The arguments of the handler, after the policy has permitted the call."""
    if known.rule is None:
        # Arguments are ignored: every client gets the document.
        return []
    request.caller.authorize(known.rule)
    schemas = schemas_at(request.version)
    query = _read_query(known, schemas, request)
    found: list[Any] = []
    if known.member is not None:
        is_old = _is_old(request)
        found.append(_read_member(known.member, schemas.member, segments[0], is_old=is_old))
    if known.query:
        found.append(query)
    if known.body is not None:
        found.append(_read_body(known.body, schemas.body, request))
    return found


def query_schemas(query: fields.Query, version: versions.Version) -> dict[str, Schema]:
    """The JSON Schemas of the query arguments that the microversion has, by name."""
    present = {name: field for name, field in query.items() if field.is_in(version)}
    return {name: field.schema(version, sent=True) for name, field in present.items()}


def _read_query(known: HttpMethod, schemas: _Schemas, request: Request) -> dict[str, Any]:
    given = request.GET
    unknown = [name for name in dict.fromkeys(given) if name not in schemas.query]
    if unknown:
        raise errors.Invalid(f'Unknown argument: "{", ".join(unknown)[: refusals.SHOWN]}"')
    is_old = _is_old(request)
    query = validation.read_query(schemas.query, given, skip_empty=is_old)
    for name in schemas.query:
        if known.query[name].mandatory and name not in query:
            raise errors.Invalid(f'Missing argument: "{name}"')
    if query:
        validation.check(schemas.whole_query, query, is_old=is_old)
    return query


def _is_old(request: Request) -> bool:
    """The request asks for a microversion that upstream has."""
    return request.version < versions.REGULAR


def _read_member(member: Member, schema: Schema, text: str, *, is_old: bool) -> str:
    try:
        validation.check(schema, text, field=member.name, is_old=is_old)
    except errors.Invalid:
        if member.kind is None:
            raise
        raise errors.NotFound.of(member.kind, uuid=text[: refusals.SHOWN]) from None
    return cast(str, validation.typed(schema, text))


def _read_body(body: Body, schema: Schema, request: Request) -> Any:
    if not body.is_in(request.version):
        return {}
    if body.optional_since is not None and request.sent.is_empty():
        return {}
    data = request.sent.data(body.name)
    if body.wrapper is not None and isinstance(data, dict) and list(data) == [body.wrapper]:
        data = data[body.wrapper]
    validation.check(schema, data, prefix=body.prefix, is_old=_is_old(request))
    return data
