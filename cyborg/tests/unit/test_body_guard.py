# SPDX-License-Identifier: Apache-2.0
"""What a request body may be before any controller sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cyborg import errors
from cyborg.api import guard

DEPTH = 32


def body(content: bytes, content_type: str = "application/json") -> guard.Body:
    return guard.Body(content_type=content_type, content=content, max_depth=DEPTH)


@pytest.mark.parametrize(
    "data",
    [
        {"a": [1, -2.5, 1e10, True, None, ""]},
        "text",
        5,
        [],
        {"brackets": "[[{{" * 50, "escaped": '\\"[['},
        {"é": "\U0001f600"},
        json.loads("[" * DEPTH + "]" * DEPTH),
    ],
)
def test_json_comes_through(data: Any) -> None:
    assert guard.decode(json.dumps(data).encode(), DEPTH) == data
    assert guard.decode(json.dumps(data, ensure_ascii=False).encode(), DEPTH) == data


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
        guard.decode(content, DEPTH)


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert guard.decode(b'"\\ud83d\\ude00"', DEPTH) == "\U0001f600"


def test_a_body_is_needed_and_is_not_null() -> None:
    with pytest.raises(errors.Invalid, match='Missing argument: "req"'):
        body(b"").data("req")
    with pytest.raises(errors.Invalid, match="must not be null"):
        body(b" null ").data("req")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'],
)
def test_json_by_its_name(content_type: str) -> None:
    assert body(b"[]", content_type).data("req") == []


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/xml",
        "application/json-patch+json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=utf-16",
    ],
)
def test_other_types_are_refused(content_type: str) -> None:
    with pytest.raises(errors.UnsupportedMediaType, match="Unknown mimetype"):
        body(b"[]", content_type).data("req")


@pytest.mark.parametrize(
    ("path", "query", "sentence"),
    [
        ("/v2/a\0b", "", "NUL"),
        ("/v2", "name=%00", "NUL"),
        ("/v2/\xff", "", "UTF-8"),
        ("/v2", "name=%ff", "UTF-8"),
        ("/v2", "name=%ed%a0%80", "UTF-8"),
    ],
)
def test_a_url_is_utf8_without_nul(path: str, query: str, sentence: str) -> None:
    with pytest.raises(errors.Invalid, match=sentence):
        guard.check_url({"PATH_INFO": path, "QUERY_STRING": query})


def test_a_url_of_other_characters() -> None:
    guard.check_url({"PATH_INFO": "/v2/é".encode().decode("latin-1"), "QUERY_STRING": "a=%C3%A9"})
