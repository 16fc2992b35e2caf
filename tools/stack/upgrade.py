#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Upgrade Cyborg from another release without a stop, on the stack, as the page on upgrades says.

    upgrade.py [--state DIR] --from COMMIT

The code of that commit runs first, and Nova boots servers with it. Then the schema is upgraded,
and one process after the other is replaced: conductors, API, agents. All the while servers boot
and are deleted, at each stage on both hosts. The first servers must keep what they have, reboot,
and give it back when they are deleted. It takes some minutes, and leaves the stack as it found it,
but for an empty database.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import settings
import trial
from records import Failed
from stack import CONDUCTORS, HERE, Stack
from trial import Scene, expect, look, say

#: Boots on each host that must end well in each stage.
_BOOTS = 2
_AGENTS = tuple(f"cyborg-agent-{host}" for host in settings.HOSTS)


class Boots:
    """Boots and deletes servers on each host, one after the other, until :meth:`end`."""

    def __init__(self, scene: Scene) -> None:
        # A connection of openstacksdk is for one thread.
        self._scenes = {host: Scene(scene.stack) for host in settings.HOSTS}
        for each in self._scenes.values():
            each.prepare_image()
        self._over = threading.Event()
        self._ended: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(host,), daemon=True) for host in settings.HOSTS
        ]

    def begin(self) -> None:
        """Boot from now on."""
        for thread in self._threads:
            thread.start()

    def go_on(self, scene: Scene, stage: str) -> None:
        """Block until enough boots have begun and ended well on each host from now on."""
        before = self._ended.copy()

        def done() -> bool | None:
            if self._failure is not None:
                raise Failed(f"{stage}: a boot failed: {self._failure!r}")
            # One more, for that which was under way.
            enough = (self._ended[host] - before[host] > _BOOTS for host in settings.HOSTS)
            return all(enough) or None

        scene.until(stage, done)
        say(f"{stage}: {dict(self._ended - before)} boots ended well")

    def end(self) -> None:
        """Return when no boot is under way."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, host: str) -> None:
        scene = self._scenes[host]
        while not self._over.is_set():
            try:
                server = scene.boot("accel-one", name=f"boot-{host}", host=host)
                scene.check_bound(server, 1)
                scene.delete(server)
            except BaseException as exc:  # noqa: BLE001 - whatever ends a boot is shown
                self._failure = exc
                return
            self._ended[host] += 1


def _export(commit: str, folder: Path) -> str:
    """Put the code of a commit into a folder; the path for Python."""
    git = ("git", "-C", str(HERE.parent.parent))
    archived = subprocess.run(
        [*git, "archive", commit, "cyborg"], stdout=subprocess.PIPE, check=False
    )
    if archived.returncode:
        raise Failed(f"commit {commit} is not here")
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archived.stdout, check=True)
    return str(folder)


def _start_old(stack: Stack, code: str) -> None:
    """The whole release before."""
    files = stack.settings()
    files.cyborg()
    trial.dbsync(stack, "upgrade", PYTHONPATH=code)
    for name in ("cyborg", *CONDUCTORS):
        stack.start(name, PYTHONPATH=code)
    stack.await_http("cyborg")
    for host in settings.HOSTS:
        files.agent(host)
        stack.enrol(host)
        stack.start(f"cyborg-agent-{host}", PYTHONPATH=code)
    stack.await_hosts()


def _replace(stack: Stack, boots: Boots, scene: Scene, code: str) -> None:
    """Replace one process after the other by this release's; one conductor goes back once."""
    trial.dbsync(stack, "upgrade")
    boots.go_on(scene, "the release before on the new schema")
    first, second = CONDUCTORS
    stack.restart(first)
    boots.go_on(scene, "conductors of both releases")
    stack.restart(second)
    boots.go_on(scene, "new conductors, API and agents of the release before")
    stack.restart(first, PYTHONPATH=code)
    boots.go_on(scene, "one conductor taken back")
    stack.restart(first)
    stack.restart("cyborg")
    boots.go_on(scene, "new API and conductors, agents of the release before")
    for name, host in zip(_AGENTS, settings.HOSTS, strict=True):
        stack.restart(name)
        boots.go_on(scene, f"a new agent on {host}")


def upgrade(scene: Scene, commit: str) -> None:
    """Run the release before, replace it part by part, and try everything with its servers."""
    stack = scene.stack
    code = _export(commit, stack.state / "release-before")
    trial.remove_ours(scene)
    _start_old(stack, code)
    scene.prepare()
    servers = [scene.boot(flavor) for flavor, _count in trial.SERVERS]
    before, providers = look(scene, servers), scene.providers()
    boots = Boots(scene)
    boots.begin()
    try:
        boots.go_on(scene, "the release before")
        _replace(stack, boots, scene, code)
    finally:
        boots.end()
    trial.sound(scene, "after the upgrade")
    expect("providers", scene.providers(), providers)
    expect("servers after the upgrade", look(scene, servers), before)
    trial.reboot_each(scene, servers)
    trial.delete_each(scene, servers)


def main() -> int:
    """Upgrade, and put the stack back; return the exit status."""
    options = trial.parser(__doc__)
    options.add_argument("--from", dest="commit", required=True, help="the release before")
    given = options.parse_args()

    def attempt(scene: Scene) -> None:
        with trial.put_back(scene):
            upgrade(scene, given.commit)

    return trial.run(given.state, attempt)


if __name__ == "__main__":
    sys.exit(main())
