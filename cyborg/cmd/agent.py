# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent``: finds and serves the accelerators of the host it runs on."""

from __future__ import annotations

import sys

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as cyborg_conf
from cyborg import process, rpc, version
from cyborg.agent import service


def main(argv: list[str] | None = None) -> int:
    """Run the agent until it is told to stop, and return the exit status."""
    conf = cfg.CONF
    cyborg_conf.register(conf)
    log.register_options(conf)
    conf(argv if argv is not None else sys.argv[1:], project="cyborg", version=version.VERSION)
    log.setup(conf, "cyborg")
    rpc.configure(conf)
    process.run([service.Agent(conf)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
