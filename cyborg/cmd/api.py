# SPDX-License-Identifier: Apache-2.0
"""``cyborg-api``: the REST API on the built-in HTTP server."""

from __future__ import annotations

import sys

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as cyborg_conf
from cyborg import db, policy, process, rpc, version
from cyborg.api import app, server

LOG = log.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal asks to stop, and return the exit status."""
    conf = cfg.CONF
    cyborg_conf.register(conf)
    log.register_options(conf)
    conf(argv if argv is not None else sys.argv[1:], project="cyborg", version=version.VERSION)
    log.setup(conf, "cyborg")
    db.configure(conf)
    rpc.configure(conf)
    try:
        http = server.Server(conf, app.load(conf), str(conf.api.host_ip), conf.api.port)
        http.listen()
    except (server.UnsafeAddress, policy.UnreadableRules, OSError) as exc:
        LOG.critical("Cannot serve: %s", exc)
        return 1
    process.run([http])
    rpc.close()
    db.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
