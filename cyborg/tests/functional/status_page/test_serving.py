# SPDX-License-Identifier: Apache-2.0
"""Who gets the status page and who the API's own answers; the files and their headers."""

from __future__ import annotations

import importlib.metadata
import re
import types
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import pytest
import webob
from oslo_config import cfg

from cyborg.api import app, declare, status_page
from cyborg.api.types import accelerator_requests, allocations, devices
from cyborg.api.versions import MAX
from cyborg.tests.servers import REPOSITORY

pytestmark = pytest.mark.usefixtures("database")

OF_A_BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
OF_CLIENTS = [None, "", "*/*", "application/json", "application/json, text/html;q=0.9", "rubbish"]
FILES = sorted(path.name for path in status_page._FOLDER.iterdir())
Get = Callable[..., webob.Response]


def getter(conf: cfg.ConfigOpts, *, is_on: bool = True) -> Get:
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("status_page", is_on, group="api")
    application = app.load(conf)

    def get(path: str, method: str = "GET", **headers: str) -> webob.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = webob.Request.blank(path, method=method, headers=named)
        return request.get_response(application)

    return get


def told(answer: webob.Response) -> tuple[Any, ...]:
    """All that a client is told, but for the id of its request."""
    headers = {name: value for name, value in answer.headerlist if "Request-Id" not in name.title()}
    return answer.status, headers, answer.body


def test_only_a_browser_that_asks_for_the_page_sees_that_it_is_on(conf) -> None:
    on, off = getter(conf), getter(conf, is_on=False)
    assert on("/", Accept=OF_A_BROWSER).content_type == "text/html"
    assert off("/", Accept=OF_A_BROWSER).content_type == "application/json"
    # All else is answered to the letter as without the page.
    for accept in OF_CLIENTS:
        headers = {} if accept is None else {"Accept": accept}
        assert told(on("/", **headers)) == told(off("/", **headers)), accept
        assert on("/", **headers).json["name"] == "OpenStack Cyborg API"
    for path in (
        *("/v2", "/v2/devices", "/nope", "/status/", "/status/../app.py", "/status/%ff", "/v2/%ff"),
    ):
        assert told(on(path, Accept=OF_A_BROWSER)) == told(off(path, Accept=OF_A_BROWSER)), path
    for method in ("HEAD", "POST", "OPTIONS", "DELETE"):
        for path in ("/", "/status/main.js"):
            with_page, without = (get(path, method, Accept=OF_A_BROWSER) for get in (on, off))
            assert told(with_page)[:2] == told(without)[:2], (method, path)


def test_with_keystone_there_is_no_page(conf) -> None:
    conf.set_override("status_page", True, group="api")
    application = app.make_app(conf)
    for path, content_type in (("/", "application/json"), ("/status/main.js", "application/json")):
        request = webob.Request.blank(path, headers={"Accept": OF_A_BROWSER})
        assert request.get_response(application).content_type == content_type


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_sent_with_its_type_and_a_strict_policy_and_once(conf, name) -> None:
    get = getter(conf)
    answer = get(f"/status/{name}")
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
    assert answer.content_type == kinds[name.rpartition(".")[2]]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert set(answer.headers["Content-Security-Policy"].split("; ")) == {
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:"),
        *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    }
    again = get(f"/status/{name}", If_None_Match=answer.headers["ETag"])
    assert (again.status_int, again.body) == (304, b"")
    changed = get(f"/status/{name}", If_None_Match='"older"')
    assert (changed.status_int, changed.body) == (200, answer.body)


def test_mounted_below_a_path_the_page_ends_in_a_slash(conf) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("status_page", True, group="api")
    request = webob.Request.blank("/accelerator", headers={"Accept": OF_A_BROWSER})
    request.path_info_pop()
    answer = request.get_response(app.load(conf))
    assert (answer.status_int, answer.location) == (302, "http://localhost/accelerator/")


def test_the_files_name_each_other_and_nothing_outside() -> None:
    texts = [(status_page._FOLDER / name).read_text() for name in FILES]
    whole = "".join(texts)
    # The name of SVG elements is no address from which anything is loaded.
    assert re.findall(r"https?://[^\"]*", whole) == ["http://www.w3.org/2000/svg"]
    assert not re.search("innerHTML|outerHTML =|insertAdjacent|document.write|eval", whole)
    named = re.findall(r"(?:from \"\./|=\"status/)([^\"]+)\"", whole)
    assert set(named) | {"index.html"} == set(FILES)


def test_the_commands_that_it_tells_exist() -> None:
    text = (status_page._FOLDER / "stuck.js").read_text()
    commands = importlib.metadata.entry_points(group="openstack.cyborg.v2")
    told = re.findall(r'"openstack (accelerator [^"]+)"', text)
    assert told
    for line in told:
        kind, act, *words = line.split()[1:]
        app = types.SimpleNamespace(client_manager=None)
        command = commands[f"accelerator_{kind}_{act}"].load()(app, None)
        command.get_parser("openstack").parse_args(words)


def test_a_wheel_has_the_files() -> None:
    lines = (REPOSITORY / "MANIFEST.in").read_text().splitlines()
    start = "recursive-include cyborg "
    (patterns,) = (line.split()[2:] for line in lines if line.startswith(start))
    assert [name for name in FILES if not any(fnmatch(name, each) for each in patterns)] == []


@pytest.mark.parametrize(
    ("view", "query"),
    [
        ("devices", devices.QUERY),
        ("asked", accelerator_requests.QUERY),
        ("allocations", allocations.QUERY),
    ],
)
def test_the_choices_of_a_search_are_those_of_the_api(view, query) -> None:
    text = (status_page._FOLDER / "lists.js").read_text()
    block = text.partition(f"export const {view} = {{")[2].partition("load:")[0]
    fields = re.findall(r'\["(\w+)", "[^"]+"(?:, \[([^\]]+)\])?\]', block)
    assert fields
    schemas = declare.query_schemas(query, MAX)
    for name, choices in fields:
        schema = schemas[name]
        offered = re.findall(r'"(\w+)"', choices)
        if schema.get("type") == "boolean":
            assert offered == ["true", "false"]
        else:
            assert set(offered) == set(schema.get("enum", ()))
