# SPDX-License-Identifier: Apache-2.0
"""Time passes of every driver of PCI devices over whatever ``/sys`` shows: see discovery.py."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys

from oslo_config import cfg
from timing import NOT_OF_PCI, seconds

from cyborg import conf as cyborg_conf
from cyborg.agent import discovery
from cyborg.drivers import registry


def main() -> None:
    """Print the seconds of each pass after the first as JSON."""
    logging.disable()
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], default_config_files=[sys.argv[1]], default_config_dirs=[])
    names = {each.name for each in importlib.metadata.entry_points(group=registry.NAMESPACE)}
    conf.set_override("enabled_drivers", sorted(names - NOT_OF_PCI), group="agent")
    passes = discovery.Discovery("host-1", registry.load(conf).drivers, timeout=600)
    found = passes.run()
    # Drivers that need a list have none here.
    failed = {name: each for name, each in found.errors.items() if "is not set" not in each}
    if failed:
        sys.exit(f"drivers failed: {failed}")
    times = [seconds(passes.run) for _ in range(int(sys.argv[2]))]
    devices = sum(map(len, found.devices.values()))
    print(json.dumps({"drivers": len(found.devices), "devices": devices, "times": times}))


if __name__ == "__main__":
    main()
