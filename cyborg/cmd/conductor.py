# SPDX-License-Identifier: Apache-2.0
"""``cyborg-conductor``: binds, writes to Placement, sends events to Nova. Any number may run."""

from __future__ import annotations

import sys

from oslo_config import cfg

from cyborg import db, metrics, notifications, process, rpc
from cyborg.common import needs
from cyborg.conductor import deployment_signer, gauges, service
from cyborg.db import revision
from cyborg.peers import clients

_HELP = (
    "Bind accelerators, write to Placement and send events to Nova, until SIGTERM. "
    "It reads [database], [placement], [nova] and [glance] of cyborg.conf."
)


@process.one_sentence("cyborg-conductor")
def main(argv: list[str] | None = None) -> int:
    """Run until a signal asks to stop; return the exit status."""
    conf = cfg.CONF
    process.configure(conf, sys.argv[1:] if argv is None else argv, _HELP)
    needs.check(conf, *needs.CALLED)
    db.configure(conf)
    revision.check_if_reachable()
    rpc.configure(conf)
    own = deployment_signer.DeploymentSigner(conf)
    own.start()
    rpc.use_signer(rpc.CONDUCTOR, own)
    notifications.configure(conf)
    shown = metrics.endpoints(conf, gauges.Gauges(conf))
    process.run([*shown, service.ConductorService(conf)], conf=conf)
    rpc.close()
    clients.close()
    db.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
