# SPDX-License-Identifier: Apache-2.0
"""One service as a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import signal
import subprocess
import sys

from cyborg.tests.standalone_site import TIMEOUT, wait_for


class Service:
    """One service as a process of its own, with its file, after those ``before``, and its log."""

    def __init__(
        self, name: str, folder: pathlib.Path, database_url: str, *before: pathlib.Path
    ) -> None:
        self._before = before
        self._file = folder / "cyborg.conf"
        self._log = folder / "log"
        self._database_url = database_url
        self._name = name

    def start(self, **options: str) -> None:
        self.write(**options)
        command = [str(pathlib.Path(sys.executable).with_name(self._name))]
        for file in (*self._before, self._file):
            command += ["--config-file", str(file)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def write(self, **options: str) -> None:
        """Let the file have these options, each ``group__name``."""
        sections: dict[str, list[str]] = {
            "DEFAULT": ["transport_url = rabbit://127.0.0.1:1/"],
            "database": [f"connection = {self._database_url}"],
            "agent": ["enabled_drivers = fake_driver"],
        }
        for option, value in options.items():
            group, _, name = option.partition("__")
            sections.setdefault(group, []).append(f"{name} = {value}")
        lines = [line for group, found in sections.items() for line in (f"[{group}]", *found)]
        self._file.write_text("\n".join(lines))

    def reload(self, **options: str) -> None:
        """Change the file and tell the process."""
        self.write(**options)
        self._process.send_signal(signal.SIGHUP)

    def says(self, words: str) -> None:
        """Wait until the words are in the log."""

        def said() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return words in self._log.read_text()

        wait_for(words, said)

    def lines(self, words: str) -> list[str]:
        """The lines of the log with these words so far."""
        return [line for line in self._log.read_text().splitlines() if words in line]

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(TIMEOUT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


#: Seconds within which a process starts or stops, even on a busy machine.
PATIENCE = 180


def get(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except ConnectionError:
            return None
