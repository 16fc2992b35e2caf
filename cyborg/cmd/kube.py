# SPDX-License-Identifier: Apache-2.0
"""``cyborg-kube``: gives the devices of a node to pods of Kubernetes."""

from __future__ import annotations

import sys

from oslo_config import cfg

from cyborg import process
from cyborg.common import errors, needs
from cyborg.peers import clients

_HELP = (
    "Give the devices of this node to pods of Kubernetes (DRA), until SIGTERM. It reads [kube] of "
    "cyborg.conf. One runs on each node."
)


@process.one_sentence("cyborg-kube")
def main(argv: list[str] | None = None) -> int:
    """Run until a signal asks to stop; return the exit status."""
    conf = cfg.CONF
    process.configure(conf, sys.argv[1:] if argv is None else argv, _HELP)
    try:
        from cyborg.kube import accelerators, service  # noqa: PLC0415 - may not be installed
    except ImportError as exc:
        raise errors.Misconfigured(
            f"{exc.name} is not installed: install Cyborg with its extra kube, from the same wheel "
            "or checkout."
        ) from exc
    clients.require(conf, accelerators.GROUP)
    needs.check(conf, accelerators.GROUP)
    process.run([service.KubeletPlugin(conf)], conf=conf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
