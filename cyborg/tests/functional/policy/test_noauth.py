# SPDX-License-Identifier: Apache-2.0
"""Without authentication the API is for programs of its own machine, under every server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from wsgiref.types import WSGIApplication

import pytest
import requests
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg.api import app
from cyborg.tests import messages
from cyborg.tests.service import Site

PROFILE = [{"name": "p", "groups": [{}]}]


@pytest.fixture
def api(conf: cfg.ConfigOpts, database: sa.Engine) -> Iterator[WSGIApplication]:
    """The application without authentication, as any server would call it."""
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("noauth_allow_remote", False, group="api")
    with messages.transport(conf, "memory"):
        yield app.load(conf)


def post(api: WSGIApplication, client: str = "127.0.0.1", **headers: str) -> webob.Response:
    """The answer to a client at that address who wants to make a device profile."""
    request = webob.Request.blank(
        "/v2/device_profiles", json=PROFILE, method="POST", content_type="application/json"
    )
    request.environ["REMOTE_ADDR"] = client
    request.headers.update(headers)
    return request.get_response(api)


def is_refused(answer: webob.Response, sentence: str) -> bool:
    assert answer.status_int in {201, 403}, answer.text
    return answer.status_int == 403 and sentence in answer.text


@pytest.mark.parametrize("client", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_served(api: WSGIApplication, client: str) -> None:
    assert post(api, client).status_int == 201


@pytest.mark.parametrize(
    "client", ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "nobody", "", "0.0.0.0"]
)
def test_another_machine_is_not(api: WSGIApplication, conf: cfg.ConfigOpts, client: str) -> None:
    answer = post(api, client, **{"X-Roles": "admin", "OpenStack-API-Version": "2.4"})
    assert is_refused(answer, "only clients on this machine")
    assert answer.json["errors"][0]["code"] == "accelerator.forbidden"
    conf.set_override("noauth_allow_remote", True, group="api")
    assert post(api, client).status_int == 201


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded", "Forwarded", "X-Real-IP", "Via"],
)
def test_nor_is_it_through_a_proxy_on_this_machine(api: WSGIApplication, header: str) -> None:
    for content in ("for=192.0.2.1", ""):
        answer = post(api, **{header: content})
        assert is_refused(answer, "without a proxy")


@pytest.mark.parametrize(
    "host", ["localhost:6666", "127.0.0.1", "[::1]:6666", "192.0.2.1", "host-1", "own.example:80"]
)
def test_names_of_this_machine(api: WSGIApplication, conf: cfg.ConfigOpts, host: str) -> None:
    conf.set_override("public_endpoint", "https://own.example/accelerator", group="api")
    assert post(api, Host=host).status_int == 201
    assert post(api, Host=socket.gethostname()).status_int == 409


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6666", "127.0.0.1.evil", "[", "@x"])
def test_a_name_that_somebody_else_gave_this_machine(api, conf, host) -> None:
    for remote in (False, True):
        conf.set_override("noauth_allow_remote", remote, group="api")
        assert is_refused(post(api, "127.0.0.1", Host=host), "nor a name of this machine")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", ""])
def test_a_web_page_of_somebody_else(api, conf, origin) -> None:
    assert is_refused(post(api, Origin=origin), "web pages")
    conf.set_override("allowed_origin", [origin], group="cors")
    assert post(api, Origin=origin).status_int == 201


def test_who_brings_a_request_without_any_address_is_unknown(api: WSGIApplication) -> None:
    answer = webob.Request.blank("/v2/devices").get_response(api)
    assert is_refused(answer, "only clients on this machine")


def test_a_page_of_our_own(api: WSGIApplication) -> None:
    assert post(api, Origin="http://localhost:80").status_int == 201


def test_the_built_in_server_hands_the_names_on(site: Site) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        answer = requests.get(f"{site.endpoint}/devices", headers=headers, timeout=60)
        assert answer.status_code == 403
    assert site.call("GET", "/devices") == {"devices": []}
