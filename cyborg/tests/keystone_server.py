# SPDX-License-Identifier: Apache-2.0
"""The real Keystone for tests: one for all test processes of a run, which stops with the last."""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from keystoneauth1 import adapter, plugin, session
from keystoneauth1 import loading as ka_loading
from keystoneauth1.identity import v3
from keystonemiddleware import opts as auth_token_opts
from oslo_config import cfg

_PROCESS = pathlib.Path(__file__).with_name("keystone_process.py")
#: Seconds within which Keystone starts, even on a busy machine.
PATIENCE = 300
_POLL = 0.05


@dataclass(frozen=True)
class Keystone:
    """A Keystone that answers at :attr:`url`, and what its administrator knows."""

    url: str
    region: str
    #: Of all users.
    password: str
    admin_user: str
    admin_project: str
    #: Has the role ``service``, by which it may ask about tokens.
    service_user: str
    service_project: str
    expired_service_token: str

    def log_in(self, user: str, project: str | None = None, **scope: Any) -> v3.Password:
        """How a user of the default domain gets a token."""
        if project is not None:
            scope |= {"project_name": project, "project_domain_id": "default"}
        return v3.Password(
            auth_url=self.url,
            username=user,
            password=self.password,
            user_domain_id="default",
            **scope,
        )

    def api(self, plugin: plugin.BaseAuthPlugin | None = None) -> adapter.Adapter:
        """Keystone's API for the cloud's administrator, or for who logs in by ``plugin``."""
        plugin = plugin or self.log_in(self.admin_user, self.admin_project)
        return adapter.Adapter(session.Session(auth=plugin), endpoint_override=self.url)

    def point_at(self, conf: cfg.ConfigOpts) -> None:
        """Let the API that is loaded with ``conf`` have its tokens validated here."""
        conf.set_override("auth_strategy", "keystone", group="api")
        for group, options in auth_token_opts.list_auth_token_opts():
            conf.register_opts(options, group=group)
        options = ka_loading.get_auth_plugin_conf_options("password")
        conf.register_opts(options, group="keystone_authtoken")
        for name, value in {
            "auth_type": "password",
            "auth_url": self.url,
            "www_authenticate_uri": self.url,
            "username": self.service_user,
            "password": self.password,
            "user_domain_id": "default",
            "project_name": self.service_project,
            "project_domain_id": "default",
        }.items():
            conf.set_override(name, value, group="keystone_authtoken")


def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name: str
) -> pathlib.Path:
    """A folder of that name which all test processes of this run have in common."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        # Each of xdist's workers has a folder of its own below the run's.
        base = base.parent
    folder = base / name
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(path: pathlib.Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """While the block runs, no other process holds a lock on the file that excludes this one."""
    with path.open("a") as file:
        fcntl.flock(file, kind)
        yield


def made_once(path: pathlib.Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``make`` returned in the first test process that came here."""
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            path.write_text(json.dumps(make()))
        known: dict[str, Any] = json.loads(path.read_text())
        return known


@pytest.fixture(scope="session")
def keystone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keystone]:
    """Keystone, started by the first test process that needs it."""
    folder = shared(request, tmp_path_factory, "keystone")
    known, users = folder / "known.json", folder / "users"
    # A lock that all who use it share. Keystone wants it alone, and stops when it gets it.
    with locked(users, fcntl.LOCK_SH):
        with locked(folder / "start"):
            if not known.exists():
                _start(known, users)
        yield Keystone(**json.loads(known.read_text()))


def _start(known: pathlib.Path, users: pathlib.Path) -> None:
    output = known.with_name("output")
    command = [sys.executable, str(_PROCESS), str(known), "--while-locked", str(users)]
    with output.open("wb") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + PATIENCE
    while not known.exists():
        assert started.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(_POLL)
