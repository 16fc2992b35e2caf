# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: it is one, it is public, and the API keeps to it."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
import requests
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import profiles
from cyborg.api import app, versions
from cyborg.api.controllers import root
from cyborg.inventory import query
from cyborg.policy import context, rules
from cyborg.programming import operations, program
from cyborg.tests import boots, engine, hosts, messages, scene
from cyborg.tests.mounted_api import EVERY_VERSION, anonymous

pytestmark = pytest.mark.slow

INSTANCE = "aaaaaaaa-0000-4000-8000-000000000001"
SAMPLES = pathlib.Path(__file__).parents[4] / "api-ref" / "samples"
#: Seconds within which a run ends, even on a busy machine.
PATIENCE = 300

#: What a schema cannot say is no contradiction of it: that two fields fit together, that what is
#: named exists. There are things to be found, of which about every second request should make use.
CONFIG = """
continue-on-failure = true
suppress-health-check = ["all"]
headers = {{ "{header}" = "{version}" }}

[generation]
max-examples = {examples}
deterministic = true
allow-x00 = false
database = "none"

[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415]

[dictionaries]
uuids = {{ values = {uuids} }}

[parameters]
"path.uuid" = {{ dictionary = "uuids", probability = 0.5 }}
"path.uuid_or_name" = {{ dictionary = "uuids", probability = 0.5 }}
"query.instance" = {{ dictionary = "uuids", probability = 0.5 }}
"query.marker" = {{ dictionary = "uuids", probability = 0.5 }}
"query.device_uuid" = {{ dictionary = "uuids", probability = 0.5 }}
"query.deployable_uuid" = {{ dictionary = "uuids", probability = 0.5 }}

# They answer 501, as their document says, where no driver programs the deployable, and where there
# is no Placement; and the one that waits says 503, since no conductor runs.
[[operations]]
include-operation-id = [
    "Allocations.post", "Deployables.program", "Deployables.start_program",
    "DeviceProfiles.candidates"
]
checks = {{ not_a_server_error.enabled = false }}

# Its body may name other requests than its path, which need not be there.
[[operations]]
include-operation-id = ["AcceleratorRequests.patch_one"]
checks = {{ ensure_resource_availability.enabled = false }}

# A filter without a value, or a value without a field, has always been ignored.
[[operations]]
include-operation-id = ["Devices.get_all", "Deployables.get_all"]
checks = {{ negative_data_rejection.enabled = {strict} }}
"""


@pytest.fixture
def url(conf: cfg.ConfigOpts, database: sa.Engine, ctx: context.RequestContext) -> Iterator[str]:
    """The API, served, with devices, profiles, ARQs of which one is bound, and an operation."""
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("answer_timeout", 1, group="programming")
    conf.set_override("bind_wait", 0, group="api")
    hosts.apply(
        hosts.card("a"),
        hosts.card("b", resource_class="PGPU", traits=()),
        hosts.card("c", program_mode="single-program"),
    )
    (programmable,) = query.list_deployables(name="host-1_c")
    operations.ask(programmable.uuid, program.Program(function_name="aes"), "user somebody")
    profiles.create_profile(name="fpga", groups=[dict(boots.GROUP)], description="text")
    with messages.transport(conf, "memory"):
        boots.bind(ctx, boots.arqs(ctx, 2)[:1], INSTANCE)
        engine.drain(conf)
        with scene.serving(conf) as found:
            yield found.removesuffix("/v2")


def document(conf: cfg.ConfigOpts, version: versions.Version) -> Any:
    headers = {versions.HEADER: f"accelerator {version}"}
    request = webob.Request.blank("/v2/openapi.json", headers=headers)
    answer = request.get_response(app.load(conf))
    assert answer.status_int == 200
    assert answer.headers["Vary"] == versions.HEADER
    return answer.json


@pytest.mark.parametrize("version", EVERY_VERSION, ids=str)
def test_it_is_a_valid_document_for_everybody(conf, version) -> None:
    assert conf.api.auth_strategy == "keystone"
    found = document(conf, version)
    openapi_spec_validator.validate(found)
    assert found["info"]["version"] == str(version)
    assert found["security"] == [{"token": []}]
    assert "refusal" not in str(found)
    _check_style(found)
    _check_examples(found, version)
    # What a microversion brings is not there before.
    brought = "put" in found["paths"]["/v2/device_profiles/{uuid_or_name}"]
    assert brought == (version >= versions.REGULAR)


