# SPDX-License-Identifier: Apache-2.0
"""``cyborg-api``: the REST API on the built-in HTTP server."""

from __future__ import annotations

import sys

from oslo_config import cfg
from oslo_log import log

from cyborg import db, metrics, process, rpc
from cyborg.api import app, server
from cyborg.common import errors
from cyborg.peers import clients

LOG = log.getLogger(__name__)

_HELP = (
    "Serve the REST API of Cyborg with the built-in HTTP server, until SIGTERM. "
    "It reads [api], [database] and [keystone_authtoken] of cyborg.conf."
)


@process.one_sentence("cyborg-api")
def main(argv: list[str] | None = None) -> int:
    """Serve until a signal asks to stop; return the exit status."""
    conf = cfg.CONF
    process.configure(conf, sys.argv[1:] if argv is None else argv, _HELP)
    app.configure(conf)
    try:
        http = server.Server(conf, app.load(conf), str(conf.api.host_ip), conf.api.port)
        http.listen()
    except (errors.Misconfigured, OSError) as exc:
        LOG.critical("Cannot serve: %s", exc)
        return 1
    process.run([*metrics.endpoints(conf), http], conf=conf)
    rpc.close()
    clients.close()
    db.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
