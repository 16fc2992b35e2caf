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

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import measure
import settings
from records import BIN, Failed

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))

from scene import Scene
from stack import CONDUCTORS, Stack

#: As many attach handles as upstream's fake driver has, and no programs.
_AGENT = {"fake_driver": {"handles_per_device": 16, "program_mode": None}}
#: Flavor and number of accelerators of each server.
SERVERS = (("accel-one", 1), ("accel-one", 1), ("accel-two", 2))
#: What an import must keep of an ARQ.
_KEPT = (
    "uuid", "state", "device_profile_name", "hostname", "device_rp_uuid", "instance_uuid",
    "attach_handle_type", "attach_handle_info",
)  # fmt: skip


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


def remove_ours(scene: Scene) -> None:
    """Let nothing be there of this Cyborg: no process, no provider, no row."""
    stack = scene.stack
    scene.clear()
    for name in measure.OURS:
        stack.records.stop(name)
    for provider in scene.providers():
        scene.cloud.placement.delete_resource_provider(provider)
    with stack.database() as server:
        server.cursor().execute("DROP DATABASE cyborg")
    stack.make_database("cyborg")


def _dbsync(stack: Stack, *words: str | Path) -> None:
    config = stack.state / "etc" / "cyborg" / "cyborg.conf"
    stack.records.run("import", BIN / "cyborg-dbsync", "--config-file", config, *words)


def _import(stack: Stack) -> None:
    """Make the schema and import, twice."""
    _dbsync(stack, "upgrade")
    source = stack.state / "etc" / "upstream-control" / "cyborg.conf"
    for _ in range(2):
        begin = time.monotonic()
        _dbsync(stack, "import", "--from", source)
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


def look(scene: Scene, servers: list[Any]) -> list[Any]:
    """The ARQs and the allocations of each server."""
    return [
        (
            sorted([{key: arq[key] for key in _KEPT} for arq in scene.arqs(server)], key=str),
            scene.allocations(server),
        )
        for server in servers
    ]


def expect(what: str, found: object, wanted: object) -> None:
    """Go on if what was found is as it must be."""
    if found != wanted:
        raise Failed(f"{what}: {found}\ninstead of {wanted}")
    say(f"{what}: as it must be")


def sound(scene: Scene, what: str) -> None:
    """Block until no book contradicts another one."""
    scene.until(what, scene.is_sound, explain=lambda: scene.contradictions)
    say(f"cyborg-status check finds nothing {what}")


def take_over(scene: Scene, python: Path) -> None:
    """Run upstream, import, and try everything with its servers."""
    stack = scene.stack
    remove_ours(scene)
    measure.start_upstream(stack, python.parent.parent, prefix="")
    scene.until("upstream's devices", lambda: scene.offered() or None)
    scene.prepare()
    servers = [scene.boot(flavor) for flavor, _count in SERVERS]
    before, providers = look(scene, servers), scene.providers()
    expect("ARQs with upstream", [len(arqs) for arqs, _ in before], [1, 1, 2])
    measure.stop_upstream(stack)

    _import(stack)
    _start_ours(stack)
    _await_reports(scene)
    sound(scene, "after the import")
    expect("providers", scene.providers(), providers)
    expect("servers after the import", look(scene, servers), before)
    for server in servers:
        scene.act(server, "reboot", "ACTIVE", {"type": "HARD"})
    expect("servers after a reboot", look(scene, servers), before)
    more = scene.boot("accel-two")
    scene.check_bound(more, 2)
    scene.check_no_handle_twice([*servers, more])
    say("a server booted now shares no attach handle with them")
    for server in (*servers, more):
        scene.delete(server)
    scene.check_at_rest()
    say("all servers are deleted, and everything is free")


def main() -> int:
    """Take over, and put the stack back; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--state", type=Path, default=Path(".stack"))
    parser.add_argument("--upstream", type=Path, required=True, help="python of its environment")
    options = parser.parse_args()
    stack = Stack(options.state)
    try:
        stack.up()
        scene = Scene(stack)
        scene.prepare()
        try:
            take_over(scene, options.upstream.absolute())
        finally:
            scene.clear()
            measure.stop_upstream(stack)
            for name in measure.OURS:
                stack.records.stop(name)
            # There are no tables if nothing was imported.
            _dbsync(stack, "upgrade")
            stack.up()
    except (Failed, AssertionError) as exc:
        print(f"{exc}\nThe logs are in {stack.state / 'logs'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
