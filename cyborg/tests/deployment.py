# SPDX-License-Identifier: Apache-2.0
"""Cyborg as the installation guide has it: its file, each service a process, TLS to RabbitMQ."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import requests

from cyborg.tests import signed
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.standalone_site import TIMEOUT, wait_for

#: The file of the installation guide.
PRODUCTION = pathlib.Path(__file__).parents[2] / "doc/source/install/cyborg.conf"


class Deployment:
    """The services, which read the guide's file and after it one with what is different here.

    They run the code of this checkout, or of the folder ``code``.
    """

    def __init__(
        self, folder: pathlib.Path, code: pathlib.Path | None = None, /, **options: str
    ) -> None:
        self._folder = folder
        self._environment = os.environ | ({"PYTHONPATH": str(code)} if code else {})
        self._options = options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def files(self, name: str, **options: str) -> list[str]:
        """The arguments that name the configuration of a service called ``name``."""
        sections: dict[str, list[str]] = {}
        for option, value in (self._options | options).items():
            group, _, key = option.partition("__")
            sections.setdefault(group, []).append(f"{key} = {value}")
        lines = [line for group, found in sections.items() for line in (f"[{group}]", *found)]
        own = self._folder / f"{name}.conf"
        own.write_text("\n".join(lines))
        return ["--config-file", str(PRODUCTION), "--config-file", str(own)]

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command = [self._program(program), *self.files(program), *arguments]
        return subprocess.run(
            command,
            env=self._environment,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT,
            text=True,
            check=False,
        )

    def start(self, name: str, program: str, **options: str) -> None:
        """Start a service and go on."""
        files = self.files(name, DEFAULT__host=name, **options)
        self._spawn(name, [self._program(program), *files])

    def enrol(self, host: str) -> None:
        """Enrol the key of the host, as an administrator does."""
        key = self.run("cyborg-agent", "key").stdout.strip()
        done = self.run("cyborg-status", "host", "enroll", host, key)
        assert done.returncode == 0, done.stdout

    def start_api(self, port: int) -> None:
        """Start the API under uWSGI, and wait until it answers."""
        command = [self._program("uwsgi"), "--module", "cyborg.wsgi.api:application"]
        command += ["--http-socket", f"127.0.0.1:{port}", "--master", "--processes", "2"]
        command += ["--threads", "4", "--buffer-size", "65535", "--need-app"]
        command += ["--hook-master-start", "unix_signal:15 gracefully_kill_them_all"]
        command += ["--worker-reload-mercy", "20", "--add-header", "Connection: close"]
        self._spawn("api", [*command, "--pyargv", " ".join(self.files("api"))])
        self.url = f"http://127.0.0.1:{port}"
        wait_for("the API", lambda: self.ask("GET", "/") is not None)

    def _program(self, name: str) -> str:
        return str(pathlib.Path(sys.executable).with_name(name))

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log
            )

    def log(self, name: str) -> str:
        """All that a service has said."""
        return (self._folder / f"{name}.log").read_text()

    def terminate(self, name: str) -> None:
        """Ask a service to stop, and go on."""
        self._processes[name].send_signal(signal.SIGTERM)

    def wait(self, name: str) -> int:
        """Wait until a service has ended; its exit status."""
        return self._processes[name].wait(TIMEOUT)

    def kill(self) -> None:
        """End whatever still runs."""
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait(TIMEOUT)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Ask the API as its administrator; None where there is none."""
        try:
            return requests.request(
                method, self.url + path, json=body, headers=headers, timeout=TIMEOUT
            )
        except requests.ConnectionError:
            return None

    def get(self, path: str) -> Any:
        """The document at ``path``."""
        answer = self.ask("GET", f"/v2{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


def options(
    database_url: str,
    broker_url: str,
    authority: pathlib.Path,
    placement: PlacementServer,
    nova_url: str,
    control: pathlib.Path,
) -> dict[str, str]:
    """What is different here: where everything is, and that nobody is authenticated."""
    control.write_text(json.dumps({}))
    private, state = control.with_name("conductor.pem"), control.with_name("state")
    state.mkdir(exist_ok=True)
    return {
        "DEFAULT__state_path": str(state),
        "agent__conductor_public_keys": signed.new_key(private),
        "conductor__signing_key_file": str(private),
        "DEFAULT__transport_url": broker_url,
        "DEFAULT__log_dir": "",
        "database__connection": database_url,
        "oslo_messaging_rabbit__ssl_ca_file": str(authority),
        "api__auth_strategy": "noauth",
        "placement__auth_type": "admin_token",
        "placement__token": "admin",
        "placement__endpoint": placement.url,
        "placement__region_name": "",
        "nova__auth_type": "none",
        "nova__endpoint_override": nova_url,
        # The consumers of these tests claim nothing.
        "conductor__allocation_audit_interval": "0",
        "fake_driver__host_step": "true",
        "fake_driver__host_step_control": str(control),
        "agent__enabled_drivers": "fake_driver",
        "agent__report_interval": "5",
    }
