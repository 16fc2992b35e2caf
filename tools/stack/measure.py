#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how long a boot with an accelerator takes on the stack, and print a table.

    measure.py [--state DIR] [--boots N] [--upstream PYTHON]

With ``--upstream`` the released upstream, installed in the virtual environment of that Python
beside uWSGI and PyMySQL, takes Cyborg's place in the same stack afterwards, so that both are
measured in one run: same Nova, same database server, same load.
"""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import settings
import trial
from records import Failed
from stack import Stack
from trial import Scene

#: A request in the log of a WSGI service: see LOG_FORMAT of the stack.
_REQUEST = re.compile(r"^\S.*? (\d{13}) (\w+) (\S+) => (\d{3}) in (\d+) msecs$", re.MULTILINE)
#: Seconds between two queries of a server's status.
_LOOK = 0.05

#: Milliseconds of each boot, by what was measured.
Times = Mapping[str, Sequence[float]]
TITLES = ("PATCH answered", "PATCH to event accepted", "create to ACTIVE", "delete to gone")


@dataclass(frozen=True)
class Request:
    """A request that a WSGI service answered; times are in milliseconds."""

    begin: int
    method: str
    path: str
    status: int
    took: int


class Log:
    """The requests that a WSGI service answered since this object was made."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin = file.stat().st_size

    def requests(self, method: str, path: str) -> list[Request]:
        """The requests of a method to paths that end with ``path``, the earliest first."""
        said = self._file.read_bytes()[self._begin :].decode(errors="replace")
        found = (
            Request(int(begin), verb, where, int(status), int(took))
            for begin, verb, where, status, took in _REQUEST.findall(said)
        )
        return sorted(
            (one for one in found if one.method == method and one.path.endswith(path)),
            key=lambda one: one.begin,
        )


def measure(scene: Scene, boots: int, api: Path) -> Times:
    """Boot and delete one server after the other."""
    times: dict[str, list[float]] = {title: [] for title in TITLES}
    # The first boot is not measured: services load much at their first request.
    scene.delete(scene.boot())
    for _ in range(boots):
        cyborg, nova = Log(api), Log(scene.stack.records.log("nova"))
        begin = time.monotonic()
        server = scene.create()
        times["create to ACTIVE"].append(_wait(scene, server, "ACTIVE", begin))
        begin = time.monotonic()
        scene.compute.delete_server(server)
        times["delete to gone"].append(_wait(scene, server, None, begin))
        patches = [one for one in cyborg.requests("PATCH", "/accelerator_requests")
                   if one.status == 202]  # fmt: skip
        if len(patches) != 1:
            raise Failed(f"{api.name} has {len(patches)} PATCH requests instead of one")
        times["PATCH answered"].append(patches[0].took)
        accepted = [one for one in nova.requests("POST", "/os-server-external-events")
                    if one.status == 200 and one.begin >= patches[0].begin]  # fmt: skip
        if accepted:
            first = accepted[0]
            times["PATCH to event accepted"].append(first.begin + first.took - patches[0].begin)
    return times


def _wait(scene: Scene, server: Any, status: str | None, begin: float) -> float:
    """Milliseconds from ``begin`` until a server has ``status``, or is gone if that is None."""

    def found() -> bool | None:
        now = scene.compute.find_server(server.id, all_projects=True)
        if now is not None and now.status == "ERROR" and status is not None:
            raise Failed(f"a boot failed: {now.fault}")
        return (now.status if now is not None else None) == status or None

    scene.until(f"server {status or 'gone'}", found, pause=_LOOK)
    return (time.monotonic() - begin) * 1000


