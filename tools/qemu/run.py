#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the agent's code on a real kernel: in a virtual machine, by software emulation.

    run.py --folder FOLDER [--junit FILE]

QEMU needs neither KVM nor a network nor an image: what the machine has is made in FOLDER, from a
kernel of Debian's archive and the Python that runs this. The tests are in guest.py beside this
file. What the machine said stays in FOLDER/console.log.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import guest
import machine

#: Seconds in which the machine ends, or is ended: twenty times what it takes on an idle computer.
GUEST_SECONDS = 480
_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Tell where we are, and when."""
    print(f"qemu: [{time.monotonic() - _BEGIN:.0f} s] {text}", flush=True)


def prepare(folder: Path) -> list[str]:
    """Make the machine, and return the command that runs it."""
    if platform.machine() != "x86_64" or not Path("/usr/bin/apt-get").exists():
        raise machine.Failed("the machine is made of Debian's packages for x86_64")
    machine.get_packages()
    kernel = machine.get_kernel(folder / "kernel")
    say(f"the kernel is {kernel.name}")
    root = machine.make_root(folder, kernel)
    say(f"the file system has {root.stat().st_size / 1e6:.0f} MB")
    return machine.command(kernel, root, folder / "disk")


def boot(command: list[str], log: Path) -> list[dict[str, Any]]:
    """Run the machine, and return what each test had to say."""
    tests: list[dict[str, Any]] = []
    with log.open("w") as console:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        timer = threading.Timer(GUEST_SECONDS, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            console.write(line)
            _before, mark, text = line.partition(guest.MARK)
            if mark:
                tests.append(json.loads(text))
                verdict = "FAILED" if tests[-1]["fault"] else "passed"
                say(f"{tests[-1]['name']} {verdict} in {tests[-1]['seconds']:.1f} s")
        process.wait()
        timer.cancel()
    # A test of which nothing is known was lost with the machine.
    reported = {test["name"] for test in tests}
    tests += [
        {"name": name, "seconds": 0, "fault": f"The machine ended before it. See {log}"}
        for name in vars(guest)
        if name.startswith("test_") and name not in reported
    ]
    return tests


def write_junit(tests: list[dict[str, Any]], skipped: str | None, path: Path) -> None:
    """Write a report as pytest does, which tools/junit_summary.py adds to the others."""
    suite = ElementTree.Element(
        "testsuite",
        name="qemu",
        tests=str(len(tests) or 1),
        failures=str(sum(test["fault"] is not None for test in tests)),
        skipped=str(int(skipped is not None)),
        time=f"{time.monotonic() - _BEGIN:.3f}",
    )
    for test in tests:
        case = ElementTree.SubElement(suite, "testcase", name=test["name"])
        if test["fault"] is not None:
            ElementTree.SubElement(case, "failure").text = test["fault"]
    if skipped is not None:
        case = ElementTree.SubElement(suite, "testcase", name="machine")
        ElementTree.SubElement(case, "skipped").text = skipped
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)


def main() -> int:
    """Read the arguments, test, and return the exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="where to work")
    parser.add_argument("--junit", type=Path, help="write a JUnit report to this file")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tests, skipped = [], None
    try:
        tests = boot(prepare(folder), folder / "console.log")
    except machine.Failed as exc:
        say(f"there is no machine: {exc}")
        skipped = str(exc)
    if options.junit is not None:
        write_junit(tests, skipped, options.junit)
    for test in tests:
        if test["fault"] is not None:
            print(f"\n{test['name']}\n{test['fault']}")
    failed = sum(test["fault"] is not None for test in tests)
    say(f"{len(tests) - failed} passed, {failed} failed")
    # In CI what is missing is a failure.
    return int(failed > 0 or (skipped is not None and bool(os.environ.get("CI"))))


if __name__ == "__main__":
    sys.exit(main())
