# SPDX-License-Identifier: Apache-2.0
"""The body of a PATCH: what it asks for, and what it may not be."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.api import arq_patch, validation, versions
from cyborg.api.types import accelerator_requests as types
from cyborg.api.types.base import schema_of
from cyborg.arqs.bind_requests import BindTarget
from cyborg.common import errors

ARQ = "375eb786-8c8f-4540-add9-b666c5fba308"
OTHER = "828bfe53-cf52-4c2b-96b4-ea36d33a6d0f"
PROVIDER = "823f5e9e-ef5b-3461-bd09-8006cc3755d1"
INSTANCE = "aaaaaaaa-0000-4000-8000-000000000001"
V2_0, V2_1 = versions.MIN, versions.ARQ_PROJECT


def add(**fields: Any) -> list[dict[str, Any]]:
    values = {"hostname": "h", "device_rp_uuid": PROVIDER, "instance_uuid": INSTANCE} | fields
    return [{"path": f"/{key}", "op": "add", "value": value} for key, value in values.items()]


def parse(body: Any, version: versions.Version) -> arq_patch.Changes:
    """What the API does with a body: its schema goes before what the schema cannot say."""
    schema = schema_of(types.PATCH, version, sent=True)
    validation.check(schema, body, prefix=arq_patch.REFUSED)
    return arq_patch.parse(body, version)


REMOVE = [{"path": "/hostname", "op": "remove"}]


def test_binds_with_any_form_of_paths_and_uuids() -> None:
    changes = parse({ARQ: add(), OTHER.upper(): add(hostname="i")}, V2_0)
    target = BindTarget(hostname="h", device_rp_uuid=PROVIDER, consumer_uuid=INSTANCE)
    assert changes.binds[ARQ] == target
    assert changes.binds[OTHER].hostname == "i"
    assert (changes.unbinds, changes.names_project) == (frozenset(), False)
    operations = [
        {"path": "hostname", "op": "add", "value": "h"},
        {"path": "device_rp_uuid", "op": "add", "value": PROVIDER.upper()},
        {"path": "instance_uuid", "op": "add", "value": INSTANCE.replace("-", "")},
    ]
    assert parse({ARQ.replace("-", ""): operations}, V2_0).binds == {ARQ: target}


def test_unbinds_with_any_of_the_paths() -> None:
    whole = [{**operation, "op": "remove"} for operation in add()]
    changes = parse({ARQ: REMOVE, OTHER: whole}, V2_0)
    assert changes.unbinds == {ARQ, OTHER}
    assert changes.binds == {}


def test_a_project_is_named_from_2_1() -> None:
    body = {ARQ: add(project_id="p2")}
    changes = parse(body, V2_1)
    assert changes.names_project
    assert changes.binds[ARQ].project_id == "p2"
    with pytest.raises(errors.NotAcceptable, match=r"should be 2\.1"):
        parse(body, V2_0)
    with pytest.raises(errors.NotAcceptable):
        parse({ARQ: [{"path": "/project_id", "op": "remove"}]}, V2_0)


def test_a_key_that_is_no_uuid_names_no_arq() -> None:
    with pytest.raises(errors.NotFound, match="ExtArq not found with uuid=bad"):
        parse({"bad": add()}, V2_0)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "at least one ARQ"),
        ([], "at least one ARQ"),
        ("x", "at least one ARQ"),
        (5, "at least one ARQ"),
        ({ARQ: None}, f"operations of {ARQ} must be a list"),
        ({ARQ: []}, "must be a list"),
        ({ARQ: {}}, "must be a list"),
        ({ARQ: "x"}, "must be a list"),
        ({ARQ: ["x"]}, "must be an object"),
        ({ARQ: [{"op": "add", "value": "x"}]}, "path is needed"),
        ({ARQ: [{"path": "/hostname", "value": "x"}]}, "op is needed"),
        ({ARQ: [{"path": "/hostname", "op": "add"}]}, "value is needed"),
        ({ARQ: [{"path": 5, "op": "add", "value": "x"}]}, "path must be a text"),
        ({ARQ: [{"path": "/hostname", "op": ["add"], "value": "x"}]}, "op must be a text"),
        ({ARQ: [{"path": "/foo", "op": "add", "value": "x"}]}, "Invalid path in patch /foo"),
        ({ARQ: [{**add()[0], "from": "/x"}, *add()[1:]]}, "Unknown attribute from"),
        ({ARQ: [*add(), add()[0]]}, "more than once"),
        ({ARQ: add(), ARQ.upper(): add()}, "more than once"),
        ({ARQ: [{**operation, "op": "replace"} for operation in add()]}, "Every op must be add"),
        ({ARQ: [{**operation, "op": "ADD"} for operation in add()]}, "Every op must be add"),
        ({ARQ: [*add()[:2], {"path": "/instance_uuid", "op": "remove"}]}, "Every op must be add"),
        ({ARQ: add(), OTHER: REMOVE}, "different requests"),
        ({ARQ: add()[1:]}, "Fields absent in patch hostname"),
        ({ARQ: add()[:1]}, "Fields absent in patch device_rp_uuid,instance_uuid"),
        ({ARQ: add(hostname=None)}, "Fields absent in patch hostname"),
        ({ARQ: add(hostname="")}, "value must have 1 to 255"),
        ({ARQ: add(hostname=5)}, "value must be a text"),
        ({ARQ: add(hostname="h" * 256)}, "value must have 1 to 255"),
        ({ARQ: add(device_rp_uuid="badrp")}, "must be a UUID, not 'badrp'"),
        ({ARQ: add(instance_uuid="x" * 255)}, "must be a UUID"),
        ({ARQ: add(project_id="")}, "value must have 1 to 255"),
        ({ARQ: add(project_id=5)}, "value must be a text"),
        ({ARQ: add(project_id=["p"])}, "value must be a text"),
        ({ARQ: add(project_id="p" * 256)}, "value must have 1 to 255"),
    ],
)
def test_what_cannot_be_applied(body: Any, sentence: str) -> None:
    with pytest.raises(errors.Invalid, match=sentence):
        parse(body, V2_1)
