# SPDX-License-Identifier: Apache-2.0
"""Where the built-in server may listen."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg.api import server


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_without_authentication_loopback_is_safe(conf: cfg.ConfigOpts, host: str) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    server.check_address(conf, host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "cloud.example"])
def test_without_authentication_another_address_is_not(conf: cfg.ConfigOpts, host: str) -> None:
    server.check_address(conf, host)
    conf.set_override("auth_strategy", "noauth", group="api")
    with pytest.raises(server.UnsafeAddress, match="noauth_allow_remote"):
        server.check_address(conf, host)
    conf.set_override("noauth_allow_remote", True, group="api")
    server.check_address(conf, host)
