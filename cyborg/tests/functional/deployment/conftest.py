# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of ``cyborg-standalone`` and of the examples."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import pytest

from cyborg.tests.standalone_site import HOST, Site

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A host with files for containers, and profiles of two accelerators, of one, of too many."""
    folder = tmp_path_factory.mktemp("serving")
    site = Site(folder / "state", f"[agent]\ncdi_dir = {folder}/cdi\n")
    with site.serve():
        site.prepare()
        for name, number in (("one", 1), ("many", 99)):
            groups = [{"resources:FPGA": str(number)}]
            site.ask("POST", "/v2/device_profiles", [{"name": name, "groups": groups}])
        yield site


@pytest.fixture
def start(serving: Site) -> Callable[..., subprocess.Popen[str]]:
    """Starts an example with these arguments, and variables of its own."""
    own = {"CYBORG": serving.url, "TOKEN": "admin", "HOST_NAME": HOST, "NO_PROXY": "127.0.0.1"}

    def started(name: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(EXAMPLES / name), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | own | variables,
        )

    return started
