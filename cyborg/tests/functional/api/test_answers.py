# SPDX-License-Identifier: Apache-2.0
"""Every request has an answer with an id, and the log has the id of each that is refused."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import webob
from keystonemiddleware import opts as auth_token_opts
from oslo_config import cfg

from cyborg.api import app

pytestmark = pytest.mark.usefixtures("database")

SHIPPED = app.SHIPPED_PASTE_FILE.read_text()
SECRET = "the wheel is out"


def failing(_defaults: dict[str, str], **local_conf: str) -> object:
    """A filter that works for nobody."""

    def wrap(inner: WSGIApplication) -> WSGIApplication:
        def serve(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            if environ["PATH_INFO"] == "/v2/devices":
                raise ModuleNotFoundError(SECRET)
            return inner(environ, start)

        return serve

    return wrap


@pytest.fixture
def log(conf, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the API without authentication logs."""
    conf.set_override("auth_strategy", "noauth", group="api")
    caplog.set_level(logging.INFO, logger="cyborg.api")
    return caplog


def _loaded(conf: cfg.ConfigOpts, tmp_path: pathlib.Path, before: str) -> WSGIApplication:
    """The API with a filter that fails, before the one of that name."""
    own = f"[filter:failing]\npaste.filter_factory = {__name__}:failing\n"
    pipeline = "pipeline = metrics cors http_proxy_to_wsgi healthcheck request_id noauth api"
    assert pipeline in SHIPPED
    file = tmp_path / "own.ini"
    changed = pipeline.replace(f" {before} ", f" failing {before} ")
    file.write_text(SHIPPED.replace(pipeline, changed) + own)
    conf.set_override("api_paste_config", str(file), group="api")
    return app.load(conf)


def _ask(
    loaded: WSGIApplication, path: str, version: str = "latest", method: str = "GET"
) -> webob.Response:
    request = webob.Request.blank(path, method=method)
    request.headers["OpenStack-API-Version"] = f"accelerator {version}"
    return request.get_response(loaded)


@pytest.mark.parametrize("before", ["cors", "healthcheck", "request_id", "noauth"])
def test_a_filter_that_fails_is_an_answer(conf, tmp_path, log, before) -> None:
    loaded = _loaded(conf, tmp_path, before)
    for version in ("2.0", "2.4"):
        log.clear()
        answer = _ask(loaded, "/v2/devices", version)
        assert (answer.status_int, answer.content_type) == (500, "application/json")
        own = answer.headers["X-OpenStack-Request-ID"]
        assert own.startswith("req-")
        assert own in str(answer.json)
        assert SECRET not in answer.text
        assert "Traceback" not in answer.text
        (failed,) = (each for each in log.records if each.levelno == logging.ERROR)
        assert own in failed.getMessage()
        assert failed.exc_info
        assert SECRET in str(failed.exc_info[1])
    assert _ask(loaded, "/").status_int == 200


REFUSED = [
    ("GET", "/v2/devices/none", 404),
    ("GET", "/v2/nothing", 404),
    ("GET", "/v2/devices?status=1&status=2&nope=3", 400),
    ("PUT", "/v2/devices", 405),
    ("POST", "/v2/device_profiles", 400),
]


def test_the_log_has_the_id_of_each_refused_request_once(conf, log) -> None:
    loaded = app.load(conf)
    for method, path, code in REFUSED:
        log.clear()
        answer = _ask(loaded, path, method=method)
        assert answer.status_int == code, path
        own = answer.headers["X-OpenStack-Request-ID"]
        (line,) = (text for text in log.messages if own in text)
        assert f"{method} {path.partition('?')[0]}" in line
        assert str(code) in line
        assert answer.json["errors"][0]["detail"][:20] in line or code in {404, 405}
    # A path forges no line.
    assert _ask(loaded, "/v2/x%0A2026-01-01%20ERROR%20forged" + "y" * 5000).status_int == 404
    (line,) = (text for text in log.messages if "forged" in text)
    assert "\n" not in line
    assert len(line) < 1000
    log.clear()
    # What is served makes none, nor what balancers ask.
    for path in ("/", "/v2/devices", "/healthcheck"):
        _ask(loaded, path)
    assert [text for text in log.messages if "was answered" in text] == []


def test_without_a_token_there_is_a_line_too(conf, log) -> None:
    conf.set_override("auth_strategy", "keystone", group="api")
    for group, options in auth_token_opts.list_auth_token_opts():
        conf.register_opts(options, group=group)
    conf.set_override("www_authenticate_uri", "http://127.0.0.1:1", group="keystone_authtoken")
    answer = _ask(app.load(conf), "/v2/devices")
    assert answer.status_int == 401
    assert any(answer.headers["X-OpenStack-Request-ID"] in text for text in log.messages)
