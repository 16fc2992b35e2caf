# SPDX-License-Identifier: Apache-2.0
"""The real Keystone as a process of its own, since its configuration is global.

``python keystone_process.py FILE`` makes a Keystone with its database next to FILE, serves it on
the loopback, and then writes to FILE, as JSON, how to reach it. It stops at a signal or, with
``--while-locked``, when nobody locks that file any more, also where they were killed. FILE is gone
then. Nothing of Cyborg is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import pathlib
import signal
import sys
import threading
import uuid
from collections.abc import Iterator

import keystone.conf
import keystone.server
from cheroot import wsgi
from keystone.cmd.bootstrap import Bootstrapper
from keystone.common import fernet_utils, provider_api
from keystone.common.sql import upgrades
from keystone.server.flask import application, core

#: What a client must know besides the URL. All users made here have the one password; the service's
#: user has the role ``service``, by which it may ask about tokens.
_KNOWN = {
    "region": "RegionOne",
    "password": "secret",
    "admin_user": "admin",
    "admin_project": "admin",
    "service_user": "cyborg",
    "service_project": "service",
}

_CONFIG = """
[DEFAULT]
log_file = {folder}/keystone.log
# A token is validated in a tenth of the time.
[cache]
enabled = true
backend = oslo_cache.dict
[credential]
key_repository = {folder}/credential-keys
[database]
connection = sqlite:///{folder}/keystone.sqlite
sqlite_synchronous = false
[fernet_receipts]
key_repository = {folder}/fernet-keys
[fernet_tokens]
key_repository = {folder}/fernet-keys
[identity]
password_hash_rounds = 4
"""


def main() -> int:
    """Serve, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--while-locked", type=pathlib.Path)
    options = parser.parse_args()
    # Keystone reads the arguments of the process, too.
    del sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # One request at a time: SQLite refuses a second writer, and Keystone answers 500 then.
    http = wsgi.Server(("127.0.0.1", options.port), None, numthreads=1)
    http.prepare()
    url = f"http://127.0.0.1:{http.bind_addr[1]}/v3"
    expired = _make(options.file.resolve().parent, url)
    http.wsgi_app = core.setup_app_middleware(application.application_factory("public"))
    threading.Thread(target=http.serve, daemon=True).start()
    known = {"url": url, **_KNOWN, "expired_service_token": expired}
    draft = options.file.with_suffix(".new")
    draft.write_text(json.dumps(known))
    draft.replace(options.file)
    with _end(options.while_locked):
        # Whoever comes while this has the lock waits, and then sees that a new one is needed.
        options.file.unlink()
    http.stop()
    return 0


def _make(folder: pathlib.Path, url: str) -> str:
    """Make database, keys, what ``keystone-manage bootstrap`` makes, and the service's user.

    Returns an expired token of the latter.
    """
    config = folder / "keystone.conf"
    config.write_text(_CONFIG.format(folder=folder))
    keystone.server.configure(config_files=[str(config)])
    upgrades.offline_sync_database_to_version()
    for group in ("fernet_tokens", "credential"):
        path = keystone.conf.CONF[group].key_repository
        keys = fernet_utils.FernetUtils(path, 1, group)
        keys.create_key_directory()
        keys.initialize_key_repository()
    # Making it loads Keystone's parts, which must be done once.
    bootstrapper = Bootstrapper()
    bootstrapper.admin_username = bootstrapper.admin_role_name = _KNOWN["admin_user"]
    bootstrapper.admin_password = _KNOWN["password"]
    bootstrapper.project_name = _KNOWN["admin_project"]
    bootstrapper.service_name, bootstrapper.region_id = "keystone", _KNOWN["region"]
    bootstrapper.public_url = bootstrapper.internal_url = bootstrapper.admin_url = url
    bootstrapper.bootstrap()
    return _make_service_user(bootstrapper)


def _make_service_user(bootstrapper: Bootstrapper) -> str:
    providers = provider_api.ProviderAPIs
    domain, project = bootstrapper.default_domain_id, uuid.uuid4().hex
    name = _KNOWN["service_project"]
    providers.resource_api.create_project(
        project, {"id": project, "name": name, "domain_id": domain, "enabled": True}
    )
    name, password = _KNOWN["service_user"], _KNOWN["password"]
    user = providers.identity_api.create_user(
        {"name": name, "password": password, "domain_id": domain, "enabled": True}
    )["id"]
    providers.assignment_api.add_role_to_user_and_project(
        user, project, bootstrapper.service_role_id
    )
    # No client can ask for a token that has expired already.
    ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    token = providers.token_provider_api.issue_token(
        user, ["password"], expires_at=f"{ago:%Y-%m-%dT%H:%M:%S}.000000Z", project_id=project
    )
    return str(token.id)


@contextlib.contextmanager
def _end(locked: pathlib.Path | None) -> Iterator[None]:
    """Wait for a signal, or until nobody locks the file, which then is locked in the block."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(KeyboardInterrupt):
            if locked is None:
                signal.pause()
            else:
                fcntl.flock(stack.enter_context(locked.open()), fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
