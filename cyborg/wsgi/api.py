# SPDX-License-Identifier: Apache-2.0
"""``cyborg.wsgi.api:application`` for uWSGI, gunicorn, mod_wsgi and the like.

The configuration files are the first of these that are given: ``--config-file`` and
``--config-dir`` in the arguments of the process; ``OS_CYBORG_CONFIG_FILES``, separated by ``;`` and
relative to ``OS_CYBORG_CONFIG_DIR``; ``cyborg.conf`` in ``OS_CYBORG_CONFIG_DIR``; the usual places.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from wsgiref.types import WSGIApplication

from oslo_config import cfg

from cyborg import db, metrics, notifications, process, rpc
from cyborg.api import app
from cyborg.db import revision


def config_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command-line arguments that name the configuration; empty for the usual places."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-file", action="append", default=[])
    parser.add_argument("--config-dir", action="append", default=[])
    named, _ = parser.parse_known_args(list(argv))
    if named.config_file or named.config_dir:
        files, folders = named.config_file, named.config_dir
    else:
        files, folders = _files_of_environ(environ), []
    arguments = [("--config-file", file) for file in files]
    arguments += [("--config-dir", folder) for folder in folders]
    return [part for argument in arguments for part in argument]


def _files_of_environ(environ: Mapping[str, str]) -> list[str]:
    folder = environ.get("OS_CYBORG_CONFIG_DIR", "").strip()
    names = environ.get("OS_CYBORG_CONFIG_FILES", "")
    files = [name.strip() for name in names.split(";") if name.strip()]
    if folder and not files:
        files = ["cyborg.conf"]
    return [str(pathlib.Path(folder, file)) for file in files]


def make_application(arguments: Sequence[str]) -> WSGIApplication:
    """The application of this process, with database and messaging configured."""
    conf = cfg.CONF
    process.configure(conf, arguments)
    db.configure(conf)
    revision.check_if_reachable()
    rpc.configure(conf)
    notifications.configure(conf)
    app.tell_conductors()
    for endpoint in metrics.endpoints(conf):
        endpoint.start()
    return app.load(conf)


with process.one_sentence(__name__):
    application = make_application(config_arguments(sys.argv[1:], os.environ))
    process.collect_less_garbage()