def _check_style(found: dict[str, Any]) -> None:
    """What linters ask for beyond the standard, and that each example is one."""
    described = [each for methods in found["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in described]
    assert len(set(names)) == len(names)
    tags = {tag for each in described for tag in each["tags"]}
    assert tags == {tag["name"] for tag in found["tags"]}
    assert all(each["summary"] for each in described)
    for _, media in _media(found):
        schema = {**media["schema"], "components": found["components"]}
        jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.FormatChecker()
        ).validate(media["example"])
        assert media["example"] not in ({}, None, "")


def texts(value: Any) -> set[str]:
    """Every text in a document, and every name."""
    found = list(_all_of(value))
    return {
        text
        for each in found
        for text in (each if isinstance(each, dict) else [each])
        if isinstance(text, str)
    }


def _media(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the document says of each request's and each answer's body, with its operation."""
    for path, methods in found["paths"].items():
        for method, each in methods.items():
            success = each["responses"][min(each["responses"])]
            for part in (each.get("requestBody"), success):
                if part is not None and "content" in part:
                    yield f"{method} {path}", part["content"]["application/json"]


def _check_examples(found: Any, version: versions.Version) -> None:
    """They are those of the reference."""
    samples = [json.loads(path.read_text()) for path in sorted(SAMPLES.glob("*.json"))]
    assert len(samples) > 50
    known = texts(samples)
    # What no newer microversion has.
    known |= {"attributes_list", '[{"rc": "FPGA"}, {"memory_mib": "8192"}]', "device_profile"}
    for route, media in _media(found):
        if not route.endswith("openapi.json"):
            example = media["example"]
            assert texts(example) <= known, route
            fits = any(_is_of(example, each) for each in _all_of(samples))
            assert version < versions.MAX or fits, route


def _all_of(value: Any) -> Iterator[Any]:
    """A document and all that is in it."""
    yield value
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _all_of(each)


def _is_of(example: Any, sample: Any) -> bool:
    """Whether it is the sample, maybe without some fields or items."""
    if isinstance(example, dict) and isinstance(sample, dict):
        return all(name in sample and _is_of(example[name], sample[name]) for name in example)
    if isinstance(example, list) and isinstance(sample, list):
        return all(any(_is_of(each, other) for other in sample) for each in example)
    return bool(example == sample)


def test_it_is_made_once_and_says_where_the_api_is(conf: cfg.ConfigOpts) -> None:
    made = root.described_at.cache_info().misses
    for name in ("https://first.example", "https://second.example"):
        conf.set_override("public_endpoint", name, group="api")
        for version in EVERY_VERSION * 2:
            assert document(conf, version)["servers"] == [{"url": name}]
    assert root.described_at.cache_info().misses <= made + len(EVERY_VERSION)


def asked_of(path: str) -> str:
    """The path without arguments and names of members, which policies write as they like."""
    return anonymous(path.partition("?")[0])


def test_rules_say_where_they_are_asked() -> None:
    asked = {
        (handler.operation.rule, method, asked_of(path))
        for method, path, handler in root.declared()
        if handler.operation.rule is not None
    }
    said = {
        (rule.name, operation["method"], asked_of(operation["path"]))
        for rule in rules.list_rules()
        for operation in getattr(rule, "operations", ())
    }
    # The rule's text tells of the collection: this is the same with something behind.
    asked.remove(("cyborg:arq:update", "PATCH", "/v2/accelerator_requests/{}"))
    # Asked besides, for bodies with groups.
    said.remove(("cyborg:allocation:create_groups", "POST", "/v2/allocations"))
    assert asked == said


@pytest.mark.parametrize("version", [versions.MIN, versions.MAX], ids=str)
def test_the_api_keeps_to_it(url: str, version: versions.Version, tmp_path: pathlib.Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(
        CONFIG.format(
            header=versions.HEADER,
            version=f"{versions.SERVICE_TYPE} {version}",
            examples=5,
            uuids=known_uuids(url),
            strict="true" if version >= versions.REGULAR else "false",
        )
    )
    program = shutil.which("schemathesis", path=str(pathlib.Path(sys.executable).parent))
    assert program, "schemathesis is not installed beside this Python"
    arguments = ["--config-file", str(config), "run", f"{url}/v2/openapi.json"]
    done = subprocess.run(
        [program, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Failures" not in done.stdout


def known_uuids(url: str) -> list[str]:
    """The uuids of all there is, and the instance that has an ARQ."""
    keys = {"accelerator_requests": "arqs"}
    queries = {"accelerator_requests": "?all_projects=true"}
    headers = {versions.HEADER: f"{versions.SERVICE_TYPE} latest"}
    found = []
    for name, collection in root.RESOURCES.items():
        if not hasattr(collection, "get_all"):
            continue
        path = f"{url}/v2/{name}{queries.get(name, '')}"
        listed = requests.get(path, headers=headers, timeout=PATIENCE).json()
        found += [item["uuid"] for item in listed[keys.get(name, name)] if "uuid" in item]
    return [*found, INSTANCE]
