# SPDX-License-Identifier: Apache-2.0
"""Which processes load the large libraries: eventlet never, openstacksdk when it is first used.

An agent needs no database.
"""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys

import pytest

from cyborg.tests.ports import free_port
from cyborg.tests.service import PATIENCE

pytestmark = pytest.mark.usefixtures("database")

_LOADED = "sorted(name for name in {names} if sys.modules.get(name))"
_NAMES = ("eventlet", "openstack")
_DATABASE = ("alembic", "cyborg.db", "sqlalchemy")
_CLIENT = "{'REMOTE_ADDR': '127.0.0.1'}"
_REQUEST = f"webob.Request.blank('/v2/devices', {_CLIENT}).get_response"

#: Runs a service, and stops it as soon as it shows these words there.
_SERVICE = """
import os, signal, sys, threading, time, urllib.request
from oslo_config import cfg
from cyborg.peers import clients
from cyborg.cmd import {command}

def shown():
    try:
        return urllib.request.urlopen("http://127.0.0.1:{port}/{path}").read().decode()
    except OSError:
        return ""

def look():
    try:
        while {words!r} not in shown():
            time.sleep(0.05)
        print({loaded})
        clients.proxy(cfg.CONF, 'placement')
        print({loaded})
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look, daemon=True).start()
sys.exit({command}.main(sys.argv[1:]))
"""


@pytest.fixture
def config(tmp_path: pathlib.Path, database_url: str) -> pathlib.Path:
    path = tmp_path / "cyborg.conf"
    path.write_text(f"""
[DEFAULT]
transport_url = fake://
host = host-1
state_path = {tmp_path}
[database]
connection = {database_url}
[api]
auth_strategy = noauth
[agent]
enabled_drivers = fake_driver
[placement]
auth_type = none
endpoint = http://127.0.0.1:9
""")
    return path


def run(code: str, config: pathlib.Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, "--config-file", str(config)],
        stdout=subprocess.PIPE,
        timeout=PATIENCE / 3,
        check=True,
        text=True,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("[")]


def test_the_wsgi_application_loads_neither(config: pathlib.Path) -> None:
    code = (
        "import sys, webob; from cyborg.wsgi.api import application;"
        f"assert {_REQUEST}(application).status_code == 200; print({_LOADED.format(names=_NAMES)})"
    )
    assert run(code, config) == ["[]"]


@pytest.mark.parametrize(
    ("command", "words", "names"),
    [
        ("api", '"devices"', _NAMES),
        ("agent", 'cyborg_agent_last_timestamp_seconds{event="pass"}', (*_NAMES, *_DATABASE)),
        ("conductor", "cyborg_database_up 1.0", _NAMES),
    ],
)
def test_a_service_starts_and_stops_and_loads_openstacksdk_only_to_call_another(
    config, command, words, names
) -> None:
    """Also where its broker says nothing."""
    port, group = free_port(), "api" if command == "api" else "metrics"
    path = "v2/devices" if command == "api" else "metrics"
    loaded = _LOADED.format(names=names)
    code = _SERVICE.format(command=command, port=port, path=path, words=words, loaded=loaded)
    with socket.create_server(("127.0.0.1", 0)) as silent, config.open("a") as file:
        broker = f"rabbit://u:p@127.0.0.1:{silent.getsockname()[1]}/"
        file.write(f"[{group}]\nport = {port}\n[DEFAULT]\ntransport_url = {broker}\n")
        file.flush()
        assert run(code, config) == ["[]", "['openstack']"]
