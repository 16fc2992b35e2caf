# SPDX-License-Identifier: Apache-2.0
"""With HTTP Basic authentication those are administrators who know a password of the file."""

from __future__ import annotations

import base64
import os
import pathlib
import threading
from collections.abc import Iterator
from concurrent import futures
from wsgiref.types import WSGIApplication

import bcrypt
import pytest
import sqlalchemy as sa
import webob
from keystoneauth1 import adapter, http_basic, session
from oslo_config import cfg

from cyborg.api import app
from cyborg.common import errors
from cyborg.tests import messages, scene
from cyborg.tests.service import PATIENCE

PROFILE = {"name": "p", "groups": [{"resources:FPGA": "1"}]}
ANN = ("ann", "ä secret")
NEWEST = {"OpenStack-API-Version": "accelerator 2.4"}


def line(name: str, password: str) -> str:
    digest = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    return f"{name}:{digest}\n"


@pytest.fixture
def file(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "htpasswd"
    garbage = "dan:$2b$garbage\n"
    made.write_text(line("ann", "ä secret") + line("bob", "other") + line("#eve", "old") + garbage)
    conf.set_override("auth_strategy", "http_basic", group="api")
    conf.set_override("http_basic_auth_user_file", str(made), group="api")
    conf.set_override("noauth_allow_remote", False, group="api")
    return made


@pytest.fixture
def api(conf: cfg.ConfigOpts, database: sa.Engine, file: pathlib.Path) -> Iterator[WSGIApplication]:
    conf.set_override("status_page", True, group="api")
    with messages.transport(conf, "memory"):
        yield app.load(conf)


def post(api: WSGIApplication, who: tuple[str, str] | None = ANN, **headers: str) -> webob.Response:
    """The answer to a client on another machine who wants to make a device profile."""
    asked = webob.Request.blank(
        "/v2/device_profiles", json=PROFILE, method="POST", content_type="application/json"
    )
    asked.environ["REMOTE_ADDR"] = "192.0.2.1"
    asked.headers.update(NEWEST | headers)
    if who is not None:
        name, password = who
        asked.headers["Authorization"] = _basic(name, password)
    return asked.get_response(api)


def _basic(name: str, password: str) -> str:
    plain = base64.b64encode(f"{name}:{password}".encode()).decode()
    return f"Basic {plain}"


def test_who_knows_a_password_is_an_administrator_and_nobody_else_is(api) -> None:
    for who, code in ((ANN, 201), (ANN, 409), (("bob", "other"), 409)):
        assert post(api, who).status_int == code
    forged = {"X-Roles": "admin", "X-User-Id": "ann", "X-Service-Roles": "service"}
    for stranger in (
        *(None, ("ann", "other"), ("ann", ""), ("nobody", "other"), ("an", "ä secret"), ("", "")),
        # More than bcrypt takes; an old line; a digest that is none.
        *(("ann", "x" * 73), ("#eve", "old"), ("dan", "any")),
    ):
        answer = post(api, stranger, **forged)
        assert answer.status_int == 401, stranger
        assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
        assert "Send a name and its password" in answer.json["errors"][0]["detail"]
    for said in ("Basic", "Basic !", "Bearer abc", "Basic YW5u", "\x00"):
        assert post(api, None, Authorization=said).status_int == 401, said
    answer = post(api, Origin="http://evil.example")
    assert answer.status_int == 403
    assert "web pages of 'http://evil.example'" in answer.text
    # A balancer needs no password.
    assert webob.Request.blank("/healthcheck").get_response(api).status_int == 200


def test_a_change_of_the_file_has_effect_at_once(api: WSGIApplication, file: pathlib.Path) -> None:
    assert post(api).status_int == 201
    before = file.stat()
    file.write_text(line("ann", "new"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert post(api).status_int == 401
    assert post(api, ("ann", "new")).status_int == 409
    file.unlink()
    assert post(api, ("ann", "new")).status_int == 401


def test_a_browser_is_asked_before_it_gets_the_status_page(api: WSGIApplication) -> None:
    asked = webob.Request.blank("/", accept="text/html")
    assert asked.get_response(api).headers["WWW-Authenticate"]
    asked.headers["Authorization"] = _basic(*ANN)
    assert asked.get_response(api).content_type == "text/html"
    asked.accept = "application/json"
    asked.headers["Authorization"] = _basic(*ANN)
    assert "versions" in asked.get_response(api).json


def test_clients_of_openstack_come_in(conf, database, file) -> None:
    with messages.transport(conf, "memory"), scene.serving(conf) as url:
        plugin = http_basic.HTTPBasicAuth(endpoint=url, username="bob", password="other")
        client = adapter.Adapter(session.Session(auth=plugin), service_type="accelerator")
        assert client.get("/devices").json() == {"devices": []}


def test_who_is_known_is_served_while_others_guess(api, conf, monkeypatch) -> None:
    assert post(api).status_int == 201
    guessed, go_on = threading.Semaphore(0), threading.Event()

    def slow(*_given: bytes) -> bool:
        guessed.release()
        return not go_on.wait(PATIENCE)

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    at_once = conf.api.threads // 2
    with futures.ThreadPoolExecutor(at_once) as pool:
        answers = [pool.submit(post, api, ("bob", str(each))) for each in range(at_once)]
        for _ in answers:
            guessed.acquire()
        assert post(api).status_int == 409
        assert post(api, ("bob", "one more")).status_int == 503
        go_on.set()
    assert {each.result().status_int for each in answers} == {401}


def test_a_file_that_nobody_can_use_is_said_at_the_start(conf, file) -> None:
    for content in (b"ann:plain\n", b"\xff:\xff\n", None):
        if content:
            file.write_bytes(content)
        else:
            file.unlink()
        said = r"http_basic_auth_user_file: .*htpasswd -B"
        with pytest.raises(errors.Misconfigured, match=said):
            app.load(conf)
