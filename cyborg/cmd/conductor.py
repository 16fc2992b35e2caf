# SPDX-License-Identifier: Apache-2.0
"""``cyborg-conductor``: binds, writes to Placement, tells Nova. Any number of them may run."""

from __future__ import annotations

import sys

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as cyborg_conf
from cyborg import db, process, rpc, version
from cyborg.conductor import service


def main(argv: list[str] | None = None) -> int:
    """Work until a signal asks to stop, and return the exit status."""
    conf = cfg.CONF
    cyborg_conf.register(conf)
    log.register_options(conf)
    conf(argv if argv is not None else sys.argv[1:], project="cyborg", version=version.VERSION)
    log.setup(conf, "cyborg")
    db.configure(conf)
    rpc.configure(conf)
    process.run([service.ConductorService(conf)])
    rpc.close()
    db.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
