# SPDX-License-Identifier: Apache-2.0
"""What the API takes and says, against its reference: types, filters, order, where a path began."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import webob

from cyborg import db, liveness
from cyborg.api import declare, versions
from cyborg.api.controllers import root
from cyborg.api.types.base import Schema, schema_of
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.mounted_api import EVERY_VERSION

pytestmark = pytest.mark.usefixtures("database")

Call = Callable[..., webob.Response]

NEWER = [version for version in EVERY_VERSION if version >= versions.REGULAR]
PROFILE: dict[str, Any] = {"name": "p", "groups": [{"resources:FPGA": 1}]}
#: What takes a whole number beside a text, and why.
NUMBERS_TOO = {
    # A fact may be a number, and an amount is one.
    "value",
    "^resources:",
    # The number of a row; up to now clients may write it as a text.
    "deployable_id",
}


def message(answer: webob.Response) -> str:
    """What an error says."""
    if "error" in answer.json:
        return str(answer.json["error"]["message"])
    return str(answer.json["error_message"])


def typed(schema: Schema, name: str = "") -> Iterator[tuple[str, list[str]]]:
    """The types of every part of a schema that has several, with its name."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        yield name, kinds
    for several in ("properties", "patternProperties"):
        for key, part in schema.get(several, {}).items():
            yield from typed(part, key)
    for key in ("items", "then", "else", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from typed(schema[key], name)


def bodies() -> Iterator[tuple[str, declare.Body]]:
    for method, path, handler in root.declared():
        if handler.operation.body is not None:
            yield f"{method} {path}", handler.operation.body


def test_no_text_may_be_sent_as_a_number() -> None:
    sent = list(bodies())
    assert len(sent) >= 15
    for (route, body), version in itertools.product(sent, NEWER):
        schema = schema_of(body.type, version, sent=True)
        both = {name for name, kinds in typed(schema) if {"string", "integer"} <= set(kinds)}
        assert both <= NUMBERS_TOO, (route, version)


@pytest.mark.parametrize("version", ["2.4", "latest"])
def test_a_number_is_no_text(call: Call, version: str) -> None:
    hosts.apply(hosts.card("a"))
    (deployable,) = call("GET", "/v2/deployables").json["deployables"]
    about = {"deployable_uuid": deployable["uuid"]}
    for path, body, field in (
        ("/v2/device_profiles", PROFILE | {"description": 1}, "description"),
        ("/v2/device_profiles", PROFILE | {"name": 1}, "name"),
        ("/v2/device_profiles", PROFILE | {"groups": [{"accel:function_id": 7}]}, "function_id"),
        ("/v2/attributes", about | {"key": 1, "value": "a"}, "key"),
    ):
        refused = call("POST", path, body, version)
        assert refused.status_int == 400, body
        assert f"{field} must be" in message(refused)
    assert call("POST", "/v2/device_profiles", PROFILE, version).status_int == 201
    made = call("POST", "/v2/attributes", about | {"key": "floor", "value": 3}, version)
    assert made.status_int == 201


def test_up_to_2_3_it_is_one_and_any_type_may_be_asked_for(call) -> None:
    hosts.apply(hosts.card("a"))
    for number, version in enumerate((None, "2.0", "2.3")):
        profile = PROFILE | {"name": f"p{number}", "description": 1}
        assert call("POST", "/v2/device_profiles", [profile], version).json["description"] == "1"
        attribute = {"deployable_id": 1, "key": number, "value": 2}
        made = call("POST", "/v2/attributes", attribute, version).json
        assert (made["key"], made["value"]) == (str(number), "2")
        for kind, count in (("nope", 0), ("FPGA", 1)):
            found = call("GET", f"/v2/devices?type={kind}", version=version).json["devices"]
            assert len(found) == count


def enumerated() -> Iterator[tuple[str, str, declare.Declared]]:
    """Each filter of a list that narrows it by a field with few values."""
    for method, path, handler in root.declared():
        operation = handler.operation
        if method != "GET" or operation.answer is None or "{" in path:
            continue
        answer = schema_of(operation.answer, versions.MAX)
        rows: Schema = next(
            (part for part in answer.get("properties", {}).values() if part.get("type") == "array"),
            {},
        )
        fields = rows.get("items", {}).get("properties", {})
        for name in declare.query_schemas(operation.query, versions.MAX):
            if "enum" in fields.get(name, {}) or (path, name) == ("/v2/devices", "type"):
                yield path, name, handler


def test_a_value_that_a_field_never_has_is_refused(call: Call) -> None:
    filters = list(enumerated())
    assert len(filters) >= 10
    for path, name, handler in filters:
        known = declare.query_schemas(handler.operation.query, versions.MAX)[name]["enum"]
        refused = call("GET", f"{path}?{name}=nope")
        assert refused.status_int == 400
        assert message(refused) == f"{name} must be one of {', '.join(known)}, not 'nope'."
        for value in known:
            assert call("GET", f"{path}?{name}={value}").status_int == 200


@pytest.mark.makes_up_rows
def test_services_are_listed_oldest_first(call: Call) -> None:
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).replace(tzinfo=None)
    names = ["one", "two", "three", "four", "five", "six"]
    for name in names[::2]:
        liveness.record_heartbeat(models.new_uuid(), f"{name}/1", name)
    for name in names[1::2]:
        hosts.apply(hosts.card(name), host=name)
    with db.writer() as session:
        for number, name in enumerate(names):
            model, column = (
                (models.Host, models.Host.name)
                if number % 2
                else (models.Conductor, models.Conductor.host)
            )
            at = start + datetime.timedelta(days=number)
            session.execute(sa.update(model).where(column == name).values(created_at=at))
    listed = [each["host"] for each in call("GET", "/v2/services").json["services"]]
    assert listed == names
    assert call("GET", "/v2/services?sort_dir=desc").json["services"][0]["host"] == "six"
    walked, url = [], "/v2/services?limit=1"
    while url:
        page = call("GET", url).json
        walked += [each["host"] for each in page["services"]]
        url = page["services_links"][0]["href"] if "services_links" in page else ""
    assert walked == names


