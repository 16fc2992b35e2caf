#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long it takes until a consumer has its accelerator: from POST to Active, with its CDI file.

    tools/benchmarks/allocations.py [rounds]

cyborg-standalone as it is shipped, with the fake driver, a step on the host before each use, and
the file for containers; SQLite and Placement are in the same process. Each round asks for one
accelerator when nothing else is to be done, and gives it back. Exit status 1 if the median is more
than 100 ms, or if a file was not there when the answer said Active.
"""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

import requests

from cyborg.tests.standalone_site import Site, wait_for

LIMIT_MS = 100.0
#: What a process does once, such as to open connections, is not measured.
WARM_UP = 5
CONFIG = "[agent]\ncdi_dir = {}\n[fake_driver]\nhost_step = True\n"
VERSION = {"OpenStack-API-Version": "accelerator 2.4", "X-Auth-Token": "admin"}


def took_ms(site: Site, client: requests.Session, folder: pathlib.Path) -> float:
    """Allocate once, and give it back."""
    who = {"uuid": str(uuid.uuid4()), "type": "JOB"}
    body = {"consumer": who, "groups": [{"resources:FPGA": "1"}]}
    began = time.perf_counter()
    answer = client.post(f"{site.url}/v2/allocations", json=body)
    took = (time.perf_counter() - began) * 1000
    found = answer.json()
    if found.get("state") != "Active":
        sys.exit(f"It is not Active: {answer.text}")
    (given,) = found["accelerators"]
    if not any(given["arq_uuid"] in path.read_text() for path in folder.glob("*.json")):
        sys.exit("It is Active, and its file is not there")
    client.delete(f"{site.url}/v2/allocations/{who['uuid']}").raise_for_status()
    wait_for("the release", site.is_at_rest)
    return took


def main() -> None:
    """Print what the rounds took."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 50
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name, "cdi")
        site = Site(pathlib.Path(name, "state"), CONFIG.format(folder))
        command = pathlib.Path(sys.executable).with_name("cyborg-standalone")
        with subprocess.Popen(
            [command, *site.arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                for line in process.stdout or ():
                    if "Cyborg is ready" in line:
                        break
                site.prepare()
                client = requests.Session()
                client.headers.update(VERSION)
                times = [took_ms(site, client, folder) for _ in range(WARM_UP + rounds)][WARM_UP:]
            finally:
                process.terminate()
    times.sort()
    median, tenth = statistics.median(times), times[-1 - len(times) // 10]
    print(
        f"{len(times)} rounds: median {median:.0f} ms, from {times[0]:.0f} to {times[-1]:.0f} ms, "
        f"nine of ten within {tenth:.0f} ms"
    )
    sys.exit(median > LIMIT_MS)


if __name__ == "__main__":
    main()
