# SPDX-License-Identifier: Apache-2.0
"""What a request body may be before any controller sees it."""

from __future__ import annotations

import functools
import io
import itertools
import json
import socket
import sys
import types
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
import webob
from oslo_config import cfg

from cyborg.api import request_body
from cyborg.common import errors

DEPTH = 32
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked"}


def body(content: bytes, content_type: str = "application/json") -> request_body.RequestBody:
    return request_body.RequestBody(content_type=content_type, content=content, max_depth=DEPTH)


class Drops(io.RawIOBase):
    """A body of which a byte comes at a time, as long as the connection is open for it."""

    def __init__(self, one: socket.socket) -> None:
        self._one = one

    def read(self, _size: int = -1) -> bytes:
        return self._one.recv(1)


def answer(conf: cfg.ConfigOpts, environ: dict[str, Any]) -> webob.Response:
    """What the guard lets an application say: how large the body is."""

    def application(seen: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        size = len(seen[request_body.ENVIRON_KEY].data("text"))
        return webob.Response(str(size))(seen, start)

    given = {"CONTENT_TYPE": "application/json", **environ}
    request = webob.Request.blank("/v2/device_profiles", given, method="POST")
    return request.get_response(request_body.RequestReader(application, conf))


@pytest.mark.parametrize("length", [{"CONTENT_LENGTH": "1000"}, CHUNKED])
def test_a_body_that_does_not_end_is_waited_for_so_long(conf, length) -> None:
    conf.set_override("request_timeout", 0.2, group="api")
    mine, theirs = socket.socketpair()
    theirs.sendall(b"x")
    with mine, theirs:
        said = answer(conf, {**length, "wsgi.input": Drops(mine), "gunicorn.socket": mine})
    assert said.status_code == 408
    assert "within 0.2 seconds" in said.text


def test_many_chunks_are_put_together_once(conf, monkeypatch) -> None:
    # If each were put to a copy of those before it, that would take minutes.
    count = 1_000_000
    conf.set_override("max_request_body_size", count, group="api")
    text = itertools.chain([b'"'], itertools.repeat(b"x", count - 2), [b'"'])
    parts = itertools.chain(text, itertools.repeat(b""))
    mine, theirs = socket.socketpair()
    uwsgi = types.SimpleNamespace(
        chunked_read=functools.partial(next, parts), connection_fd=mine.fileno
    )
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    with mine, theirs:
        assert answer(conf, CHUNKED).text == str(count - 2)


@pytest.mark.parametrize(
    "data",
    [
        {"a": [1, -2.5, 1e10, True, None, ""]},
        "text",
        5,
        [],
        {"brackets": "[[{{" * 50, "escaped": '\\"[['},
        {"é": "\U0001f600"},  # in ASCII a pair of surrogates
        json.loads("[" * DEPTH + "]" * DEPTH),
    ],
)
def test_json_comes_through(data: Any) -> None:
    assert request_body.decode(json.dumps(data).encode(), DEPTH) == data
    assert request_body.decode(json.dumps(data, ensure_ascii=False).encode(), DEPTH) == data


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[" * 3000 + b"]" * 3000, "at most 32 levels"),
        (b'{"a":' * 50_000, "at most 32 levels"),
        (b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), "at most 32 levels"),
        (b"{", "not in valid JSON format"),
        (b'"' + b'\\"' * 50_000, "not in valid JSON format"),
        (b"{'a': 1}", "not in valid JSON format"),
        (b'"a\0b"', "not in valid JSON format"),
        (b'"a\\u0000b"', "NUL"),
        (b'{"a\\u0000b": 1}', "NUL"),
        (b'[{"a": ["\\ud800"]}]', "surrogates"),
        (b"\xff\xfe", "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'{"a": 1, "a": 1}', 'key "a" twice'),
        (b'[{"b": {"a": 1, "c": 2, "a": 3}}]', 'key "a" twice'),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"1" * 5000, "too long"),
        (b"1e999", "too long"),
        (b"0." + b"1" * 5000, "too long"),
    ],
)
def test_what_nobody_could_bear_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(errors.Invalid, match=sentence):
        request_body.decode(content, DEPTH)


def test_a_body_is_needed_and_is_not_null() -> None:
    with pytest.raises(errors.Invalid, match='Missing argument: "req"'):
        body(b"").data("req")
    with pytest.raises(errors.Invalid, match="must not be null"):
        body(b" null ").data("req")


def test_json_by_its_name_and_no_other_type() -> None:
    for name in (
        "application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'
    ):
        assert body(b"[]", name).data("req") == []
    for name in (
        "", "text/plain", "application/xml", "application/json-patch+json",
        "application/x-www-form-urlencoded", "multipart/form-data",
        "application/json; charset=utf-16",
    ):
        with pytest.raises(errors.UnsupportedMediaType, match="Unknown mimetype"):
            body(b"[]", name).data("req")


@pytest.mark.parametrize(
    ("mount", "path", "query", "sentence"),
    [
        ("", "/v2/a\0b", "", "NUL"),
        ("", "/v2", "name=%00", "NUL"),
        ("", "/v2/\xff", "", "UTF-8"),
        ("", "/v2", "name=%ff", "UTF-8"),
        ("", "/v2", "name=%ed%a0%80", "UTF-8"),
        ("", "/v2", "name=\xff", "UTF-8"),
        ("/\xff", "/v2", "", "UTF-8"),
    ],
)
def test_a_url_is_utf8_without_nul(mount, path, query, sentence) -> None:
    good = "/é".encode().decode("latin-1")
    request_body.check_url({"SCRIPT_NAME": good, "PATH_INFO": good, "QUERY_STRING": "a=%C3%A9"})
    environ = {"SCRIPT_NAME": mount, "PATH_INFO": path, "QUERY_STRING": query}
    with pytest.raises(errors.Invalid, match=sentence):
        request_body.check_url(environ)
