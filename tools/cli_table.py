#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what the commands of ``openstack accelerator`` know of the API: lists, bodies, versions.

The API says itself once, in :mod:`cyborg.api.types`. The commands run where no server is installed,
so they read this table. A test refuses one that is not up to date.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from cyborg.api import versions
from cyborg.api.controllers import root

#: Arguments that no command offers.
_UNUSED = {"bind_state", "deployable_id", "device_id", "sort_key", "sort_dir"}

TABLE = pathlib.Path(__file__).parents[1] / "cyborg/osc/lists.json"
_VERSIONS = [
    versions.Version(versions.MIN.major, minor)
    for minor in range(versions.MIN.minor, versions.MAX.minor + 1)
]

_Document = Mapping[str, Any]


def table() -> dict[str, Any]:
    """The oldest and the newest microversion, the lists, and what replaces a member of one."""
    documents = [root.described_at(each, with_tokens=False) for each in _VERSIONS]
    return {
        "oldest": str(versions.MIN),
        "newest": str(versions.MAX),
        "lists": _lists(documents),
        "replaced": dict(_replaced(documents[-1])),
    }


def _lists(documents: list[_Document]) -> dict[str, Any]:
    """Each list of the API by its path: the key of its rows, their fields, and the arguments."""
    found = {}
    for path, methods in documents[-1]["paths"].items():
        rows = _rows(documents[-1], methods)
        if rows is not None and not path.endswith(("/", "}")):
            key, fields = rows
            name = path.removeprefix("/v2/")
            since = _since(documents, path)
            arguments = dict(_arguments(documents, path))
            found[name] = {"key": key, "since": since, "fields": fields, "arguments": arguments}
    return found


def _replaced(document: _Document) -> Iterator[tuple[str, list[str]]]:
    """The fields of a request that replaces a member of a collection, by the collection."""
    for path, methods in document["paths"].items():
        if "put" in methods:
            body = methods["put"]["requestBody"]["content"]["application/json"]["schema"]
            name = path.removeprefix("/v2/").partition("/")[0]
            yield name, list(_followed(document, body)["properties"])


def _rows(document: _Document, methods: _Document) -> tuple[str, list[str]] | None:
    """The key of the rows in an answer to GET, and their fields; None if it is no list."""
    answer = methods.get("get", {}).get("responses", {}).get("200", {}).get("content")
    if answer is None:
        return None
    whole = _followed(document, answer["application/json"]["schema"])
    for key, schema in whole.get("properties", {}).items():
        item = schema.get("items", {})
        if "$ref" in item and not {"uuid", "id"} & whole["properties"].keys():
            fields = _followed(document, item).get("properties", {})
            return key, [name for name in fields if name != "links"]
    return None


def _followed(document: _Document, schema: _Document) -> _Document:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _since(documents: list[_Document], path: str) -> str:
    known = (each for each, document in zip(_VERSIONS, documents, strict=True)
             if path in document["paths"])  # fmt: skip
    return str(next(known))


def _arguments(documents: list[_Document], path: str) -> Iterator[tuple[str, _Document]]:
    for each in _queried(documents[-1], path):
        name, schema = each["name"], each["schema"]
        if name in _UNUSED:
            continue
        since = next(
            str(version)
            for version, document in zip(_VERSIONS, documents, strict=True)
            if name in {known["name"] for known in _queried(document, path)}
        )
        shown = {"help": schema.get("description", "").removesuffix("."), "since": since}
        if schema.get("type") in {"boolean", "integer"}:
            shown["type"] = schema["type"]
        if "enum" in schema:
            shown["choices"] = schema["enum"]
        yield name, shown


def _queried(document: _Document, path: str) -> list[_Document]:
    get = document["paths"].get(path, {}).get("get", {"parameters": []})
    return [each for each in get["parameters"] if each["in"] == "query"]


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
