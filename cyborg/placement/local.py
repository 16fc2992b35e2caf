# SPDX-License-Identifier: Apache-2.0
"""The real Placement inside this process, on an SQLite file of its own.

For ``cyborg-standalone`` and for tests. Placement comes with the ``standalone`` extra, so it is
imported only in :func:`load_app`.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keystoneauth1 import loading as ka_loading
from oslo_config import cfg
from oslo_db.sqlalchemy import enginefacade

from cyborg.db import sqlite

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

DATABASE = "placement.sqlite"

#: What Placement's ``noauth2`` takes for an administrator.
_TOKEN = "admin"  # noqa: S105


def load_app(state_dir: pathlib.Path) -> WSGIApplication:
    """Placement on the database in ``state_dir``, which is made or upgraded first.

    Placement keeps its database in module globals, so a process has only one: a second call also
    moves the application of the first call to the second directory.

    :raises ImportError: the package ``openstack-placement`` is not installed
    """
    from placement import deploy, policy  # noqa: PLC0415 - an extra, and slow to import
    from placement.db.sqlalchemy import migration  # noqa: PLC0415
    from placement.objects import resource_class, trait  # noqa: PLC0415

    path = state_dir / DATABASE
    sqlite.make_private(str(path))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # Kept in the file: readers and the one writer do not wait for each other.
        connection.execute("PRAGMA journal_mode=WAL")
    conf = _options(path)
    _bind(conf)
    policy.reset()
    trait._TRAITS_SYNCED = False  # noqa: SLF001 - true for the last database only
    resource_class._RESOURCE_CLASSES_SYNCED = False  # noqa: SLF001
    migration.upgrade("head")
    return _ForCyborg(deploy.loadapp(conf))


def _options(path: pathlib.Path) -> cfg.ConfigOpts:
    """Placement's own options. No file of this machine is read."""
    from placement import conf as placement_conf  # noqa: PLC0415

    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf.set_default("connection", f"sqlite:///{path}", group="placement_database")
    conf(args=[], project="placement", default_config_files=[], default_config_dirs=[])
    conf.set_override("auth_strategy", "noauth2", group="api")
    conf.set_override("policy_file", str(path.with_name("placement-policy.yaml")), "oslo_policy")
    conf.set_override("policy_dirs", [], group="oslo_policy")
    return conf


def _bind(conf: cfg.ConfigOpts) -> None:
    from placement import db_api  # noqa: PLC0415

    options = dict(conf.placement_database.items())
    # Placement's own option; all others of the group are options of oslo.db.
    del options["sync_on_startup"]
    manager = enginefacade.transaction_context()
    manager.configure(**options)
    db_api.placement_context_manager.dispose_pool()
    db_api.placement_context_manager.patch_factory(manager)


class _ForCyborg:
    """Gives the administrator of ``noauth2`` the role that Cyborg's user has in a cloud too.

    It lets one request write at a time: SQLite has one writer, and makes others fail.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_X_AUTH_TOKEN") == _TOKEN:
            environ.setdefault("HTTP_X_ROLES", "admin,service")
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return self._app(environ, start_response)
        with self._lock:
            return self._app(environ, start_response)


def point_at(conf: cfg.ConfigOpts, url: str) -> None:
    """Set ``[placement]`` of Cyborg's ``conf`` to the loaded application, served at ``url``."""
    options: list[Any] = ka_loading.get_auth_plugin_conf_options("admin_token")
    conf.register_opts(options, group="placement")
    conf.set_override("auth_type", "admin_token", group="placement")
    conf.set_override("endpoint", url, group="placement")
    conf.set_override("token", _TOKEN, group="placement")
