#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long one pass of all drivers takes on simulated hosts, beside the released upstream.

    python -m venv /tmp/upstream && /tmp/upstream/bin/pip install openstack-cyborg==17.0.0
    tools/benchmarks/discovery.py --upstream-python /tmp/upstream/bin/python

Needs root (the fake ``/sys`` is mounted where only the measured process sees it) and lspci, which
upstream calls (Debian package pciutils). Both see the same files in the same run, turn by turn,
without logging; of the passes the best counts. Exit status 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from cyborg.tests.simulated import layout, preload, tree

HERE = pathlib.Path(__file__).resolve().parent
#: The hosts: cards, virtual functions and how many times faster than upstream a pass must be.
HOSTS: dict[str, tuple[list[dict[str, Any]], float | None]] = {
    "8 cards": (
        [
            {"card": "a100", "count": 2},
            {"card": "t4"},
            {"card": "n3000"},
            {"card": "pac-a10"},
            {"card": "ascend310"},
            {"card": "qat-c62x"},
            {"card": "x710"},
        ],
        20,
    ),
    "64 functions": (
        [
            {"card": "a100", "count": 2, "vfs": 15},
            {"card": "qat-c62x", "vfs": 15},
            {"card": "x710", "vfs": 15},
        ],
        None,
    ),
    "256 functions": (
        [
            {"card": "a100", "count": 8, "vfs": 15},
            {"card": "qat-c62x", "count": 4, "vfs": 15},
            {"card": "x710", "count": 4, "vfs": 15},
        ],
        None,
    ),
    "512 functions": (
        [
            {"card": "a100", "count": 16, "vfs": 15},
            {"card": "qat-c62x", "count": 8, "vfs": 15},
            {"card": "x710", "count": 8, "vfs": 15},
        ],
        4,
    ),
}
#: How much more a function may cost on the largest host than on the one of 64.
LINEAR = 1.5
#: pci_driver does nothing without a list; this one matches nothing that another driver takes.
CONFIGURATION = """
[DEFAULT]
host = host-1
[pci]
passthrough_whitelist = {"vendor_id": "1d0f"}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """The best pass: wall-clock and processor time in milliseconds."""

    wall: float
    cpu: float


def main() -> int:
    """Measure every host, print a table, and say which promises are not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream-python", help="a Python with the released upstream installed")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each of the two has")
    parser.add_argument("--passes", type=int, default=20, help="passes that each turn has")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("only root can mount a fake /sys")
    print(
        f"{'':14}{'ours ms':>9}{'cpu ms':>9}{'upstream ms':>13}{'cpu ms':>9}"
        f"{'ratio':>8}{'of cpu':>8}"
    )
    broken = []
    costs: dict[str, float] = {}
    for name, (cards, promise) in HOSTS.items():
        ours, upstream, functions = measure(cards, arguments)
        costs[name] = ours.cpu / functions
        line = f"{name:14}{ours.wall:9.1f}{ours.cpu:9.1f}"
        if upstream is not None:
            ratio = upstream.wall / ours.wall
            line += f"{upstream.wall:13.1f}{upstream.cpu:9.1f}{ratio:8.1f}"
            line += f"{upstream.cpu / ours.cpu:8.1f}"
            if promise is not None and ratio < promise:
                broken.append(f"{name}: {ratio:.1f} times as fast, {promise} are promised")
        print(line, flush=True)
    growth = costs["512 functions"] / costs["64 functions"]
    print(f"a function costs {growth:.2f} times as much processor time among 512 as among 64")
    if growth > LINEAR:
        broken.append(f"not linear: {growth:.2f}, {LINEAR} is promised")
    for sentence in broken:
        print(sentence)
    return 1 if broken else 0


def measure(
    cards: list[dict[str, Any]], arguments: argparse.Namespace
) -> tuple[Result, Result | None, int]:
    """Our best pass and upstream's over a host with these cards, and how many functions it has."""
    with preload.folder() as root:
        host = tree.Tree(root, layout.load({"cards": cards})).build()
        functions = len(host.files.names("bus/pci/devices"))
        configuration = root / "cyborg.conf"
        configuration.write_text(CONFIGURATION)
        ours, upstream = [], []
        for _ in range(arguments.rounds):
            command = ["our_pass.py", str(configuration), str(arguments.passes)]
            ours.append(turn(root, sys.executable, command))
            if arguments.upstream_python:
                command[0] = "upstream_pass.py"
                upstream.append(turn(root, arguments.upstream_python, command))
    best = min(upstream, key=lambda each: each.wall) if upstream else None
    return min(ours, key=lambda each: each.wall), best, functions


def turn(root: pathlib.Path, python: str, command: list[str]) -> Result:
    """The best pass of one process that takes the tree for its /sys."""
    script = f'mount --bind "{root}/sys" /sys && exec "$@"'
    enter = ["unshare", "--mount", "--", "sh", "-c", script, "sh"]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*enter, python, str(HERE / command[0]), *command[1:]],
        env={**environment, "SYSTEMD_DEVICE_VERIFY_SYSFS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        cwd=tempfile.gettempdir(),
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    wall = min(wall for wall, _cpu in answer["times"])
    cpu = min(cpu for _wall, cpu in answer["times"])
    return Result(wall * 1000, cpu * 1000)


if __name__ == "__main__":
    sys.exit(main())
