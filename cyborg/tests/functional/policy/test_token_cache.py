# SPDX-License-Identifier: Apache-2.0
"""Tokens in memcached as the guide's file has it: who can write there is nobody else for that."""

from __future__ import annotations

import configparser
import socketserver
import threading
from collections.abc import Iterator

import pytest
import requests

from cyborg.tests import messages, scene
from cyborg.tests.deployment import PRODUCTION
from cyborg.tests.service import PATIENCE

GROUP = "keystone_authtoken"


class _Connection(socketserver.StreamRequestHandler):
    """As much of memcached's protocol as its clients need for this."""

    server: Memcached

    def handle(self) -> None:
        while words := self.rfile.readline().split():
            match words:
                case [b"set", key, flags, _seconds, size, *_]:
                    value = self.rfile.read(int(size))
                    self.rfile.readline()
                    self.server.stored[key] = flags, value
                    self.wfile.write(b"STORED\r\n")
                case [b"get", *keys]:
                    for key in keys:
                        if key in self.server.stored:
                            flags, value = self.server.stored[key]
                            head = b"VALUE %b %b %d\r\n" % (key, flags, len(value))
                            self.wfile.write(head + value + b"\r\n")
                            self.server.hits += 1
                    self.wfile.write(b"END\r\n")
                case _:
                    self.wfile.write(b"ERROR\r\n")


class Memcached(socketserver.ThreadingTCPServer):
    """What it has, by key, each with its flags; and how often something was there."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.stored: dict[bytes, tuple[bytes, bytes]] = {}
        self.hits = 0


@pytest.fixture
def memcached() -> Iterator[Memcached]:
    with Memcached() as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.shutdown()


@pytest.fixture
def url(conf, database, keystone, memcached) -> Iterator[str]:
    """An API that keeps tokens there, as the file of the guide says."""
    keystone.point_at(conf)
    page = configparser.ConfigParser(interpolation=None)
    page.read(PRODUCTION)
    for name, value in page[GROUP].items():
        if name.startswith("memcache_"):
            conf.set_override(name, value, group=GROUP)
    assert page[GROUP]["memcached_servers"]
    place = f"127.0.0.1:{memcached.server_address[1]}"
    conf.set_override("memcached_servers", [place], group=GROUP)
    with messages.transport(conf, "memory"), scene.serving(conf) as found:
        yield found


def test_what_is_in_memcached_makes_nobody_an_administrator(url, memcached, personas) -> None:
    tokens = {name: personas.new_token(name) for name in ("admin", "member")}

    def services(name: str) -> int:
        """What comes of a request for administrators."""
        headers = {"X-Auth-Token": tokens[name], "OpenStack-API-Version": "accelerator 2.4"}
        return requests.get(f"{url}/services", headers=headers, timeout=PATIENCE).status_code

    for expected in (0, 1):
        assert (services("admin"), services("member")) == (200, 403)
        assert (memcached.hits > 0) == bool(expected)
    for _flags, value in memcached.stored.values():
        assert str(personas.project("member")).encode() not in value
        assert b"admin" not in value
    # All that is known of a token is put in the place of all others.
    for _flags, value in list(memcached.stored.values()):
        memcached.stored = {key: (flags, value) for key, (flags, _) in memcached.stored.items()}
        before = memcached.hits
        assert (services("admin"), services("member")) == (200, 403)
        assert memcached.hits > before
