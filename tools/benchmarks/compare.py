#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""What work costs this Cyborg, beside the released upstream.

    python -m venv /tmp/upstream
    /tmp/upstream/bin/pip install openstack-cyborg==17.0.0 PyMySQL uwsgi 'setuptools<81'
    pip install -r tools/benchmarks/requirements.txt
    tools/services.sh start rabbitmq mariadb; eval "$(tools/services.sh env)"
    tools/benchmarks/compare.py --upstream-python /tmp/upstream/bin/python

Both run at the same time, with a database, a vhost and a Placement each, and do the same in turns.
Nobody else may use the machine. Of the rounds the medians count.

Of a Cyborg that runs already, with --endpoint, the table has what its clients see: boots and lists.
CPU, memory and statements are seen of those only that are started here.

    tools/benchmarks/compare.py --endpoint http://host/accelerator/v2 --header X-Auth-Token:... \
        --header X-Service-Token:... --profile some-profile
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import endpoint
import plots
import readings
from client import Failed
from endpoint import Endpoint
from readings import Measure
from sides import Kind, ours, running, upstream
from work import Bench

#: The table that the contributors' page shows.
DOCS = pathlib.Path(__file__).parents[2] / "doc/source/contributor/speed.inc"
#: The numbers of ARQs beside which boots are measured; of so many the list is measured.
SIZES = (100, 1000, 10_000, 50_000)
LISTED = 1000
#: A number of ARQs, and the milliseconds of a boot beside them.
Point = tuple[float, float]
#: Boots: accelerators each, how many at once, how many in all.
BOOTS = ((1, 1, 40), (1, 8, 64), (1, 32, 96), (4, 1, 16), (4, 32, 32))
MEASURES = {
    "boots 1x1": Measure("boots of 1 accelerator, 1 at once", "a second", True, 4),
    "boots 1x8": Measure("boots of 1 accelerator, 8 at once", "a second", True, 6),
    "boots 1x32": Measure("boots of 1 accelerator, 32 at once", "a second", True, 12),
    "boots 4x1": Measure("boots of 4 accelerators, 1 at once", "a second", True, 10),
    "boots 4x32": Measure("boots of 4 accelerators, 32 at once", "a second", True, 35),
    "time of boots 1x1": Measure("a boot of 1 accelerator, 1 at once", "ms"),
    "time of boots 1x8": Measure("a boot of 1 accelerator, 8 at once", "ms"),
    "time of boots 1x32": Measure("a boot of 1 accelerator, 32 at once", "ms"),
    "boots 1x1 cpu": Measure("CPU of a boot, 1 at once", "ms", figure=40),
    "boots 1x1 cpu api": Measure("of these the API's", "ms"),
    "boots 1x1 cpu conductor": Measure("of these the conductor's", "ms"),
    "boots 1x1 cpu mariadb": Measure("MariaDB's CPU beside that", "ms"),
    "boots 1x1 cpu rabbitmq": Measure("RabbitMQ's CPU beside that", "ms"),
    "boots 1x32 cpu": Measure("CPU of a boot, 32 at once", "ms", figure=35),
    "first report 256": Measure("first report of 256 devices", "s", ratio=6),
    "hosts first": Measure("hosts of 8 devices, first report", "a minute", True, 6),
    "hosts unchanged": Measure("hosts of 8 devices, unchanged", "a minute", True, 100),
    "unchanged report 8": Measure("unchanged report of 8 devices", "ms", figure=10),
    "unchanged report 64": Measure("unchanged report of 64 devices", "ms", figure=10),
    "unchanged report 256": Measure("unchanged report of 256 devices", "ms", figure=10),
    "memory api": Measure("memory of the API, 2 processes", "MiB", ratio=2),
    "memory conductor": Measure("memory of the conductor", "MiB", ratio=2),
    "memory agent": Measure("memory of the agent", "MiB", ratio=2),
    "list deployables": Measure("list of 1,000 deployables", "ms", figure=40),
    "list arqs": Measure("list of 1,000 ARQs", "ms", figure=25),
    "grown boots 1x1": Measure("boots, 1 at once, among many ARQs", "a second", True),
    "growth": Measure("a boot's time among many ARQs, by that among none", "times", figure=1.3),
    "a boot: SQL round trips": Measure("SQL round trips of a boot", "", figure=30),
    "a boot: SQL statements": Measure("SQL statements of a boot", ""),
    "a boot: SELECTs": Measure("SELECTs of a boot", ""),
    "a boot: COMMITs": Measure("COMMITs of a boot", ""),
    "a boot: ROLLBACKs": Measure("ROLLBACKs of a boot", ""),
    "a boot: pings": Measure("pings of a boot", ""),
    "a boot: Placement calls": Measure("Placement calls of a boot", ""),
    "a boot: Nova calls": Measure("Nova calls of a boot", ""),
    "a boot: RPC messages": Measure("RPC messages of a boot", ""),
    "a device's first report: SQL round trips": Measure("SQL round trips of a new device", ""),
    "a device's first report: Placement calls": Measure(
        "Placement calls of a new device", "", figure=2.1
    ),
    "a device's first report: RPC messages": Measure("RPC messages of a new device", ""),
    "an unchanged report: SQL round trips": Measure("SQL round trips of an unchanged report", ""),
    "an unchanged report: Placement calls": Measure("its calls of Placement", ""),
    "an unchanged report: RPC messages": Measure("its RPC messages", ""),
}


