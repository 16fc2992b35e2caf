# SPDX-License-Identifier: Apache-2.0
"""The API reference has the parameters of the declared types, at the same microversions."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cyborg.api import declare, openapi, versions
from cyborg.api.controllers import root
from cyborg.api.types.base import Schema, schema_of
from cyborg.tests.mounted_api import EVERY_VERSION, anonymous

SOURCE = pathlib.Path(__file__).parents[4] / "api-ref" / "source"
PARAMETERS: dict[str, Any] = yaml.safe_load((SOURCE / "parameters.yaml").read_text())

GABBITS = pathlib.Path(__file__).parents[2] / "functional" / "api" / "gabbits"

#: The parameters of a part of a page: each with its entry in the file of parameters.
Listed = dict[str, dict[str, Any]]


def sections() -> Iterator[tuple[str, str]]:
    """The route and the text of each operation on the pages."""
    for page in sorted(SOURCE.glob("*.inc")):
        _, *methods = re.split(r"^.. rest_method:: ", page.read_text(), flags=re.MULTILINE)
        for text in methods:
            yield text.partition("\n")[0], text


def parts() -> Iterator[tuple[str, str, Listed]]:
    """The route, ``Request`` or ``Response``, and the parameters of each part of the pages."""
    for route, text in sections():
        for part in ("Request", "Response"):
            head = rf"^{part}\n-+\n\n.. rest_parameters:: parameters.yaml\n\n"
            found = re.search(rf"{head}((   - .*\n)+)", text, re.MULTILINE)
            if found:
                pairs = re.findall(r"- (\S+): (\S+)", found[1])
                yield route, part, {name: PARAMETERS[entry] for name, entry in pairs}


HANDLERS = {
    anonymous(f"{method} {path}"): handler.operation for method, path, handler in root.declared()
}
DOCUMENT = openapi.document(root.declared(), versions.MAX, with_tokens=True)["paths"]
#: The codes that the OpenAPI document has of each route, by the route.
CODES = {
    anonymous(f"{method.upper()} {path}"): {int(code) for code in described["responses"]}
    for path, methods in DOCUMENT.items()
    for method, described in methods.items()
}
#: A key may be enrolled for a host that has never reported: none of its name is unknown.
NEVER_ANSWERED = {"GET /v2/hosts/{}/keys": {404}, "POST /v2/hosts/{}/keys": {404}}
#: What clients in the field send although it changes nothing.
IGNORED = {"device_profile_group_id", "image_uuid"}


def plain(schema: Schema) -> Schema:
    """The schema of an object, of those in a list, or of those in an object with any names.

    Of one or many it is the one.
    """
    either = None if "properties" in schema else schema.get("else")
    inner = schema.get("items") or schema.get("additionalProperties") or either
    return plain(inner) if inner else schema


def properties(schema: Schema) -> dict[str, Schema]:
    found: dict[str, Schema] = plain(schema).get("properties", {})
    return found


def of_request(known: declare.HttpMethod, version: versions.Version) -> dict[str, Schema]:
    found = declare.query_schemas(known.query, version)
    if known.body is not None and known.body.is_in(version):
        found |= properties(schema_of(known.body.type, version, sent=True))
    return found


def of_answer(known: declare.HttpMethod, version: versions.Version) -> dict[str, Schema]:
    """The properties of an answer, and of what is in them."""
    found: dict[str, Schema] = {}
    rest = [properties(schema_of(known.answer, version))]
    while rest:
        inner = rest.pop(0)
        found = {**inner, **found}
        rest += [properties(part) for part in inner.values()]
    return found


def needed(known: declare.HttpMethod) -> set[str]:
    """What a request must have."""
    found = {name for name, field in known.query.items() if field.mandatory}
    if known.body is not None:
        schema = schema_of(known.body.type, versions.MAX, sent=True)
        found |= set(plain(schema).get("required", ()))
    return found


def said(entry: dict[str, Any], known: declare.HttpMethod) -> list[versions.Version]:
    """The first and the last microversion that an entry names; several pages may have it."""
    first, last = (
        versions.requested(str(entry.get(key, default)))
        for key, default in (("min_version", versions.MIN), ("max_version", versions.MAX))
    )
    return [max(first, known.since), last]


@pytest.mark.parametrize(("route", "part", "listed"), parts())
def test_parameters_are_those_of_the_types(route: str, part: str, listed: Listed) -> None:
    known = HANDLERS[anonymous(route)]
    read = of_request if part == "Request" else of_answer
    served = [version for version in EVERY_VERSION if version >= known.since]
    present = {version: read(known, version) for version in served}
    listed = {name: entry for name, entry in listed.items() if entry["in"] != "path"}
    for name, entry in listed.items():
        having = [version for version in served if name in present[version]]
        assert said(entry, known) == [having[0], having[-1]], name
    if part == "Request":
        assert {name for name, entry in listed.items() if entry["required"]} == needed(known)
        assert present[versions.MAX].keys() - listed.keys() <= IGNORED
    else:
        assert properties(schema_of(known.answer, versions.MAX)).keys() <= listed.keys()


def test_no_entry_is_there_twice() -> None:
    names = re.findall(r"^(\w+):$", (SOURCE / "parameters.yaml").read_text(), re.MULTILINE)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("route", "text"), sections(), ids=lambda given: given[:60])
def test_codes_are_those_that_are_answered(route: str, text: str) -> None:
    said = yaml.safe_load((SOURCE / "http-status.yaml").read_text())
    blocks = re.findall(r"rest_status_code:: (\w+) http-status.yaml\n\n((?:   - .*\n)+)", text)
    listed = {kind: re.findall(r"- (\d+)(?:: (\w+))?\n", rows) for kind, rows in blocks}
    codes = {kind: [int(code) for code, _ in rows] for kind, rows in listed.items()}
    assert all(code < 400 for code in codes["success"])
    assert all(code >= 400 for code in codes["error"])
    every = [*codes["success"], *codes["error"]]
    assert len(set(every)) == len(every)
    assert set(every) == CODES[anonymous(route)] - NEVER_ANSWERED.get(anonymous(route), set())
    for code, words in (row for rows in listed.values() for row in rows):
        assert said[int(code)][words or "default"], code


def answers() -> Iterator[tuple[str, int]]:
    """The route and the code of each answer that the tests in YAML expect."""
    for path in sorted(GABBITS.glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        for test in document["tests"]:
            each = {**document.get("defaults", {}), **test}
            method = next((name for name in each if name.isupper()), None)
            if method is not None and "status" in each:
                yield f"{method} {each[method].partition('?')[0]}", int(each["status"])


def declared_for(route: str) -> set[int] | None:
    """The codes of a route whose members are named; None if there is no such route."""
    method, _, path = route.partition(" ")
    # The UUID of an answer before is written as $RESPONSE['$.uuid'].
    path = re.sub(r"\$\w+\[[^\]]*\]", "x", path)
    parts = [part for part in path.split("/") if part]
    if parts and parts[0] != "v2":
        parts.insert(0, "v2")
    for known, codes in CODES.items():
        served, _, template = known.partition(" ")
        wanted = [part for part in template.split("/") if part]
        fits = len(wanted) == len(parts) and all(
            part in ("{}", mine) for part, mine in zip(wanted, parts, strict=True)
        )
        if served == method and fits:
            return codes
    return None


def test_the_answers_of_the_tests_are_declared() -> None:
    seen = 0
    for route, code in answers():
        declared = declared_for(route)
        if declared is not None:
            seen += 1
            # A path that exists only at a newer microversion is answered 404 before, or 405.
            assert code in declared | {404, 405}, route
    assert seen > 200
