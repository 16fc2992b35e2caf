# SPDX-License-Identifier: Apache-2.0
"""Where the built-in server may listen, and how it proves who it is."""

from __future__ import annotations

import pytest
import requests
import trustme
import webob

from cyborg.api import server


def test_without_authentication_only_loopback_is_safe(conf) -> None:
    elsewhere = ("0.0.0.0", "::", "192.0.2.1", "cloud.example")
    conf.set_override("noauth_allow_remote", False, group="api")
    for host in elsewhere:
        server.check_address(conf, host)
    conf.set_override("auth_strategy", "noauth", group="api")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"):
        server.check_address(conf, host)
    for host in elsewhere:
        with pytest.raises(server.UnsafeAddress, match="noauth_allow_remote"):
            server.check_address(conf, host)
    conf.set_override("noauth_allow_remote", True, group="api")
    for host in elsewhere:
        server.check_address(conf, host)


def test_https_with_a_certificate_for_each_side(conf, tmp_path) -> None:
    authority = trustme.CA()
    own, clients = tmp_path / "server.pem", tmp_path / "client.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(own)
    authority.issue_cert("client@x").private_key_and_cert_chain_pem.write_to_path(clients)
    above = str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(above)
    conf.set_override("enable_ssl_api", True, group="api")
    for name, file in (("cert_file", own), ("key_file", own), ("ca_file", above)):
        conf.set_override(name, str(file), group="ssl")
    http = server.Server(conf, webob.Response("it is me"), "127.0.0.1", 0)
    url = f"https://localhost:{http.listen()}/"
    http.start()
    try:
        answer = requests.get(url, verify=above, cert=str(clients), timeout=60)
        assert answer.text == "it is me"
        with pytest.raises(requests.ConnectionError):
            requests.get(url, verify=above, timeout=60)
    finally:
        http.stop()
