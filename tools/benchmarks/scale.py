#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What more and more hosts cost: real conductors and API, MariaDB, RabbitMQ and Placement.

    tools/services.sh start rabbitmq mariadb; eval "$(tools/services.sh env)"
    tools/benchmarks/scale.py --hosts 1000 --conductors 1 2

Each number of conductors is measured by itself, one after the other. The agents are played by one
process, which reports hosts as they would. Nobody else may use the machine.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import plots
import readings
from client import Failed
from sides import Side, ours, running
from work import HANDLES, Bench

#: The table that the administrators' page shows.
DOCS = pathlib.Path(__file__).parents[2] / "doc/source/admin/capacity.inc"
#: Devices of each host.
DEVICES = 8
#: Hosts that report at the same time.
AT_ONCE = 16
COLUMNS = {
    "hosts": "hosts",
    "first": "new hosts a minute",
    "conductor cpu": "conductors' CPU for a new host (ms)",
    "placement cpu": "Placement's CPU for a new host (ms)",
    "database cpu": "MariaDB's CPU for a new host (ms)",
    "unchanged": "unchanged hosts a minute",
    "boot": "a boot (ms)",
    "conductor memory": "memory of a conductor (MiB)",
}


def step(bench: Bench, total: int, count: int) -> dict[str, float]:
    """Add hosts until there are ``total``, and measure with all of them there."""
    side = bench.side
    parts = {
        "conductor": [pid for name in side.conductors for pid in side.pids(name)],
        "placement": readings.tree(side.neighbours.process.pid),
        "database": readings.named("mariadbd"),
    }
    before = {name: readings.cpu(pids) for name, pids in parts.items()}
    added = bench.add_hosts(count, DEVICES, AT_ONCE)
    used = {name: readings.cpu(pids) - before[name] for name, pids in parts.items()}
    begin = time.perf_counter()
    side.report(added.names, DEVICES, HANDLES, AT_ONCE)
    again = time.perf_counter() - begin
    return {
        "hosts": total,
        "first": 60 * count / added.seconds,
        **{f"{name} cpu": 1000 * seconds / count for name, seconds in used.items()},
        "unchanged": 60 * count / again,
        "boot": 1000 / bench.boots(1, 1, 10)["boots 1x1"],
        "conductor memory": readings.pss(side.pids("conductor")),
    }


def measure(side: Side, conductors: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """One entry for each number of hosts."""
    for number in range(1, conductors):
        side.start_conductor(f"conductor-{number + 1}")
    bench = Bench(side)
    bench.prepare()
    found = []
    for total in range(options.step, options.hosts + 1, options.step):
        found.append(step(bench, total, options.step))
        print(found[-1], flush=True)
    bench.close()
    return found


def table(found: Sequence[dict[str, float]]) -> str:
    """A Markdown table."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    lines += [[readings.number(row[key]) for key in COLUMNS] for row in found]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def gains(found: Mapping[int, Sequence[Mapping[str, float]]]) -> str:
    """What more conductors gain, as Markdown: medians over the numbers of hosts."""
    keys = ("first", "unchanged")
    head = ["conductors"]
    for key in keys:
        head += [COLUMNS[key], "times as many"]
    lines = [head, ["---"] * len(head)]
    fewest: dict[str, float] = {}
    for count, rows in found.items():
        cells = [str(count)]
        for key in keys:
            middle = statistics.median(row[key] for row in rows)
            times = middle / fewest.setdefault(key, middle)
            cells += [readings.number(middle), readings.number(times)]
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(found: Sequence[dict[str, float]], conductors: int, options: argparse.Namespace) -> None:
    """Print what was measured with so many conductors, and write it as the options say."""
    options.results.mkdir(parents=True, exist_ok=True)
    name = f"scale-{conductors}"
    (options.results / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    (options.results / f"{name}.md").write_text(table(found))
    print(table(found))
    if options.docs and conductors == options.conductors[0]:
        who = "one conductor" if conductors == 1 else f"{conductors} conductors"
        head = f".. Written by tools/benchmarks/scale.py.\n\nWith {who}:\n\n"
        DOCS.write_text(head + readings.rst(table(found)))
    if options.plot:
        plot(found, options.results / f"{name}.png")


def plot(found: Sequence[dict[str, float]], path: pathlib.Path) -> None:
    """The curves as a PNG."""
    curves = {
        title: {title: [(row["hosts"], row[key]) for row in found]}
        for key, title in COLUMNS.items()
        if key != "hosts"
    }
    plots.save(path, curves, "hosts")


def main() -> int:
    """Measure, print and write; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--step", type=int, default=100)
    parser.add_argument(
        "--conductors", type=int, nargs="+", default=[1], help="numbers of them, each by itself"
    )
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("benchmark-results"))
    parser.add_argument(
        "--docs", action="store_true", help="renew the docs page's table, by the first"
    )
    parser.add_argument("--plot", action="store_true", help="draw the curves; needs matplotlib")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cyborg-benchmark-"))
    print(f"logs: {folder}", flush=True)
    found: dict[int, list[dict[str, float]]] = {}
    try:
        for count in options.conductors:
            with running(ours(), folder / f"conductors-{count}") as side:
                found[count] = measure(side, count, options)
            write(found[count], count, options)
    except Failed as exc:
        print(exc, file=sys.stderr)
        return 1
    if len(found) > 1:
        (options.results / "conductors.md").write_text(gains(found))
        print(gains(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
