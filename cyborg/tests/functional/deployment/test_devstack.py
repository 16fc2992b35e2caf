# SPDX-License-Identifier: Apache-2.0
"""The devstack plugin, phase by phase, beside a stand-in for devstack.

The options it writes are read by Cyborg's own configuration, and it makes a real schema.
"""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg import db

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[4]
STUBS = ROOT / "cyborg/tests/data/devstack_stubs.sh"
PHASES = ("stack install", "stack post-config", "stack extra", "unstack", "clean")


class Devstack:
    """One run of devstack with its files in a directory."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.etc = folder / "etc"
        for name in ("nova.conf", "nova-cpu.conf"):
            (folder / name).touch()

    def run(self, *phases: str, settings: str = "") -> list[str]:
        """Go through phases; what devstack would have been asked to do."""
        calls = self._folder / "calls"
        calls.unlink(missing_ok=True)
        script = [
            "set -o errexit -o nounset -o pipefail",
            f"source {STUBS}",
            settings,
            f"source {ROOT / 'devstack/settings'}",
            *(f"source {ROOT / 'devstack/plugin.sh'} {phase}" for phase in phases),
        ]
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            env={
                "PATH": os.environ["PATH"],
                "SITE": str(self._folder),
                "CALLS": str(calls),
                "PROGRAMS": str(pathlib.Path(sys.executable).parent),
                "CYBORG_CONF_DIR": str(self.etc),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return calls.read_text().splitlines()

    def options(self, name: str) -> cfg.ConfigOpts:
        """A file as Cyborg reads it."""
        conf = cfg.ConfigOpts()
        cyborg_conf.register(conf)
        db.register(conf)
        conf(args=["--config-file", str(self.etc / name)], project="cyborg")
        return conf


@pytest.fixture
def devstack(tmp_path: pathlib.Path) -> Devstack:
    return Devstack(tmp_path)


def test_all_phases_on_one_host(devstack: Devstack, tmp_path: pathlib.Path) -> None:
    calls = devstack.run(*PHASES[:3])

    assert "setup_develop" in "\n".join(calls)
    assert "create_service_user cyborg admin" in calls
    assert (
        "get_or_create_endpoint accelerator RegionOne http://192.0.2.1/accelerator/v2" in calls
    )
    started = [call.split()[1] for call in calls if call.startswith("run_process")]
    assert started == ["cyborg-api", "cyborg-cond", "cyborg-agent"]
    _assert_each_has_what_it_needs_and_no_more(devstack, tmp_path)

    ended = devstack.run(*PHASES[3:])

    stopped = {call.split()[1] for call in ended if call.startswith("stop_process")}
    assert stopped == set(started)
    assert not devstack.etc.exists()


def _assert_each_has_what_it_needs_and_no_more(devstack: Devstack, folder: pathlib.Path) -> None:
    controller = devstack.options("cyborg.conf")
    assert controller.api.public_endpoint == "http://192.0.2.1/accelerator"
    for group in ("placement", "nova"):
        assert controller[group].auth_type == "password"
        assert controller[group].region_name == "RegionOne"
    agent = devstack.options("cyborg-agent.conf")
    assert agent.agent.enabled_drivers == ["fake_driver"]
    assert agent.agent.resource_provider_name == socket.gethostname()
    text = (devstack.etc / "cyborg-agent.conf").read_text()
    assert "secret@192.0.2.1:5672" in text
    assert "[database]" not in text
    # Of other services it reads bitstreams only.
    assert [line for line in text.splitlines() if line in {"[placement]", "[nova]"}] == []
    assert agent.glance.auth_type == "password"
    tables = sa.inspect(sa.create_engine(f"sqlite:///{folder / 'cyborg.sqlite'}"))
    assert {"arqs", "devices", "work"} <= set(tables.get_table_names())
    for name in ("nova.conf", "nova-cpu.conf"):
        assert "send_service_user_token = True" in (folder / name).read_text()


def test_the_api_may_listen_by_itself(devstack: Devstack) -> None:
    calls = devstack.run(*PHASES[:3], settings="CYBORG_USE_UWSGI=False CYBORG_CONDUCTORS=2")

    assert "get_or_create_endpoint accelerator RegionOne http://192.0.2.1:6666/v2" in calls
    (api,) = [call for call in calls if call.startswith("run_process cyborg-api ")]
    assert "/cyborg-api --config-file" in api
    assert devstack.options("cyborg.conf").api.port == 6666
    assert any(call.startswith("run_process cyborg-cond-2 ") for call in calls)


def test_a_compute_host_gets_an_agent_only(devstack: Devstack) -> None:
    only_agent = 'function enable_service { ENABLED=" cyborg-agent "; }'

    calls = devstack.run(*PHASES[:3], settings=only_agent)

    started = [call.split()[1] for call in calls if call.startswith("run_process")]
    assert started == ["cyborg-agent"]
    assert not (devstack.etc / "cyborg.conf").exists()
    assert not any(call.startswith(("recreate_database", "get_or_create")) for call in calls)


def test_nothing_is_done_where_cyborg_is_not_enabled(devstack: Devstack) -> None:
    calls = devstack.run(*PHASES, settings="function enable_service { :; }")

    assert [call for call in calls if not call.startswith("define_plugin")] == []
