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


def is_served(answer: webob.Response) -> bool:
    """Whether the profile was made, or is there already."""
    return answer.status_int in {201, 409}


def is_refused(answer: webob.Response, sentence: str) -> bool:
    assert is_served(answer) or answer.status_int == 403, answer.text
    return answer.status_int == 403 and sentence in answer.text


def test_this_machine_is_served_and_no_other(api, conf) -> None:
    for client in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_served(post(api, client)), client
    headers = {"X-Roles": "admin", "OpenStack-API-Version": "2.4"}
    for client in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "nobody", "", "0.0.0.0"):
        conf.set_override("noauth_allow_remote", False, group="api")
        answer = post(api, client, **headers)
        assert is_refused(answer, "only clients on this machine"), client
        assert answer.json["errors"][0]["code"] == "accelerator.forbidden"
        conf.set_override("noauth_allow_remote", True, group="api")
        assert is_served(post(api, client)), client
    conf.set_override("noauth_allow_remote", False, group="api")
    # Who brings a request without any address is unknown.
    answer = webob.Request.blank("/v2/devices").get_response(api)
    assert is_refused(answer, "only clients on this machine")
    # Nor is another machine served through a proxy on this one.
    for header in (
        *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded", "Forwarded", "X-Real-IP", "Via"),
    ):
        for content in ("for=192.0.2.1", ""):
            assert is_refused(post(api, **{header: content}), "without a proxy"), header


def test_names_of_this_machine_and_others(api, conf) -> None:
    conf.set_override("public_endpoint", "https://own.example/accelerator", group="api")
    ours = ("localhost:6666", "127.0.0.1", "[::1]:6666", "192.0.2.1", "host-1", "own.example:80")
    for host in (*ours, socket.gethostname()):
        assert is_served(post(api, Host=host)), host
    # Those that somebody else gave this machine.
    for host in ("evil.example", "evil.example:6666", "127.0.0.1.evil", "[", "@x"):
        for remote in (False, True):
            conf.set_override("noauth_allow_remote", remote, group="api")
            refused = post(api, "127.0.0.1", Host=host)
            assert is_refused(refused, "nor a name of this machine"), host


def test_a_web_page_of_our_own_and_of_somebody_else(api, conf) -> None:
    assert is_served(post(api, Origin="http://localhost:80"))
    for origin in ("https://evil.example", "null", "http://localhost:1", ""):
        conf.set_override("allowed_origin", [], group="cors")
        assert is_refused(post(api, Origin=origin), "web pages"), origin
        conf.set_override("allowed_origin", [origin], group="cors")
        assert is_served(post(api, Origin=origin)), origin


def test_the_built_in_server_hands_the_names_on(site) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        answer = requests.get(f"{site.endpoint}/devices", headers=headers, timeout=60)
        assert answer.status_code == 403
    assert site.call("GET", "/devices") == {"devices": []}
