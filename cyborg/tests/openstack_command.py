# SPDX-License-Identifier: Apache-2.0
"""The ``openstack`` command, run in this process against the API over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from openstackclient import shell
from osc_lib import clientmanager as osc_clientmanager

if TYPE_CHECKING:
    from cyborg.tests.service import Site


@dataclass(kw_only=True)
class Answer:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(kw_only=True)
class OpenStack:
    """``openstack accelerator``, told to use one microversion or none."""

    endpoint: str
    version: str | None = None
    #: Modules whose commands it does without.
    ignored: tuple[str, ...] = shell.IGNORED_MODULES

    def options(self) -> list[str]:
        """What comes before the command."""
        version = ["--os-accelerator-api-version", self.version] if self.version else []
        return ["--os-auth-type", "none", "--os-endpoint", self.endpoint, *version]

    def run(self, *words: str) -> Answer:
        """Run one command."""
        for part in vars(osc_clientmanager.ClientManager).values():
            if isinstance(part, osc_clientmanager.ClientCache):
                part._handle = None  # or else it would be that of the last run
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            program = shell.OpenStackShell()
            program.command_manager.ignored_modules = self.ignored
            code = program.run([*self.options(), "accelerator", *words])
        return Answer(code=code, out=out.getvalue(), err=err.getvalue())

    def __call__(self, *words: str) -> Any:
        """Run one that must succeed, and return what it shows."""
        answer = self.run(*words, "-f", "json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    def do(self, *words: str) -> None:
        """Run one that must succeed and has nothing to show."""
        answer = self.run(*words)
        assert answer.code == 0, answer.err

    def refused(self, *words: str) -> str:
        """Run one that must fail, and return its complaint."""
        answer = self.run(*words)
        assert answer.code == 1
        assert "Traceback" not in answer.err
        return answer.err.strip()


def rows(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of a list that a command has shown."""
    return [tuple(row[name] for name in names) for row in found]


@pytest.fixture
def osc(site: Site) -> OpenStack:
    """The command against the API of the site, with the newest microversion."""
    return OpenStack(endpoint=site.endpoint)


@pytest.fixture
def quiet_openstack(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of this machine's, and no log handler of the command line's after the test."""
    for name in os.environ:
        if name.startswith("OS_"):
            monkeypatch.delenv(name)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
