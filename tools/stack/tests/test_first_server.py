# SPDX-License-Identifier: Apache-2.0
"""The page that looks whether an installation works, to its end: it boots a server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from records import BIN, environment
from scene import Scene

from cyborg.tests import bare_machine

#: What the page lets its reader set.
VALUES = {"RESOURCE": "FPGA", "IMAGE": "empty"}


@pytest.fixture
def undone(scene: Scene) -> Iterator[None]:
    """The device profile of the page is deleted, and its flavor if the page did not get so far."""
    yield
    scene.clear()
    if (flavor := scene.compute.find_flavor("first")) is not None:
        scene.compute.delete_flavor(flavor)
    scene.cloud.accelerator.delete("/device_profiles?value=first")


@pytest.mark.usefixtures("undone")
def test_the_first_server_has_its_device(scene: Scene) -> None:
    path = f"{BIN}:/usr/local/bin:/usr/bin:/bin"
    variables = scene.stack.shell_variables() | {"PATH": path}
    # What comes before them is run where the installation is tested.
    sections = list(bare_machine.sections("install/verify").values())[1:]
    # Each block is followed by what this cloud has of its variables.
    mine = "\n".join(f"export {name}={value}" for name, value in VALUES.items())
    script = "\n".join(f"{block}\n{mine}" for blocks in sections for block in blocks)
    done = subprocess.run(
        ["bash", "-euxc", script],
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "| ACTIVE " in done.stdout
    assert "| Bound " in done.stdout
