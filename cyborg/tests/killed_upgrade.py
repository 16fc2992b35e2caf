# SPDX-License-Identifier: Apache-2.0
"""``cyborg-dbsync upgrade`` that dies at a statement: the arguments are the URL and its number.

An odd one is carried out before the process dies, an even one is not. Exit status 0 says that all
was done before.
"""

from __future__ import annotations

import os
import signal
import sys

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import options as db_options

from cyborg.cmd import dbsync


def main(url: str, last: int) -> int:
    """Run it."""
    seen = 0

    def count(*_arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    event = "after_cursor_execute" if last % 2 else "before_cursor_execute"
    sa.event.listen(sa.Engine, event, count)
    cfg.CONF.register_opts(db_options.database_opts, group="database")
    cfg.CONF.set_override("connection", url, group="database")
    return dbsync.main(["upgrade"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
