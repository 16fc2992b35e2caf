#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a boot with an accelerator takes on the stack, as a table.

    measure.py [--state DIR] [--boots N] [--upstream PYTHON]

With ``--upstream`` the released upstream, installed in the virtual environment of that Python
beside uWSGI and PyMySQL, takes Cyborg's place in the same stack afterwards, so that both are
measured in one run: same Nova, same database server, same load.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import settings
from records import Failed

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))

from scene import Scene
from stack import CONDUCTORS, Stack

_PATCH = re.compile(r"PATCH \S*/accelerator_requests => generated \d+ bytes in (\d+) msecs")
#: What makes room for upstream.
_OURS = ("cyborg", *CONDUCTORS, *(f"cyborg-agent-{host}" for host in settings.HOSTS))


@dataclass(frozen=True)
class Times:
    """Milliseconds of each boot."""

    patch: Sequence[float]
    active: Sequence[float]
    deleted: Sequence[float]

    def row(self) -> list[str]:
        """Medians and the slowest."""
        return [
            f"{statistics.median(series):.0f} ({max(series):.0f})"
            for series in (self.patch, self.active, self.deleted)
        ]


def measure(scene: Scene, boots: int, log: Path) -> Times:
    """Boot and delete one server after the other."""
    begin = log.stat().st_size
    active, deleted = [], []
    for _ in range(boots):
        started = time.monotonic()
        server = scene.boot("accel-one")
        active.append((time.monotonic() - started) * 1000)
        started = time.monotonic()
        scene.delete(server)
        deleted.append((time.monotonic() - started) * 1000)
    said = log.read_bytes()[begin:].decode(errors="replace")
    patch = [float(found) for found in _PATCH.findall(said)]
    if len(patch) < boots:
        raise Failed(f"{log.name} tells of {len(patch)} PATCHes only")
    return Times(patch, active, deleted)


@contextmanager
def upstream(scene: Scene, python: Path) -> Iterator[Path]:
    """The released upstream in Cyborg's place; the log of its API."""
    stack = scene.stack
    devices = [device.id for device in scene.cloud.accelerator.devices()]
    for device in devices:
        scene.cloud.accelerator.post(f"/devices/{device}/disable")
    scene.until("withdrawn devices", lambda: scene.offered() == 0 or None)
    for name in _OURS:
        stack.records.stop(name)
    try:
        yield _start_upstream(stack, python.parent)
    finally:
        scene.clear()
        for name in [name for name in stack.records.names() if name.startswith("upstream-")]:
            stack.records.stop(name)
        for provider in scene.cloud.placement.resource_providers():
            if provider.name.startswith("upstream-"):
                scene.cloud.placement.delete_resource_provider(provider)
        stack.up()
        for device in devices:
            scene.cloud.accelerator.post(f"/devices/{device}/enable")


def _start_upstream(stack: Stack, programs: Path) -> Path:
    """Start its API, one conductor and an agent a host, on a database of its own."""
    files = stack.settings()
    control = files.upstream("upstream-control", None)
    stack.make_database("cyborg_upstream")
    stack.records.run(
        "upstream-dbsync", programs / "cyborg-dbsync", "--config-file", control, "upgrade"
    )
    stack.start_wsgi("upstream-api", programs / "uwsgi", "cyborg", control.parent)
    stack.records.start(
        "upstream-conductor", programs / "cyborg-conductor", "--config-file", control
    )
    for host in settings.HOSTS:
        config = files.upstream(f"upstream-{host}", host)
        stack.records.start(
            f"upstream-agent-{host}", programs / "cyborg-agent", "--config-file", config
        )
    return stack.records.log("upstream-api")


def _print(rows: dict[str, Times]) -> None:
    titles = ["PATCH answered", "create to ACTIVE", "delete to gone"]
    print(f"\n{'milliseconds, median (slowest)':32}" + "".join(f"{title:>20}" for title in titles))
    for name, times in rows.items():
        print(f"{name:32}" + "".join(f"{cell:>20}" for cell in times.row()))
    if len(rows) == 2:
        ours, theirs = rows.values()
        ratios = [
            statistics.median(mine) / statistics.median(other)
            for mine, other in zip(
                (ours.patch, ours.active, ours.deleted),
                (theirs.patch, theirs.active, theirs.deleted),
                strict=True,
            )
        ]
        print(f"{'ratio':32}" + "".join(f"{ratio:>20.2f}" for ratio in ratios))


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--state", type=Path, default=Path(".stack"))
    parser.add_argument("--boots", type=int, default=20)
    parser.add_argument("--upstream", type=Path, help="python of the environment that has it")
    options = parser.parse_args()
    stack = Stack(options.state)
    stack.up()
    scene = Scene(stack)
    scene.prepare()
    rows = {"this project": measure(scene, options.boots, stack.records.log("cyborg"))}
    if options.upstream is not None:
        with upstream(scene, options.upstream.absolute()) as log:
            scene.until("upstream's devices", lambda: scene.offered() or None)
            ask = "import importlib.metadata as m; print(m.version('openstack-cyborg'))"
            version = subprocess.check_output([options.upstream, "-c", ask], text=True).strip()
            scene.prepare()
            rows[f"openstack-cyborg {version}"] = measure(scene, options.boots, log)
    _print(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
