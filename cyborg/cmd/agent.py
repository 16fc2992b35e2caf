# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent``: finds and serves the accelerators of the host it runs on."""

from __future__ import annotations

import sys

from oslo_config import cfg

from cyborg import process, rpc
from cyborg.agent import service


def main(argv: list[str] | None = None) -> int:
    """Run the agent until it is told to stop, and return the exit status."""
    conf = cfg.CONF
    process.configure(conf, sys.argv[1:] if argv is None else argv)
    rpc.configure(conf)
    process.run([service.Agent(conf)], conf=conf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
