# SPDX-License-Identifier: Apache-2.0
"""The API reference has the parameters of the declared types, at the same microversions."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cyborg.api import declare, versions
from cyborg.api.controllers import root
from cyborg.api.types.base import Schema, schema_of

SOURCE = pathlib.Path(__file__).parents[3] / "api-ref" / "source"
EVERY_VERSION = [versions.Version(2, minor) for minor in range(versions.MAX.minor + 1)]
PARAMETERS: dict[str, Any] = yaml.safe_load((SOURCE / "parameters.yaml").read_text())

#: The parameters of a part of a page: each with its entry in the file of parameters.
Listed = dict[str, dict[str, Any]]


def parts() -> Iterator[tuple[str, str, Listed]]:
    """The route, ``Request`` or ``Response``, and the parameters of each part of the pages."""
    for page in sorted(SOURCE.glob("*.inc")):
        _, *methods = re.split(r"^.. rest_method:: ", page.read_text(), flags=re.MULTILINE)
        for text in methods:
            route = text.partition("\n")[0]
            for part in ("Request", "Response"):
                head = rf"^{part}\n-+\n\n.. rest_parameters:: parameters.yaml\n\n"
                found = re.search(rf"{head}((   - .*\n)+)", text, re.MULTILINE)
                if found:
                    pairs = re.findall(r"- (\S+): (\S+)", found[1])
                    yield route, part, {name: PARAMETERS[entry] for name, entry in pairs}


def anonymous(route: str) -> str:
    """The route with nothing in its braces, since the pages name members as they like."""
    return re.sub(r"\{[^}]*\}", "{}", route)


HANDLERS = {
    anonymous(f"{method} {path}"): handler.operation for method, path, handler in root.declared()
}
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


def of_request(known: declare.Operation, version: versions.Version) -> dict[str, Schema]:
    found = declare.query_schemas(known.query, version)
    if known.body is not None and known.body.is_in(version):
        found |= properties(schema_of(known.body.type, version, sent=True))
    return found


def of_answer(known: declare.Operation, version: versions.Version) -> dict[str, Schema]:
    """The properties of an answer, and of what is in them."""
    found: dict[str, Schema] = {}
    rest = [properties(schema_of(known.answer, version))]
    while rest:
        inner = rest.pop(0)
        found = {**inner, **found}
        rest += [properties(part) for part in inner.values()]
    return found


def needed(known: declare.Operation) -> set[str]:
    """What a request must have."""
    found = {name for name, field in known.query.items() if field.mandatory}
    if known.body is not None:
        schema = schema_of(known.body.type, versions.MAX, sent=True)
        found |= set(plain(schema).get("required", ()))
    return found


def said(entry: dict[str, Any], known: declare.Operation) -> list[versions.Version]:
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
