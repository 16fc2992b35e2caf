# SPDX-License-Identifier: Apache-2.0
"""The command ``cyborg-status`` with a file of the test's own."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

from cyborg.tests.standalone_site import TIMEOUT


class Status:
    """Runs the command with a file of the test's own."""

    def __init__(self, folder: pathlib.Path, database_url: str) -> None:
        self._file = folder / "cyborg.conf"
        self._sections = {"database": [f"connection = {database_url}"]}

    def set(self, group: str, *lines: str) -> None:
        self._sections.setdefault(group, []).extend(lines)

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """The exit status and what is on standard output."""
        text = [line for group, found in self._sections.items() for line in (f"[{group}]", *found)]
        self._file.write_text("\n".join(text))
        command = [str(pathlib.Path(sys.executable).with_name("cyborg-status"))]
        done = subprocess.run(
            [*command, "--config-file", str(self._file), *arguments],
            stdout=subprocess.PIPE,
            timeout=TIMEOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def json(self, *arguments: str) -> tuple[int, Any]:
        """The same where the output is a document."""
        status, output = self(*arguments)
        return status, json.loads(output)
