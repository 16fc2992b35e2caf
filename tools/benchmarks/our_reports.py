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
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from cyborg import process, rpc
from cyborg.tests import hosts


def deliver(conf: cfg.ConfigOpts, report: rpc.HostReport) -> None:
    """Send a report until a conductor has it, as an agent does."""
    while True:
        try:
            return rpc.report(conf, report)
        except rpc.ReportFailed as exc:
            print(exc, file=sys.stderr, flush=True)
            time.sleep(1)


def main() -> None:
    """Take requests as lines of JSON; answer each when all its hosts are stored."""
    conf = cfg.CONF
    process.configure(conf, ["--config-file", sys.argv[1]])
    rpc.configure(conf)
    stored: dict[str, tuple[int, rpc.UnchangedReport]] = {}
    began = int(time.time())
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)

        def report(host: str, asked: dict[str, Any] = asked, number: int = number) -> None:
            count, known = stored.get(host, (0, None))
            # As the agent does, which compares what it found with what it has delivered.
            again = known is not None and count == asked["devices"]
            if again and rpc.report_unchanged(conf, replace(known, counter=number)):
                return
            made = (
                hosts.device(
                    f"{each:04d}", hosts.deployable(f"{host}_{each:04d}", range(asked["handles"]))
                )
                for each in range(asked["devices"])
            )
            said = hosts.report(*made, host=host, order=(began, number))
            deliver(conf, said)
            stored[host] = asked["devices"], said.unchanged()

        with futures.ThreadPoolExecutor(asked["at_once"]) as pool:
            list(pool.map(report, asked["hosts"]))
        print("done", flush=True)


if __name__ == "__main__":
    main()
