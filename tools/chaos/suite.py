# SPDX-License-Identifier: Apache-2.0
"""Runs the stages and rounds in order, and reports their results."""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import cloud
import stages
from cloud import Cloud, say
from clusters import CLUSTERS
from guests import Crowd
from judge import Judge
from ledger import Ledger
from points import NAMED
from storm import Arms, Storm, plan
from waiting import Failed, until

#: Seconds of one storm, and its faults per second.
STORM_SECONDS = 20.0
FAULTS_PER_SECOND = 1.2
CLIENTS = 10
#: Without --kills, no new round begins after so many random kills or so many seconds.
KILLS, SECONDS = 30, 170.0


@dataclass
class Result:
    """The result of one stage or round."""

    name: str
    seconds: float
    violations: list[str] = field(default_factory=list)


class Suite:
    """Runs stages and rounds on one cloud, and keeps their results."""

    def __init__(self, one: Cloud, seed: str, kills: int | None) -> None:
        self.ledger = Ledger()
        self.results: list[Result] = []
        self._cloud = one
        self._seed = seed
        self._kills = kills
        self._begin = time.monotonic()
        self._crowd = Crowd(one, self.ledger, seed, CLIENTS)
        self._arms = Arms(random.Random(f"{seed}/points"))
        self._storm = Storm(one, self.ledger, self._arms)
        self._judge = Judge(one, self.ledger, self._crowd)

    def run(self) -> None:
        """Run every stage, and rounds until there are enough."""
        self._crowd.start()
        try:
            self._try("32 boots of 4 at once", self._boots)
            self._try("bind without RabbitMQ", self._without_broker)
            for number in itertools.count(1):
                self._try(f"round {number}", functools.partial(self._round, str(number)))
                if self._has_enough():
                    break
            self._try("round with shipped timing", self._shipped_round)
            self._try("everything is given back", self._give_back)
        finally:
            self._crowd.stop()

    def _has_enough(self) -> bool:
        if self._kills is not None:
            return self._storm.kills >= self._kills
        return self._storm.kills >= KILLS or time.monotonic() > self._begin + SECONDS

    def _try(self, name: str, part: Callable[[], None]) -> None:
        begin, known = time.monotonic(), len(self.ledger.violations)
        result = Result(name, 0.0)
        self.results.append(result)
        try:
            part()
        except Failed as exc:
            self.ledger.violate(str(exc))
            raise
        except Exception:
            self.ledger.violate(traceback.format_exc())
            raise
        finally:
            result.seconds = time.monotonic() - begin
            result.violations = self.ledger.violations[known:]
            say(f"{name}: {'FAILED' if result.violations else 'passed'}")

    def _boots(self) -> None:
        stages.boot_all_at_once(self._cloud, self.ledger, self._seed)
        self._judge.judge()

    def _without_broker(self) -> None:
        stages.bind_without_broker(self._cloud, self.ledger, self._seed)
        self._judge.judge()

    def _round(self, name: str) -> None:
        """One storm, and the checks after it."""
        rng = random.Random(f"{self._seed}/{name}")
        self._crowd.storm()
        self._storm.run(plan(rng, STORM_SECONDS, FAULTS_PER_SECOND, self._storm.faults))
        self._crowd.calm()
        say("the storm is over")
        self._storm.end()
        until("the servers", self._cloud.answers)
        say("everything runs again")
        self._judge.judge()

    def _shipped_round(self) -> None:
        """A round with conductors that have the default lease and poll interval."""
        self._cloud.conduct("shipped")
        for name in cloud.CONDUCTORS:
            self._cloud.parts[name].kill()
            self._cloud.parts[name].start()
        self._round("shipped")

    def _give_back(self) -> None:
        """Delete every guest; check that no ARQ holds a handle and Placement offers all of them."""
        self._crowd.leave_all()
        self._judge.judge()
        if held := self._judge.held():
            self.ledger.violate(f"ARQs without a guest hold handles: {held}")

    def numbers(self) -> list[str]:
        """What was done, in numbers."""
        storm, counts, waits = self._storm, self.ledger.counts, sorted(self.ledger.waits)
        points = sum(map(len, NAMED.values()))
        cluster = self._cloud.servers.cluster
        lines = [
            *([f"{cluster.failovers} times another database was used"] if cluster else []),
            f"{storm.kills} kills at random moments",
            f"{storm.kills_at_points} kills at {len(self._arms.died_at)} of {points} named points",
            *(f"{number} {what}" for what, number in sorted(counts.items())),
            f"bind: {statistics.median(waits):.2f} s median, {waits[-1]:.1f} s the longest",
            f"{self._judge.longest_final:.1f} s at most from the last restart until all was final",
            f"{self._judge.longest_rest:.1f} s at most until nothing was left to be done",
        ]
        missed = {f"{kind}: {point}" for kind, named in NAMED.items() for point in named}
        missed -= self._arms.died_at
        return [*lines, *(f"never died at: {point}" for point in sorted(missed))]


def write_junit(results: list[Result], path: Path) -> None:
    """Write a report in pytest's format, for tools/junit_summary.py."""
    suite = ElementTree.Element(
        "testsuite",
        name="chaos",
        tests=str(len(results)),
        failures=str(sum(bool(result.violations) for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", name=result.name, time=f"{result.seconds:.3f}"
        )
        if result.violations:
            text = "\n".join(result.violations)
            # XML does not permit most control characters.
            kept = "".join(sign for sign in text if sign.isprintable() or sign == "\n")
            ElementTree.SubElement(case, "failure").text = kept
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)


def test(folder: Path, options: argparse.Namespace) -> int:
    """Start the cloud, test it, stop it; return the exit status."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    say(f"seed {options.seed}")
    with cloud.cloud(run, options.database) as one:
        say("the cloud is ready")
        suite = Suite(one, options.seed, options.kills)
        try:
            suite.run()
        finally:
            for line in suite.numbers():
                say(line)
            if options.junit is not None:
                write_junit(suite.results, options.junit)
    failed = len(suite.ledger.violations)
    say(f"{failed} violations; seed {options.seed}, logs in {run}")
    return int(failed > 0)


def main() -> int:
    """Read the arguments, run the tests, return the exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="where to work")
    parser.add_argument("--junit", type=Path, help="write a JUnit report to this file")
    parser.add_argument("--kills", type=int, help="end after this many random kills")
    parser.add_argument("--seed", default=f"{random.SystemRandom().getrandbits(32):08x}")
    parser.add_argument("--database", choices=("mysql", "postgresql", *CLUSTERS), default="mysql")
    options = parser.parse_args()
    # As an exception, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return test(options.folder.resolve(), options)
    except Failed as exc:
        say(f"{exc}\nThe logs are in {options.folder / 'run'}")
        return 1