@contextmanager
def upstream(scene: Scene, python: Path) -> Iterator[Path]:
    """Run the released upstream in place of this Cyborg; yield the log of its API."""
    stack = scene.stack
    devices = [device.id for device in scene.cloud.accelerator.devices()]
    for device in devices:
        scene.cloud.accelerator.post(f"/devices/{device}/disable")
    scene.until("withdrawn devices", lambda: scene.offered() == 0 or None)
    trial.stop_ours(stack)
    try:
        yield start_upstream(stack, python.parent.parent)
    finally:
        scene.clear()
        trial.stop_upstream(stack)
        for provider in scene.cloud.placement.resource_providers():
            if provider.name.startswith("upstream-"):
                scene.cloud.placement.delete_resource_provider(provider)
        stack.up()
        for device in devices:
            scene.cloud.accelerator.post(f"/devices/{device}/enable")


def start_upstream(
    stack: Stack, installed: Path, prefix: str = "upstream-", *, fresh: bool = True
) -> Path:
    """Start its API, one conductor and an agent per host, with a database of their own.

    The names of its hosts begin with ``prefix``. Unless it is ``fresh``, it keeps its data.
    """
    files, programs = stack.settings(), installed / "bin"
    control = files.upstream("upstream-control", f"{prefix}control", installed)
    if fresh:
        # With the data of an earlier run it would not write to Placement again.
        with stack.database() as server:
            server.cursor().execute("DROP DATABASE IF EXISTS cyborg_upstream")
        stack.make_database("cyborg_upstream")
        stack.records.run(
            "upstream-dbsync", programs / "cyborg-dbsync", "--config-file", control, "upgrade"
        )
    stack.start_wsgi(
        "upstream-api", programs / "uwsgi", "cyborg", control.parent,
        # It reads no environment variable for its configuration file.
        "--pyargv", f"--config-file={control}",
    )  # fmt: skip
    stack.records.start(
        "upstream-conductor", programs / "cyborg-conductor", "--config-file", control
    )
    for host in settings.HOSTS:
        config = files.upstream(f"upstream-{host}", f"{prefix}{host}", installed, host)
        stack.records.start(
            f"upstream-agent-{host}", programs / "cyborg-agent", "--config-file", config
        )
    stack.await_http("cyborg", process="upstream-api")
    return stack.records.log("upstream-api")


def _version(python: Path) -> str:
    ask = "import importlib.metadata as m; print(m.version('openstack-cyborg'))"
    return subprocess.check_output([python, "-c", ask], text=True).strip()


def table(rows: Mapping[str, Times]) -> str:
    """Median and 95th percentile of each column; of two rows also the ratio of medians."""
    lines = [f"{'milliseconds, median (95 %)':30}" + "".join(f"{title:>25}" for title in TITLES)]
    for name, times in rows.items():
        cells = [_cell(times[title]) for title in TITLES]
        lines.append(f"{name:30}" + "".join(f"{cell:>25}" for cell in cells))
    if len(rows) == 2:
        ours, theirs = rows.values()
        cells = [_ratio(ours[title], theirs[title]) for title in TITLES]
        lines.append(f"{'ratio':30}" + "".join(f"{cell:>25}" for cell in cells))
    return "\n".join(lines)


def _cell(series: Sequence[float]) -> str:
    if not series:
        return "none accepted"
    slow = sorted(series)[math.ceil(len(series) * 0.95) - 1]
    return f"{statistics.median(series):.0f} ({slow:.0f})"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if not ours or not theirs:
        return "-"
    return f"{statistics.median(ours) / statistics.median(theirs):.3f}"


def main() -> int:
    """Measure and print; return the exit status."""
    options = trial.parser(__doc__)
    options.add_argument("--boots", type=int, default=20)
    options.add_argument("--upstream", type=Path, help="python of upstream's environment")
    given = options.parse_args()

    def attempt(scene: Scene) -> None:
        rows = {"this project": measure(scene, given.boots, scene.stack.records.log("cyborg"))}
        if given.upstream is not None:
            python = given.upstream.absolute()
            with upstream(scene, python) as log:
                scene.until("upstream's devices", lambda: scene.offered() or None)
                scene.prepare()
                rows[f"openstack-cyborg {_version(python)}"] = measure(scene, given.boots, log)
        print(f"\n{given.boots} boots each\n{table(rows)}")

    return trial.run(given.state, attempt)


if __name__ == "__main__":
    sys.exit(main())
