# SPDX-License-Identifier: Apache-2.0
"""A NUL character, which PostgreSQL does not store, in every text that a client sends."""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from oslo_config import cfg

from cyborg.tests import asks, messages, scene

pytestmark = [pytest.mark.every_database, pytest.mark.usefixtures("database")]

BODY = [{"name": "gpu", "groups": [{"resources:FPGA": "1"}]}]
HEADERS = (
    *("Accept", "Content-Type", "Host", "OpenStack-API-Version", "User-Agent", "X-Auth-Token"),
    *("X-Openstack-Request-Id", "X-Project-Id", "X-Roles", "X-User-Id"),
)


@pytest.fixture
def url(conf: cfg.ConfigOpts) -> Iterator[str]:
    conf.set_override("auth_strategy", "noauth", group="api")
    with messages.transport(conf, "memory"), scene.serving(conf) as found:
        yield found


def with_nul(data: Any) -> Iterator[Any]:
    """The data with a NUL in one of its texts, for each of them."""
    if isinstance(data, str):
        yield from (f"{data}\0", f"\0{data}")
    elif isinstance(data, list):
        for number, item in enumerate(data):
            for odd in with_nul(item):
                yield [*data[:number], odd, *data[number + 1 :]]
    elif isinstance(data, dict):
        for key, value in data.items():
            rest = {other: data[other] for other in data if other != key}
            yield from ({**rest, odd: value} for odd in with_nul(key))
            yield from ({**rest, key: odd} for odd in with_nul(value))


def lines_with_nul(line: str) -> Iterator[str]:
    """The line of a request with a NUL in a part of its path or its query."""
    for part in re.finditer(r"\{\w+\}|[a-z_]+$", line):
        yield f"{line[: part.start()]}%00{line[part.end() :]}"
    yield f"{line}{'&' if '?' in line else '?'}sort_key=a%00b"
    yield f"{line}{'&' if '?' in line else '?'}%00=1"


def requests_with_nul() -> Iterator[tuple[str, Any, str]]:
    for ask in asks.REQUESTS.values():
        for line in lines_with_nul(ask.line):
            yield line, ask.body, ask.microversion
        for body in with_nul(ask.body):
            yield ask.line, body, ask.microversion


def test_in_the_url_and_the_body(url: str) -> None:
    with requests.Session() as http:
        for line, body, microversion in requests_with_nul():
            method, path = line.format_map(_Names()).split(" ", 1)
            headers = {"OpenStack-API-Version": f"accelerator {microversion}"}
            answer = http.request(method, url + path, json=body, headers=headers)
            assert answer.status_code == 400, (line, body, answer.text)
            assert "must not contain NUL characters" in answer.text, (line, body, answer.text)
        assert http.get(f"{url}/device_profiles").json() == {"device_profiles": []}


class _Names(dict[str, str]):
    """Something for each name in a line."""

    def __missing__(self, key: str) -> str:
        return "6b1a7f6e-0d35-4e0e-9f0f-3a5b0c7d9e21"


def test_in_a_header(url: str) -> None:
    body = json.dumps(BODY).encode()
    port = int(url.rpartition(":")[2].partition("/")[0])
    usual = {"Host": "localhost", "Content-Type": "application/json", "Connection": "close"}
    for name, value in itertools.product(HEADERS, ("a\0b", "\0", "req-\0", "accelerator 2.0\0")):
        headers = usual | {name: value, "Content-Length": str(len(body))}
        head = "".join(f"{key}: {said}\r\n" for key, said in headers.items())
        with socket.create_connection(("127.0.0.1", port), scene.PATIENCE) as one:
            one.sendall(f"POST /v2/device_profiles HTTP/1.1\r\n{head}\r\n".encode() + body)
            answer = b"".join(iter(lambda: one.recv(65536), b""))
        assert re.match(rb"HTTP/1\.[01] 4\d\d ", answer), (name, value, answer)
