# SPDX-License-Identifier: Apache-2.0
"""Commands in forks of a process that has loaded them: to start one anew takes a second."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile

from cyborg.tests.standalone_site import TIMEOUT

#: The modules of commands that are loaded before.
_LOADED = [f"cyborg.cmd.{name}" for name in ("agent", "api", "conductor", "status")]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What came of a command such as ``cyborg-status``."""
    context = multiprocessing.get_context("forkserver")
    # The first preload in a worker wins, this one or another's. A fork has the environment of that
    # time: monkeypatch.setenv does not reach it.
    context.set_forkserver_preload([__name__, *_LOADED])
    with tempfile.TemporaryDirectory() as name:
        files = [pathlib.Path(name, each) for each in ("out", "err")]
        for file in files:
            file.touch()
        process = context.Process(target=_main, args=(program, arguments, files), daemon=True)
        process.start()
        process.join(TIMEOUT)
        code = process.exitcode
        process.kill()
        process.join()
        out, err = (file.read_text() for file in files)
    assert code is not None, f"{program} did not end: {err}"
    return subprocess.CompletedProcess([program, *arguments], code, out, err)


def _main(program: str, arguments: list[str], files: list[pathlib.Path]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY), number)
    sys.argv = [program, *arguments]
    module = importlib.import_module(f"cyborg.cmd.{program.rpartition('-')[2]}")
    sys.exit(module.main())
