# SPDX-License-Identifier: Apache-2.0
"""The command ``cyborg-status`` with a file of the test's own."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import db
from cyborg.cmd import status
from cyborg.tests import prepared_databases


class Status:
    """Runs the command in this process, with a file of the test's own."""

    def __init__(self, folder: pathlib.Path, database_url: str) -> None:
        self._file = folder / "cyborg.conf"
        self._url = database_url
        self._sections = {"database": [f"connection = {database_url}"]}

    def set(self, group: str, *lines: str) -> None:
        self._sections.setdefault(group, []).extend(lines)

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """The exit status and what is on standard output."""
        text = [line for group, found in self._sections.items() for line in (f"[{group}]", *found)]
        self._file.write_text("\n".join(text))
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(cfg, "CONF", cfg.ConfigOpts())
            patch.setattr(db, "configure", prepared_databases.configure)
            ended = status.main(["--config-file", str(self._file), *arguments])
        self._reach_the_tests_database()
        return ended, said.getvalue()

    def _reach_the_tests_database(self) -> None:
        """Undo that the command has reached another one, or none."""
        conf = cfg.ConfigOpts()
        db.register(conf)
        conf.set_override("connection", self._url, group="database")
        prepared_databases.configure(conf)

    def json(self, *arguments: str) -> tuple[int, Any]:
        """The same where the output is a document."""
        ended, output = self(*arguments)
        return ended, json.loads(output)
