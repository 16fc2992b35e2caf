# SPDX-License-Identifier: Apache-2.0
"""``cyborg.wsgi.api:application`` for uWSGI, gunicorn, mod_wsgi and the like.

The configuration files are the first of these that are given: ``--config-file`` and
``--config-dir`` in the arguments of the process; ``OS_CYBORG_CONFIG_FILES``, separated by ``;`` and
relative to ``OS_CYBORG_CONFIG_DIR``; ``cyborg.conf`` and ``cyborg-api.conf``, if it is there, in
``OS_CYBORG_CONFIG_DIR``; the usual places. Folders such as ``cyborg.conf.d`` may be beside.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from wsgiref.types import WSGIApplication

from oslo_config import cfg

from cyborg import metrics, process
from cyborg.api import app

LOG = logging.getLogger(__name__)


def config_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command-line arguments that name the configuration; empty for the usual places."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-file", action="append", default=[])
    parser.add_argument("--config-dir", action="append", default=[])
    named, _ = parser.parse_known_args(list(argv))
    if named.config_file or named.config_dir:
        files, folders = named.config_file, named.config_dir
    else:
        files, folders = _of_environ(environ)
    arguments = [("--config-file", file) for file in files]
    arguments += [("--config-dir", folder) for folder in folders]
    return [part for argument in arguments for part in argument]


def _of_environ(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The files and the folders that the environment names, or those of the usual places."""
    folder = environ.get("OS_CYBORG_CONFIG_DIR", "").strip()
    names = environ.get("OS_CYBORG_CONFIG_FILES", "")
    files = [str(pathlib.Path(folder, name.strip())) for name in names.split(";") if name.strip()]
    if not folder:
        return files or cfg.find_config_files("cyborg", "cyborg-api"), []
    own = pathlib.Path(folder)
    if not files:
        files = [str(own / "cyborg.conf"), *map(str, own.glob("cyborg-api.conf"))]
    return files, [str(each) for end in ("", "-api") for each in own.glob(f"cyborg{end}.conf.d")]


def make_application(arguments: Sequence[str]) -> WSGIApplication:
    """The application of this process, with database and messaging configured."""
    conf = cfg.CONF
    process.configure(conf, arguments)
    app.configure(conf)
    for endpoint in metrics.endpoints(conf):
        endpoint.start()
    _compare_threads(conf)
    return app.load(conf)


def _compare_threads(conf: cfg.ConfigOpts) -> None:
    """Warn if requests that wait may take all threads of the server, as far as can be known."""
    uwsgi: Any = sys.modules.get("uwsgi")
    actual = _threads(uwsgi.opt) if uwsgi else None
    location = conf.get_location("threads", group="api")
    if actual is not None and actual != conf.api.threads:
        seen = f"is {conf.api.threads}, but uWSGI has {actual} threads in each process"
    elif actual is None and location and location.location is cfg.Locations.opt_default:
        seen = f"is not set, so {conf.api.threads} threads in each process are assumed"
    else:
        return
    LOG.warning(
        "[api] threads %s. Set it to the number of threads of the WSGI server: otherwise requests "
        "that wait for binds and programs may hold all of them.",
        seen,
    )


def _threads(options: Mapping[str, Any]) -> int | None:
    """The number of threads in uWSGI's options, if it can be read there."""
    given = options.get("threads", 1)
    if isinstance(given, list):
        # It was given more than once, and the last one counts.
        given = given[-1]
    with contextlib.suppress(TypeError, ValueError):
        return int(given)
    return None


# gunicorn ends for a worker with this status. With others it starts workers again and again.
with process.one_sentence(__name__, 3):
    application = make_application(config_arguments(sys.argv[1:], os.environ))
    process.collect_less_garbage()
