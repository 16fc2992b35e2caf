# SPDX-License-Identifier: Apache-2.0
"""What the programs share that try something on the stack by hand, and put it back then."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import settings
from records import BIN, Failed

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))

from scene import Scene
from stack import CONDUCTORS, Stack

#: The processes of this Cyborg.
OURS = ("cyborg", *CONDUCTORS, *(f"cyborg-agent-{host}" for host in settings.HOSTS))
#: Flavor and number of accelerators of each server that must outlive what is tried.
SERVERS = (("accel-one", 1), ("accel-one", 1), ("accel-two", 2))
#: What an ARQ must keep.
_KEPT = (
    "uuid", "state", "device_profile_name", "hostname", "device_rp_uuid", "instance_uuid",
    "attach_handle_type", "attach_handle_info",
)  # fmt: skip


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of each of these programs; the first line of ``description`` is its help."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--state", type=Path, default=Path(".stack"))
    return made


def run(state: Path, attempt: Callable[[Scene], None]) -> int:
    """Try something on the stack; return the exit status."""
    stack = Stack(state)
    try:
        stack.up()
        scene = Scene(stack)
        scene.prepare()
        attempt(scene)
    except (Failed, AssertionError) as exc:
        print(f"{exc}\nThe logs are in {stack.state / 'logs'}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def put_back(scene: Scene) -> Iterator[None]:
    """The stack is as it was after the block, but for an empty database."""
    stack = scene.stack
    try:
        yield
    finally:
        scene.clear()
        stop_upstream(stack)
        stop_ours(stack)
        # There are no tables if it failed early.
        dbsync(stack, "upgrade")
        stack.up()


def stop_ours(stack: Stack) -> None:
    """Stop every process of this Cyborg that runs."""
    for name in OURS:
        stack.records.stop(name)


def stop_upstream(stack: Stack) -> None:
    """Stop what runs of the released upstream."""
    for name in [name for name in stack.records.names() if name.startswith("upstream-")]:
        stack.records.stop(name)


def remove_ours(scene: Scene) -> None:
    """Let nothing be there of this Cyborg: no process, no provider, no row."""
    stack = scene.stack
    scene.clear()
    stop_ours(stack)
    for provider in scene.providers():
        scene.cloud.placement.delete_resource_provider(provider)
    with stack.database() as server:
        server.cursor().execute("DROP DATABASE cyborg")
    stack.make_database("cyborg")


def dbsync(stack: Stack, *words: str | Path, **variables: str) -> None:
    """Run ``cyborg-dbsync`` with the configuration of the controller."""
    config = stack.state / "etc" / "cyborg" / "cyborg.conf"
    command = (BIN / "cyborg-dbsync", "--config-file", config)
    stack.records.run("dbsync", *command, *words, **variables)


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


def expect(what: str, found: object, wanted: object) -> None:
    """Go on if what was found is as it must be."""
    if found != wanted:
        raise Failed(f"{what}: {found}\ninstead of {wanted}")
    say(f"{what}: as it must be")


def look(scene: Scene, servers: list[Any]) -> list[Any]:
    """The ARQs and the allocations of each server."""
    return [
        (
            sorted([{key: arq[key] for key in _KEPT} for arq in scene.arqs(server)], key=str),
            scene.allocations(server),
        )
        for server in servers
    ]


def reboot_each(scene: Scene, servers: list[Any]) -> None:
    """Every server reboots and keeps what it has."""
    before = look(scene, servers)
    for server in servers:
        scene.act(server, "reboot", "ACTIVE", {"type": "HARD"})
    expect("servers after a reboot", look(scene, servers), before)


def delete_each(scene: Scene, servers: list[Any]) -> None:
    """Every server is deleted, and nothing of it is left anywhere."""
    for server in servers:
        scene.delete(server)
    scene.check_at_rest()
    say("all servers are deleted, and everything is free")


def sound(scene: Scene, what: str) -> None:
    """Block until no book contradicts another one."""
    scene.until(what, scene.is_sound, explain=lambda: scene.contradictions)
    say(f"cyborg-status check finds nothing {what}")
