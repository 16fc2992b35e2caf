# SPDX-License-Identifier: Apache-2.0
"""One service as a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import os
import pathlib
import signal
import sys
from collections.abc import Collection, Mapping

from cyborg.tests.standalone_site import TIMEOUT, forks, wait_for


def _be(name: str, arguments: list[str], log: pathlib.Path, hidden: Collection[str]) -> None:
    """Be that command, where the modules ``hidden`` are not installed."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = [name]
    for module in hidden:
        sys.modules[module] = None  # type: ignore[assignment]
    short = name.removeprefix("cyborg-").replace("-", "_")
    sys.exit(importlib.import_module(f"cyborg.cmd.{short}").main(arguments))


class Forked:
    """A command in a fork of a process that has imported everything already; its log."""

    def __init__(
        self, name: str, *arguments: str, log: pathlib.Path, hidden: Collection[str] = ()
    ) -> None:
        self.log = log
        log.touch()
        given = (name, list(arguments), log, hidden)
        self._process = forks().Process(target=_be, args=given, daemon=True)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> int | None:
        """The exit status, or None if it runs still."""
        self._process.join(timeout)
        return self.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def ini(options: Mapping[str, Mapping[str, object]]) -> str:
    """The text of a configuration file with these options, by their groups."""
    lines: list[str] = []
    for group, values in options.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items())]
    return "\n".join(lines)


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
        self._log.write_text("")
        files = [f"--config-file={file}" for file in (*self._before, self._file)]
        self._process = Forked(self._name, *files, log=self._log)

    def write(self, **options: str) -> None:
        """Let the file have these options, each ``group__name``."""
        sections: dict[str, dict[str, str]] = {
            "DEFAULT": {"transport_url": "rabbit://127.0.0.1:1/"},
            "database": {"connection": self._database_url},
            "agent": {"enabled_drivers": "fake_driver"},
        }
        for option, value in options.items():
            group, _, name = option.partition("__")
            sections.setdefault(group, {})[name] = value
        self._file.write_text(ini(sections))

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

    def stop(self) -> int | None:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()


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
