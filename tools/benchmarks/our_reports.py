# SPDX-License-Identifier: Apache-2.0
"""Report hosts to this project's conductor, as their agents would: see compare.py.

    our_reports.py CONFIG

What has not changed since it was stored is reported as unchanged.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent import futures
from typing import Any

from oslo_config import cfg

from cyborg import process, rpc
from cyborg.tests import hosts


def main() -> None:
    """Take requests as lines of JSON; answer each when all its hosts are stored."""
    conf = cfg.CONF
    process.configure(conf, ["--config-file", sys.argv[1]])
    rpc.configure(conf)
    stored: dict[str, int] = {}
    began = int(time.time())
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)

        def report(host: str, asked: dict[str, Any] = asked, number: int = number) -> None:
            made = (
                hosts.device(
                    f"{each:04d}", hosts.deployable(f"{host}_{each:04d}", range(asked["handles"]))
                )
                for each in range(asked["devices"])
            )
            said = hosts.report(*made, host=host, order=(began, number))
            same = stored.get(host) == asked["devices"]
            if not (same and rpc.report_unchanged(conf, said)):
                rpc.report(conf, said)
            stored[host] = asked["devices"]

        with futures.ThreadPoolExecutor(asked["at_once"]) as pool:
            list(pool.map(report, asked["hosts"]))
        print("done", flush=True)


if __name__ == "__main__":
    main()
