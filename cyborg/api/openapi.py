# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI 3.1 document of one microversion, from the declarations that validate requests."""

from __future__ import annotations

import http
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cyborg.api import declare, examples, refusals, validation, versions
from cyborg.api.types import faults
from cyborg.api.types.base import schema_of

Document = dict[str, Any]

#: Errors that any operation can answer with, and those that a member or a body adds.
_FAULTS = (400, 401, 403, 406, 408, 413, 500, 503)
_PUBLIC_FAULTS = (400, 406, 408, 413, 500)
_OF_MEMBER = (404,)
_OF_BODY = (415,)
_TOKEN = "token"  # noqa: S105 - the name of a scheme


def document(
    declared: Iterable[tuple[str, str, declare.Declared]],
    version: versions.Version,
    *,
    with_tokens: bool,
) -> Document:
    """The document of what is served at ``version``, but for where that is.

    ``declared`` has the HTTP method, the path and the handler of each operation.
    """
    schemas: Document = {}
    paths: dict[str, Document] = {}
    for method, path, handler in declared:
        if handler.operation.since <= version:
            described = _operation(handler, version, schemas)
            paths.setdefault(path, {})[method.lower()] = described
    methods = [each for of_path in paths.values() for each in of_path.values()]
    token = {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "OpenStack Cyborg API",
            "description": f"Lifecycle of hardware accelerators, at microversion {version}.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
            "version": str(version),
        },
        "security": [{_TOKEN: []}] if with_tokens else [{}],
        "tags": [
            {"name": name, "description": f"Requests about {_words(name)}."}
            for name in sorted({tag for each in methods for tag in each["tags"]})
        ],
        "paths": paths,
        "components": {"securitySchemes": {_TOKEN: token}, "schemas": schemas},
    }


def _words(tag: str) -> str:
    """The name of a controller as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tag.removesuffix("Controller")).lower()


def _operation(handler: declare.Declared, version: versions.Version, schemas: Document) -> Document:
    known = handler.operation
    described: Document = {
        "operationId": handler.__qualname__,
        "summary": known.summary,
        "tags": [handler.__qualname__.partition(".")[0]],
        "parameters": list(_parameters(known, version, schemas)),
        "responses": _responses(known, version, schemas),
    }
    if known.body is not None and known.body.is_in(version):
        schema = schema_of(known.body.type, version, sent=True)
        required = known.body.optional_since is None
        described["requestBody"] = {"required": required, **_shown(schema, schemas)}
    if known.rule is None:
        described["security"] = [{}]
    else:
        described["description"] = f"Policy rule: {known.rule}"
    return described


def _parameters(
    known: declare.HttpMethod, version: versions.Version, schemas: Document
) -> Iterator[Document]:
    yield {
        "name": versions.HEADER,
        "in": "header",
        "description": f"Without it {versions.MIN} is served. Each has a document of its own.",
        "schema": {"enum": [f"{versions.SERVICE_TYPE} {version}"]},
    }
    if known.member is not None:
        schema = _published(schema_of(known.member.type, version), schemas)
        yield {"name": known.member.name, "in": "path", "required": True, "schema": schema}
    for name, declared in declare.query_schemas(known.query, version).items():
        parameter = {"name": name, "in": "query", "schema": _published(declared, schemas)}
        if known.query[name].mandatory:
            parameter["required"] = True
        if validation.SEPARATOR in declared:
            parameter["explode"] = False
        yield parameter


def _responses(known: declare.HttpMethod, version: versions.Version, schemas: Document) -> Document:
    answer: Document = {"description": http.HTTPStatus(known.success).phrase}
    if known.answer is not None:
        answer |= _shown(schema_of(known.answer, version), schemas)
    codes = {*_FAULTS, *known.faults} if known.rule is not None else set(_PUBLIC_FAULTS)
    codes.update(_OF_MEMBER if known.member is not None else ())
    has_body = known.body is not None and known.body.is_in(version)
    codes.update(_OF_BODY if has_body else ())
    fault = _published(schema_of(faults.FAULT, version), schemas)
    described = {
        str(code): {"description": http.HTTPStatus(code).phrase, **_json(fault)}
        for code in sorted(codes)
    }
    if known.rule is not None:
        described["401"] |= _json(_published(schema_of(faults.Unauthorized, version), schemas))
        # Keystone's middleware, when Keystone is down, answers with plain text.
        described["503"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    return {str(known.success): answer, **described}


def _shown(schema: Any, schemas: Document) -> Document:
    """A document of this schema, with an example."""
    found = _json(_published(schema, schemas))
    found["content"]["application/json"]["example"] = examples.example(schema)
    return found


def _json(schema: Any) -> Document:
    return {"content": {"application/json": {"schema": schema}}}


def _published(schema: Any, schemas: Document) -> Any:
    """The schema without our own keywords; those with a title are put into ``schemas``."""
    if isinstance(schema, list | tuple):
        return [_published(item, schemas) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    ours = {refusals.KEYWORD, validation.SEPARATOR}
    public = {key: _published(part, schemas) for key, part in schema.items() if key not in ours}
    title = public.get("title")
    if not isinstance(title, str):
        return public
    reference = {"$ref": f"#/components/schemas/{title}"}
    if "description" in public:
        # It is about the property; other properties may have the same type.
        reference["description"] = public.pop("description")
    if schemas.setdefault(title, public) != public:
        raise ValueError(f"Two schemas have the title {title}.")
    return reference