def test_a_device_that_there_never_was_has_no_history(call: Call) -> None:
    unknown = models.new_uuid()
    for query in ("", "?kind=used", "?limit=1"):
        refused = call("GET", f"/v2/devices/{unknown}/history{query}")
        assert refused.status_int == 404
        assert message(refused) == f"Device not found with uuid={unknown}"
    hosts.apply(hosts.card("a"))
    (device,) = call("GET", "/v2/devices").json["devices"]
    path = f"/v2/devices/{device['uuid']}/history"
    assert call("GET", path).json == {"history": []}
    assert call("POST", f"/v2/devices/{device['uuid']}/disable").status_int == 204
    hosts.apply()
    # It is gone, and its history is not, whatever it is narrowed to.
    assert call("GET", f"/v2/devices/{device['uuid']}").status_int == 404
    assert call("GET", path).json["history"]
    assert call("GET", f"{path}?kind=used").json == {"history": []}


def test_what_came_later_says_when(call) -> None:
    routes = [each for each in root.declared() if each[2].operation.since > versions.MIN]
    assert len(routes) >= 30
    for method, path, handler in routes:
        since = handler.operation.since
        url = path.replace("{uuid}", models.new_uuid()).replace("{", "").replace("}", "")
        for version in {None, str(versions.Version(2, since.minor - 1))}:
            refused = call(method, url, version=version)
            assert refused.status_int in {404, 405}, url
            assert f"Served from microversion {since} on" in message(refused), url
            assert f"{versions.HEADER}: accelerator {since}" in message(refused), url
        assert "Served from" not in call(method, url, {}, str(since)).text, url


def test_an_unknown_path_is_answered_in_one_form(call) -> None:
    accepted = ("application/json", "text/html", "text/plain", "*/*", "image/png")
    headers = [{}, *({"HTTP_ACCEPT": accept} for accept in accepted)]
    paths = ("/nope", "/v1", "/v2/nope", "/v2/devices/a/b/c", "/v2/servers")
    for path, version in itertools.product(paths, (None, "2.3", "2.4")):
        found = [call("GET", path, version=version, **environ) for environ in headers]
        for each in found:
            assert (each.status_int, each.content_type) == (404, "application/json")
            assert "<" not in each.text
            assert list(each.json) == list(found[0].json)


def test_the_document_of_the_api_is_that_of_the_newest_microversion(call: Call) -> None:
    for version, shown in ((None, str(versions.MAX)), ("2.0", "2.0"), ("2.4", "2.4")):
        answer = call("GET", "/v2/openapi.json", version=version)
        assert answer.json["info"]["version"] == shown
        assert answer.headers[versions.HEADER] == f"accelerator {shown}"
