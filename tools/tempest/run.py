#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run cyborg-tempest-plugin against Cyborg with a real Keystone and Placement.

    run.py --folder FOLDER [--junit FILE] [tempest's arguments, such as --regex test_devices]

Everything is started here on free ports of the loopback, RabbitMQ and MariaDB too unless
CYBORG_TEST_RABBITMQ_URL and CYBORG_TEST_MYSQL_URL name some, and is stopped at the end. Logs and
configuration stay in FOLDER/run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import cloud
import results
from processes import BIN, Failed, environment, processes

from cyborg.tests import servers
from cyborg.tests.keystone_server import Keystone

HERE = Path(__file__).resolve().parent
SERVICES = HERE.parent / "services.sh"
EXCLUDED = HERE / "exclude.txt"
#: The tests to run unless the arguments select others.
EVERYTHING = ["--regex", r"^cyborg_tempest_plugin\."]
#: Seconds after which the tests are stopped, on a busy machine.
TEST_SECONDS = 600
_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Print a line of progress with the time."""
    print(f"tempest: [{time.monotonic() - _BEGIN:.0f} s] {text}", flush=True)


@contextlib.contextmanager
def private_servers(state: Path) -> Iterator[None]:
    """RabbitMQ and MariaDB while the block runs, unless the environment names them."""
    needed = {"rabbitmq": "rabbitmq", "mysql": "mariadb"}
    missing = [
        service for name, service in needed.items() if not os.environ.get(servers.VARIABLES[name])
    ]
    # In a directory of their own, so that servers of a developer are neither used nor stopped.
    env = environment(CYBORG_SERVICES_DIR=str(state))
    if not missing:
        yield
        return
    if subprocess.run([SERVICES, "start", *missing], env=env, check=False).returncode != 0:
        raise Failed(f"{SERVICES.name} cannot start {' and '.join(missing)}")
    try:
        said = subprocess.run(
            [SERVICES, "env", *missing], env=env, check=True, capture_output=True, text=True
        )
        for line in said.stdout.splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ[name] = value
        yield
    finally:
        subprocess.run([SERVICES, "stop", *missing], env=env, check=True)


@contextlib.contextmanager
def empty_servers(state: Path) -> Iterator[cloud.Servers]:
    """The broker, and databases for Cyborg and Placement, which are dropped afterwards."""
    with (
        private_servers(state),
        servers.new_database("mysql", f"cyborg_tempest_{os.getpid()}") as cyborg,
        servers.new_database("mysql", f"placement_tempest_{os.getpid()}") as placement,
    ):
        yield cloud.Servers(servers.url_of("rabbitmq"), cyborg, placement)


def write_tempest_conf(workspace: Path, keystone: Keystone) -> None:
    """Write tempest's configuration for the cloud."""
    available = dict.fromkeys(("nova", "glance", "neutron", "cinder", "swift", "horizon"), False)
    cloud.write_options(
        workspace / "etc" / "tempest.conf",
        {
            "DEFAULT": {"log_file": "tempest.log"},
            "oslo_concurrency": {"lock_path": workspace / "tempest_lock"},
            "auth": {
                "use_dynamic_credentials": True,
                "create_isolated_networks": False,
                "admin_username": keystone.admin_user,
                "admin_password": keystone.password,
                "admin_project_name": keystone.admin_project,
                "admin_domain_name": "Default",
                "admin_system": "all",
            },
            "identity": {"uri_v3": keystone.url, "auth_version": "v3", "region": keystone.region},
            "service_available": available | {"cyborg": True},
            # This switches nothing on: it states what Cyborg does by default.
            "cyborg_policy": {"enforce_new_defaults": True},
        },
    )


def check_exclusions(workspace: Path) -> int:
    """How many tests are excluded.

    :raises Failed: a line of the list is not the name of one test
    """
    listed = subprocess.run(
        [BIN / "tempest", "run", "--list-tests", *EVERYTHING],
        cwd=workspace,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    lines = EXCLUDED.read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    for name in names:
        if len([test for test in listed if re.match(name, test)]) != 1:
            raise Failed(f"{EXCLUDED.name}: this is not the name of one test: {name}")
    return len(names)


def run_tests(workspace: Path, arguments: Sequence[str], junit: Path | None) -> int:
    """Run the selected tests; return the exit status."""
    excluded = check_exclusions(workspace)
    status = _tempest(workspace, arguments or EVERYTHING)
    tests = results.last(workspace)
    if junit is not None:
        results.write_junit(tests, junit)
    counts = results.count(tests)
    say(
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped, "
        f"{excluded} excluded by name"
    )
    # Only the list above may exclude a test; one that skips itself lacks something.
    return status or int(counts["failed"] + counts["skipped"] > 0)


def _tempest(workspace: Path, selection: Sequence[str]) -> int:
    command = [str(BIN / "tempest"), "run", "--concurrency", "2"]
    command += ["--exclude-list", str(EXCLUDED), *selection]
    # In a session of its own, because its workers could outlive it.
    process = subprocess.Popen(command, cwd=workspace, env=environment(), start_new_session=True)
    try:
        return process.wait(TEST_SECONDS)
    except subprocess.TimeoutExpired as exc:
        raise Failed(f"the tests did not end in {TEST_SECONDS} seconds") from exc
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test(folder: Path, arguments: Sequence[str], junit: Path | None) -> int:
    """Start the cloud, run the tests, stop the cloud; return the exit status."""
    work = folder / "run"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    workspace = work / "workspace"
    with empty_servers(folder / "services") as empty, processes(work) as started:
        keystone = cloud.start_keystone(started, work)
        say("Keystone is ready")
        cloud.Cloud(started, work, keystone, empty).start()
        say("Placement and Cyborg are ready")
        kept_in = ("--workspace-path", work / "workspaces.yaml")
        started.run("tempest-init", BIN / "tempest", "init", *kept_in, workspace)
        write_tempest_conf(workspace, keystone)
        return run_tests(workspace, arguments, junit)


def main() -> int:
    """Read the arguments and run the tests; return the exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="where to work")
    parser.add_argument("--junit", type=Path, help="write a JUnit report to this file")
    options, arguments = parser.parse_known_args()
    # As an exception, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return test(options.folder.resolve(), arguments, options.junit)
    except Failed as exc:
        say(f"{exc}\nThe logs are in {options.folder / 'run'}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
