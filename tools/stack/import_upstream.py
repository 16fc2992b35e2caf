#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Take over the released upstream with its servers, on the stack, as the page about imports says.

    import_upstream.py [--state DIR] --upstream PYTHON

The released upstream, installed in the virtual environment of that Python beside uWSGI and
PyMySQL, runs first, and Nova boots servers with it. Then it is stopped, its database imported, and
this Cyborg started. The servers must keep what they have, reboot, and give it back when they are
deleted. It takes some minutes, and leaves the stack as it found it, but for an empty database.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import measure
import settings
import trial
from stack import CONDUCTORS, Stack
from trial import Scene, expect, look, say

#: As many attach handles as upstream's fake driver has, and no programs.
_AGENT = {"fake_driver": {"handles_per_device": 16, "program_mode": None}}


def _import(stack: Stack) -> None:
    """Make the schema and import, twice."""
    trial.dbsync(stack, "upgrade")
    source = stack.state / "etc" / "upstream-control" / "cyborg.conf"
    for _ in range(2):
        begin = time.monotonic()
        trial.dbsync(stack, "import", "--from", source)
        say(f"imported in {time.monotonic() - begin:.1f} s")


def _start_ours(stack: Stack) -> None:
    for name in ("cyborg", *CONDUCTORS):
        stack.start(name)
    stack.await_http("cyborg")
    for host in settings.HOSTS:
        stack.settings().agent(host, _AGENT)
        stack.enrol(host)
        stack.start(f"cyborg-agent-{host}")
    stack.await_hosts()


def _await_reports(scene: Scene) -> None:
    """Block until each agent has reported its device, which upstream's provider does not show."""

    def reported() -> bool | None:
        services = scene.cloud.accelerator.get(
            "/services?binary=cyborg-agent", headers={"OpenStack-API-Version": "accelerator latest"}
        ).json()["services"]
        up = {found["host"] for found in services if found["state"] == "up"}
        logs = [scene.stack.records.log(f"cyborg-agent-{host}") for host in settings.HOSTS]
        said = [log.read_text().rpartition("Drivers of host")[2] for log in logs]
        return (up >= set(settings.HOSTS) and all("1 devices" in each for each in said)) or None

    scene.until("the agents' reports", reported)


def take_over(scene: Scene, python: Path) -> None:
    """Run upstream, import, and try everything with its servers."""
    stack = scene.stack
    trial.remove_ours(scene)
    measure.start_upstream(stack, python.parent.parent, prefix="")
    scene.until("upstream's devices", lambda: scene.offered() or None)
    scene.prepare()
    servers = [scene.boot(flavor) for flavor, _count in trial.SERVERS]
    before, providers = look(scene, servers), scene.providers()
    expect("ARQs with upstream", [len(arqs) for arqs, _ in before], [1, 1, 2])
    trial.stop_upstream(stack)

    _import(stack)
    _start_ours(stack)
    _await_reports(scene)
    trial.sound(scene, "after the import")
    expect("providers", scene.providers(), providers)
    expect("servers after the import", look(scene, servers), before)
    trial.reboot_each(scene, servers)
    more = scene.boot("accel-two")
    scene.check_bound(more, 2)
    scene.check_no_handle_twice([*servers, more])
    say("a server booted now shares no attach handle with them")
    trial.delete_each(scene, [*servers, more])


def main() -> int:
    """Take over, and put the stack back; return the exit status."""
    options = trial.parser(__doc__)
    options.add_argument("--upstream", type=Path, required=True, help="python of its environment")
    given = options.parse_args()

    def attempt(scene: Scene) -> None:
        with trial.put_back(scene):
            take_over(scene, given.upstream.absolute())

    return trial.run(given.state, attempt)


if __name__ == "__main__":
    sys.exit(main())
