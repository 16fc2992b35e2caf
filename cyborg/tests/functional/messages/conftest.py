# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of messages."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.tests import servers, signed
from cyborg.tests.hostile_host import EVIL


@pytest.fixture
def vhost() -> Iterator[str]:
    """The broker's account of conductors."""
    with servers.new_vhost() as url:
        yield url


@pytest.fixture
def evil_url(conf: cfg.ConfigOpts, vhost: str, tmp_path: pathlib.Path) -> Iterator[str]:
    """The broker's account of the hostile host; conductors and agents need signatures."""
    signed.require(conf, tmp_path)
    rpc.use_memory(conf)
    conf.set_override("transport_url", vhost)
    conf.set_override("rpc_exchange", "amq.topic")
    rpc.close()
    with servers.user_of_agent(vhost, EVIL) as own:
        yield own
    rpc.close()
