# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of bitstreams."""

from __future__ import annotations

import contextlib
import math
import pathlib
import shutil
from collections.abc import Callable

import pytest
from castellan import key_manager
from castellan.key_manager import vault_key_manager
from castellan.tests.unit.key_manager import mock_key_manager
from oslo_config import cfg

from cyborg.tests import ports
from cyborg.tests.vendor_tools import attempt

TOOL = pathlib.Path(__file__).parents[2] / "data" / "tools" / "tool.sh"


@pytest.fixture
def tool(tmp_path):
    """A vendor's tool that does what is written in the file ``behaviour`` beside it."""
    path = tmp_path / "tool"
    shutil.copy(TOOL, path)
    (tmp_path / "behaviour").write_text("exit 0\n")
    return path


@pytest.fixture
def program(simulate, tool, tmp_path) -> Callable[..., str]:
    """Program the host's card with a file of that content while the tool behaves so."""

    def program(
        simulated,
        name: str,
        card: str,
        data: bytes,
        behaviour: str = "",
        timeout: int = 60,
        *,
        function: str | None = None,
        without: str | None = None,
        until: float = math.inf,
    ) -> str:
        (tmp_path / "behaviour").write_text(behaviour)
        bitstream = tmp_path / "bitstream"
        bitstream.write_bytes(data)
        place = simulated.card(card)
        file = str(bitstream)
        return simulated.call(
            attempt, name, str(tool), file, place, timeout, function, without, until
        )

    return program


@pytest.fixture
def intel(simulate):
    return simulate({"cards": ["pac-a10"]})


@pytest.fixture
def xilinx(simulate):
    return simulate({"cards": ["u250"]})


@pytest.fixture
def keys(monkeypatch):
    """A key manager of castellan's that keeps everything in memory; it is loaded for each use."""
    manager = mock_key_manager.MockKeyManager()
    monkeypatch.setattr(mock_key_manager, "MockKeyManager", lambda configuration: manager)
    cfg.CONF.register_opts(key_manager.key_manager_opts, group="key_manager")
    backend = "castellan.tests.unit.key_manager.mock_key_manager.MockKeyManager"
    cfg.CONF.set_override("backend", backend, group="key_manager")
    yield manager
    cfg.CONF.clear_override("backend", group="key_manager")


@pytest.fixture
def silent_vault():
    """While the block runs, the key manager is a Vault that does not answer."""

    @contextlib.contextmanager
    def away():
        conf = cfg.CONF
        conf.register_opts(vault_key_manager._vault_opts, group="vault")
        before = conf.key_manager.backend
        conf.set_override("backend", "vault", group="key_manager")
        conf.set_override("vault_url", f"http://127.0.0.1:{ports.free_port()}", group="vault")
        conf.set_override("root_token_id", "token", group="vault")
        try:
            yield
        finally:
            conf.set_override("backend", before, group="key_manager")
            conf.clear_override("vault_url", group="vault")
            conf.clear_override("root_token_id", group="vault")

    return away()