def one_round(bench: Bench, options: argparse.Namespace, number: int) -> dict[str, float]:
    """Everything that is measured in each round."""
    found: dict[str, float] = {}
    for count, at_once, total in BOOTS:
        found |= bench.boots(count, at_once, max(at_once, round(total * options.size)))
    found |= bench.counts(5)
    if options.size >= 1:
        found |= bench.first_report(256)
        found |= bench.many_hosts(16)
    # Upstream needs a minute and more for the largest.
    sizes = (8, 64, 256) if number == 0 and options.size >= 1 else (8,)
    for devices in sizes:
        found |= bench.unchanged_report(devices)
    return found


def afterwards(bench: Bench, sizes: Sequence[int]) -> tuple[dict[str, float], list[Point]]:
    """Everything that is measured once, for it leaves something behind.

    Besides the measures: what a boot takes beside as many ARQs as each of ``sizes`` says.
    """
    found = bench.memory()
    found["list deployables"] = bench.listed("/deployables", "deployables")
    curve: list[Point] = []
    present = 0
    for size in (0, *sizes):
        if size > present:
            bench.grow(size - present)
            present = size
        if size == LISTED:
            found["list arqs"] = bench.listed("/accelerator_requests", "arqs")
        # The more of upstream's ARQs there are, the longer a boot takes: seconds already here.
        total = 20 if bench.side.kind.name == "ours" or size == 0 else 3
        found["grown boots 1x1"] = bench.boots(1, 1, total)["boots 1x1"]
        curve.append((size, 1000 / found["grown boots 1x1"]))
    found["growth"] = curve[-1][1] / curve[0][1]
    return found, curve


@contextlib.contextmanager
def benches(kinds: list[Kind], folder: pathlib.Path) -> Iterator[dict[str, Bench]]:
    """Every side, running and prepared."""
    with contextlib.ExitStack() as stack:
        made = {}
        for kind in kinds:
            bench = Bench(stack.enter_context(running(kind, folder / kind.name)))
            stack.callback(bench.close)
            bench.prepare()
            made[kind.name] = bench
        yield made


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, dict[str, float]], dict[str, list[Point]]]:
    """The medians of each side, and its curve of a boot's time by the ARQs that are there."""
    kinds = [ours()] if options.endpoint is None or options.beside_ours else []
    if options.upstream_python is not None:
        kinds.append(upstream(options.upstream_python))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cyborg-benchmark-"))
    print(f"logs: {folder}", flush=True)
    asked = Endpoint(options) if options.endpoint is not None else None
    with benches(kinds, folder) as made:
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in made}
        if asked is not None:
            rounds["endpoint"] = []
        for number in range(options.rounds):
            # Who is first changes, so that nobody always is.
            for name in sorted(rounds, reverse=bool(number % 2)):
                if asked is not None and name == "endpoint":
                    rounds[name].append(asked.one_round(options.size))
                else:
                    rounds[name].append(one_round(made[name], options, number))
                print(f"round {number + 1}, {name}: {rounds[name][-1]}", flush=True)
        curves: dict[str, list[Point]] = {}
        for name, bench in made.items():
            grown = options.grown if name == "ours" else options.upstream_grown
            last, curves[name] = afterwards(bench, [size for size in SIZES if size <= grown])
            rounds[name].append(last)
    return {name: readings.medians(found) for name, found in rounds.items()}, curves


def write(
    folder: pathlib.Path,
    found: Mapping[str, Mapping[str, float]],
    curves: Mapping[str, Sequence[Point]],
) -> str:
    """Write the results as JSON and as Markdown; return the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**found, "a boot's ms by the ARQs that are there": curves}
    (folder / "speed.json").write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    sides = [found.get(name, {}) for name in ("ours", "upstream", "endpoint")]
    text = readings.table(MEASURES, *sides)
    (folder / "speed.md").write_text(text)
    print(text)
    return text


def main() -> int:
    """Measure, print and write; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=endpoint.NEEDED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--upstream-python", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=float, default=1.0, help="below 1: fewer boots, no reports")
    parser.add_argument("--grown", type=int, default=50_000, help="ARQs present in the end")
    parser.add_argument("--upstream-grown", type=int, default=1000, help="the same of upstream")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("benchmark-results"))
    parser.add_argument("--plot", action="store_true", help="draw the curves; needs matplotlib")
    parser.add_argument("--docs", action="store_true", help="renew the table of the docs page too")
    endpoint.add_arguments(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_given: sys.exit(1))
    try:
        begin = time.monotonic()
        found, curves = measure(options)
        text = write(options.results, found, curves)
        print(f"took {(time.monotonic() - begin) / 60:.1f} minutes")
        if options.plot and curves:
            title = "milliseconds of a boot, 1 at once"
            plots.save(
                options.results / "speed.png",
                {title: curves},
                "ARQs that are there",
                log=True,
            )
        if options.docs:
            what = f"{options.rounds} rounds of size {options.size:g}"
            head = f".. Written by tools/benchmarks/compare.py.\n\nMedians of {what}:\n\n"
            DOCS.write_text(head + readings.rst(text))
    except Failed as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
