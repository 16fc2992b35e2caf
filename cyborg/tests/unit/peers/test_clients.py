# SPDX-License-Identifier: Apache-2.0
"""The options of each service's group reach its proxy, and no others do."""

from __future__ import annotations

import http.server
import pathlib
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import ClassVar
from unittest import mock

import pytest
import requests
from keystoneauth1 import adapter as ka_adapter
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.peers import clients

OPTIONS = """
[nova]
auth_type = password
auth_url = http://127.0.0.1:9/keystone
username = for-nova
region_name = one
valid_interfaces = internal,admin
version = 2
connect_retries = 3
status_code_retries = 4
timeout = 5
cafile = /nova.pem
[placement]
auth_type = none
endpoint_override = http://127.0.0.1:9/placement
service_type = own
insecure = true
[glance]
auth_type = v3password
auth_url = http://127.0.0.1:9/keystone
username = for-glance
user_domain_id = default
min_version = 2
max_version = 2.9
"""


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> cfg.ConfigOpts:
    path = tmp_path / "cyborg.conf"
    path.write_text(OPTIONS)
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], default_config_files=[str(path)], default_config_dirs=[])
    return conf


def test_each_service_has_its_own_options_and_credentials(conf: cfg.ConfigOpts) -> None:
    nova, placement = clients.proxy(conf, "nova"), clients.proxy(conf, "placement")
    glance = clients.proxy(conf, "glance")
    assert (nova.service_type, placement.service_type, glance.service_type) == (
        "compute",
        "own",
        "image",
    )
    assert (nova.region_name, nova.interface) == ("one", ["internal", "admin"])
    assert (nova.version, nova.connect_retries, nova.status_code_retries) == ("2", 3, 4)
    assert (nova.session.timeout, nova.session.verify) == (5, "/nova.pem")
    assert (placement.session.timeout, placement.session.verify) == (30, False)
    assert placement.endpoint_override == "http://127.0.0.1:9/placement"
    assert (glance.min_version, glance.max_version) == ("2", "2.9")
    assert (glance.region_name, glance.session.verify) == (None, True)
    assert glance.interface == ["internal", "public"]
    auths = [vars(each.session.auth) for each in (nova, placement, glance)]
    assert auths[0]["_username"] == "for-nova"
    assert "_username" not in auths[1]
    assert auths[2]["auth_methods"][0].username == "for-glance"


def test_one_connection_has_all_services_of_a_configuration(conf: cfg.ConfigOpts) -> None:
    nova, glance = clients.proxy(conf, "nova"), clients.proxy(conf, "glance")
    assert nova is clients.proxy(conf, "nova")
    assert nova._get_connection() is glance._get_connection()


def test_errors_are_those_of_keystoneauth(conf: cfg.ConfigOpts) -> None:
    with pytest.raises(ka_exc.ConnectFailure):
        clients.proxy(conf, "glance").get("/v2/images")
    with pytest.raises(ka_exc.ConnectFailure):
        clients.proxy(conf, "placement").get("/resource_providers")


def test_a_connection_is_tried_again_only_if_configured(conf, monkeypatch) -> None:
    seen = []

    def request(*_arguments: object, **options: object) -> None:
        seen.append(options["connect_retries"])
        raise ka_exc.ConnectFailure

    monkeypatch.setattr(ka_adapter.Adapter, "request", request)
    placement = clients.proxy(conf, "placement")
    for configured in (None, 3):
        placement.connect_retries = configured
        with pytest.raises(ka_exc.ConnectFailure):
            placement.get("/resource_providers")
    assert seen == [0, 3]


class _Seen(http.server.BaseHTTPRequestHandler):
    """Notes who asks it what, as a service or as a proxy, and with which credentials."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, str | None]]]
    peers: ClassVar[set[object]]
    #: Answers come when as many requests are there.
    barrier: ClassVar[threading.Barrier]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        self.peers.add(self.client_address)
        self.barrier.wait(30)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_given: object) -> None:
        """Say nothing."""


@pytest.fixture
def seen() -> Iterator[str]:
    _Seen.asked, _Seen.peers, _Seen.barrier = [], set(), threading.Barrier(1)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Seen)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_connections_of_many_threads_are_kept(conf: cfg.ConfigOpts, seen: str) -> None:
    _Seen.barrier = threading.Barrier(20)
    conf.set_override("endpoint_override", seen, "placement")
    proxy = clients.proxy(conf, "placement")
    with futures.ThreadPoolExecutor(20) as pool:
        for _ in range(3):
            assert all(pool.map(lambda _number: proxy.get("/").ok, range(20)))
    assert len(_Seen.peers) == 20


def test_the_environment_is_read_once_for_each_server(conf, seen, monkeypatch) -> None:
    read = mock.Mock(wraps=requests.sessions.get_environ_proxies)
    monkeypatch.setattr("requests.sessions.get_environ_proxies", read)
    monkeypatch.setenv("http_proxy", seen)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for url in ("http://elsewhere.example", seen):
        conf.set_override("endpoint_override", url, "placement")
        clients.close()
        for _ in range(3):
            assert clients.proxy(conf, "placement").get("/traits").ok
    paths = [path for path, _ in _Seen.asked]
    assert paths == ["http://elsewhere.example/traits"] * 3 + ["/traits"] * 3
    assert read.call_count == 2


def test_no_password_is_taken_from_the_user_s_netrc(conf, seen, monkeypatch, tmp_path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    conf.set_override("endpoint_override", seen, "placement")
    assert clients.proxy(conf, "placement").get("/traits").ok
    assert _Seen.asked == [("/traits", None)]
