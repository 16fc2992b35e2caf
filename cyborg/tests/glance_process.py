# SPDX-License-Identifier: Apache-2.0
"""The real Glance as a process of its own, since its configuration is global.

``python glance_process.py FOLDER`` serves a Glance without users on the loopback, with its images
and its database in FOLDER, and writes its URL to FOLDER/url. It stops when its standard input ends.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

from cheroot import wsgi

_CONFIG = """
[DEFAULT]
log_file = {folder}/glance.log
enabled_backends = fs:file
worker_self_reference_url = {url}
enabled_import_methods = []
[database]
connection = sqlite:///{folder}/glance.sqlite
[fs]
filesystem_store_datadir = {folder}/images
[glance_store]
default_backend = fs
[os_glance_staging_store]
filesystem_store_datadir = {folder}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {folder}/tasks
[oslo_policy]
enforce_new_defaults = false
enforce_scope = false
policy_file = {folder}/policy.yaml
[paste_deploy]
config_file = {paste}
"""


def main() -> None:
    """Serve until the standard input ends."""
    folder = pathlib.Path(sys.argv.pop())
    # One request at a time: SQLite refuses a second writer.
    server = wsgi.Server(("127.0.0.1", 0), None, numthreads=1)
    server.prepare()
    url = f"http://127.0.0.1:{server.bind_addr[1]}"
    for name in ("images", "staging", "tasks"):
        (folder / name).mkdir()
    paste = pathlib.Path(sys.prefix, "etc/glance/glance-api-paste.ini")
    config = _CONFIG.format(folder=folder, url=url, paste=paste)
    (folder / "glance-api.conf").write_text(config)
    (folder / "policy.yaml").write_text('"publicize_image": ""\n')
    os.environ["OS_GLANCE_CONFIG_DIR"] = str(folder)
    server.wsgi_app = _load(folder)
    threading.Thread(target=server.serve, daemon=True).start()
    draft = folder / "url.new"
    draft.write_text(url)
    draft.replace(folder / "url")
    sys.stdin.read()
    server.stop()
    # A thread of Glance's own would wait for images that nobody will send.
    os._exit(0)


def _load(folder: pathlib.Path) -> object:
    # Its configuration is global and knows the commands of one program only.
    sync = "import sys; from glance.cmd import manage; sys.exit(manage.main())"
    arguments = ["--config-file", str(folder / "glance-api.conf"), "db_sync"]
    subprocess.run([sys.executable, "-c", sync, *arguments], check=True)
    from glance.wsgi import api  # noqa: PLC0415 - it reads the environment when imported

    return api.application


if __name__ == "__main__":
    main()
