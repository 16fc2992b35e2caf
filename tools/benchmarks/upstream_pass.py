# SPDX-License-Identifier: Apache-2.0
"""Time passes of the released upstream's drivers: run by a Python that has it installed.

What they start as root they may run themselves here, which spares them a process each time.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys

from oslo_config import cfg
from timing import NOT_OF_PCI, seconds

from cyborg import conf, privsep


def main() -> None:
    """Print the seconds of each pass after the first as JSON."""
    logging.disable()
    privsep.sys_admin_pctxt.set_client_mode(False)
    cfg.CONF([], project=conf.__name__.partition(".")[0], default_config_files=[sys.argv[1]])
    points = importlib.metadata.entry_points(group="cyborg.accelerator.driver")
    drivers = [each.load()() for each in points if each.name not in NOT_OF_PCI]
    found = [each.discover() for each in drivers]
    times = [
        seconds(lambda: [each.discover() for each in drivers]) for _ in range(int(sys.argv[2]))
    ]
    devices = sum(map(len, found))
    print(json.dumps({"drivers": len(drivers), "devices": devices, "times": times}))


if __name__ == "__main__":
    main()
