# SPDX-License-Identifier: Apache-2.0
"""``cyborg-nova-watcher``: reports servers for which Nova found no host as function misses."""

from __future__ import annotations

import sys

from oslo_config import cfg

from cyborg import process
from cyborg.common import needs
from cyborg.nova import watcher
from cyborg.peers import clients

_HELP = (
    "Report to function pools that Nova found no host for a server, until SIGTERM. "
    "It reads [nova_watcher] of cyborg.conf. Any number may run."
)


@process.one_sentence("cyborg-nova-watcher")
def main(argv: list[str] | None = None) -> int:
    """Run until a signal asks to stop; return the exit status."""
    conf = cfg.CONF
    process.configure(conf, sys.argv[1:] if argv is None else argv, _HELP)
    clients.require(conf, watcher.GROUP)
    needs.check(conf, watcher.GROUP)
    process.run([watcher.Watcher(conf)], conf=conf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
