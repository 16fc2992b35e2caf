#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Take over the released upstream with its servers, on the stack, as the page about imports says.

    import_upstream.py [--state DIR] --upstream PYTHON

The released upstream, installed in the virtual environment of that Python beside uWSGI and
PyMySQL, runs first, and Nova boots servers with it. Then it is stopped, its database imported, and
this Cyborg started. The servers must keep what they have, and reboot. One is deleted, one shelved
and unshelved, one evacuated, and one booted. Then the way back is gone with the page's commands:
with upstream again each must have what it had last, share it with nobody, reboot, and give it back
when it is deleted. It takes some minutes, and leaves an empty database.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure
import settings
import trial
from records import Failed
from sqlalchemy.engine import make_url
from stack import CONDUCTORS, Stack
from trial import Scene, expect, look, say

from cyborg.tests import bare_machine

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


def _live_on(scene: Scene, servers: list[Any]) -> list[Any]:
    """Do with servers what changes their functions; return those that there are then."""
    gone, shelved, evacuated = servers
    scene.delete(gone)
    scene.act(shelved, "shelve", "SHELVED_OFFLOADED")
    scene.until("free handles", lambda: None if scene.arqs(shelved) else True)
    hosts = scene.compute.get_server
    scene.until("no host", lambda: hosts(shelved.id).compute_host is None or None)
    # Its function is another's before it comes back.
    booted = scene.boot()
    scene.act(shelved, "unshelve", "ACTIVE")
    host = scene.compute.get_server(evacuated.id).compute_host
    scene.fail_host(host)
    scene.act(evacuated, "evacuate", "ACTIVE", {})
    scene.mend_host(host)
    scene.until("one allocation", lambda: len(scene.allocations(evacuated)) == 1 or None)
    return [shelved, evacuated, booted]


def _go_back(stack: Stack) -> None:
    """Run what the page says, with the client of the stack's database server."""
    url = make_url(stack.server_url("mariadb"))
    folder = stack.state / "way-back"
    folder.mkdir(exist_ok=True)
    options, client = folder / "client.cnf", folder / "mariadb"
    options.write_text(
        f"[client]\nhost={url.host}\nport={url.port}\nuser={url.username}\n"
        f"password={url.password}\n"
    )
    real = shutil.which("mariadb")
    client.write_text(f'#!/bin/sh\nexec {real} --defaults-extra-file={options} "$@"\n')
    client.chmod(0o700)
    names = {"DB_NAME": "cyborg", "OLD_NAME": "cyborg_upstream"}
    environ = os.environ | names | {"PATH": f"{folder}:{os.environ['PATH']}"}
    for block in bare_machine.sections("admin/import")["The way back"]:
        if block.startswith("export "):
            continue
        script = block.replace("/etc/cyborg-way-back", f"{folder}/way-back")
        done = subprocess.run(
            ["bash", "-euc", script], env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode or done.stdout:
            raise Failed(f"on the way back: {done.stdout}{done.stderr}")


def _handles_in_use(stack: Stack) -> int:
    """Of upstream's book."""
    with stack.database("cyborg_upstream") as server, server.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM attach_handles WHERE in_use")
        return int(cursor.fetchone()[0])


def take_over(scene: Scene, python: Path) -> None:
    """Run upstream, import, try everything with its servers, and go back."""
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
    scene.delete(more)

    servers = _live_on(scene, servers)
    trial.sound(scene, "before the way back")
    before = look(scene, servers)
    trial.stop_ours(stack)
    _go_back(stack)
    measure.start_upstream(stack, python.parent.parent, prefix="", fresh=False)
    scene.until("upstream's devices", lambda: scene.offered() or None)
    expect("servers after the way back", look(scene, servers), before)
    expect("handles in use", _handles_in_use(stack), sum(len(arqs) for arqs, _ in before))
    trial.reboot_each(scene, servers)
    more = [scene.boot() for _ in range(3)]
    scene.check_no_handle_twice([*servers, *more])
    for server in [*servers, *more]:
        scene.delete(server)
    scene.until("free handles", lambda: _handles_in_use(stack) == 0 or None)
    say("everything is free with upstream, too")


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
