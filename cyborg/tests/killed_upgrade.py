# SPDX-License-Identifier: Apache-2.0
"""``cyborg-dbsync upgrade`` that dies at a statement, again and again.

The arguments are the database's URL and a file for the logs. The revisions are those of
``next_release`` too. For each line that is read, a number and a revision, an upgrade to that runs
in a process of its own, which is killed at the statement of that number, counted from its start: an
odd one is carried out before, an even one is not. Its exit status is printed; 0 says that all was
done before. A fork of this process takes a tenth of the time of a new one.
"""

from __future__ import annotations

import os
import signal
import sys

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import options as db_options

from cyborg.cmd import dbsync
from cyborg.db import schema
from cyborg.tests import next_release


def main(url: str, log: str) -> None:
    """Run upgrades until the end of the input."""
    schema.FURTHER.append(next_release.FOLDER)
    cfg.CONF.register_opts(db_options.database_opts, group="database")
    cfg.CONF.set_override("connection", url, group="database")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            number, revision = line.split()
            _upgrade(int(number), revision, log)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _upgrade(last: int, revision: str, log: str) -> None:
    """Be the process that dies."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    seen = 0

    def count(*_arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, f"{'after' if last % 2 else 'before'}_cursor_execute", count)
    status = 1
    try:
        status = dbsync.main(["upgrade", "--revision", revision])
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
