#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast cyborg-api answers, and what memory it has, beside clients that waste its connections.

    wasteful_clients.py

Prints milliseconds of GET /v2/devices and MiB, before and beside the crowd of the tests: 200 slow
clients, 50 with large bodies and 50 that send half a chunk.
"""

from __future__ import annotations

import http.client
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import readings

from cyborg.tests import crowd
from cyborg.tests.ports import free_port

REQUESTS = 300
#: Seconds for which the API may take to start.
PATIENCE = 60


def get(port: int) -> float:
    """Seconds that a new client waits for its answer."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/v2/devices")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    if answer.status != http.HTTPStatus.OK:
        sys.exit(f"GET /v2/devices was answered with {answer.status}")
    return time.perf_counter() - began


def measure(name: str, port: int, pid: int) -> None:
    """Ask again and again, and print what that took."""
    times, memory = [], 0.0
    for number in range(REQUESTS):
        times.append(1000 * get(port))
        if number % 20 == 0:
            memory = max(memory, readings.pss([pid]))
    middle, most = statistics.median(times), max(times)
    print(f"{name:8} median {middle:7.1f} ms   most {most:7.1f} ms   memory {memory:6.1f} MiB")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the API answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            get(port)
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit("cyborg-api did not start")
            time.sleep(0.1)
        else:
            return


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = pathlib.Path(name), free_port()
        config = folder / "cyborg.conf"
        config.write_text(
            f"[DEFAULT]\ntransport_url = fake://\n[database]\nconnection = sqlite:///{folder}/db\n"
            f"[api]\nauth_strategy = noauth\nport = {port}\n"
        )
        command = [sys.executable, "-m"]
        files = ["--config-file", str(config)]
        subprocess.run([*command, "cyborg.cmd.dbsync", *files, "upgrade"], check=True)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "cyborg.cmd.api", *files], stdout=log, stderr=log
            )
        try:
            wait_for(port, process)
            measure("alone", port, process.pid)
            with crowd.Crowd(port):
                measure("crowded", port, process.pid)
            measure("after", port, process.pid)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
