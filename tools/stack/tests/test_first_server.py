# SPDX-License-Identifier: Apache-2.0
"""The page that looks whether an installation works, to its end: a server, and a program."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import settings
from records import BIN, environment
from scene import Scene

from cyborg.tests import bare_machine

#: What the page lets its reader set.
VALUES = {
    "RESOURCE": "FPGA",
    "IMAGE": "empty",
    "DEPLOYABLE": f"{settings.HOSTS[0]}_FakeDevice",
    "FUNCTION": f"first-{uuid.uuid4()}",
}


@pytest.fixture
def undone(scene: Scene) -> Iterator[None]:
    """What the page has made is deleted, as far as it did not get to that itself."""
    yield
    scene.clear()
    if (flavor := scene.compute.find_flavor("first")) is not None:
        scene.compute.delete_flavor(flavor)
    scene.cloud.accelerator.delete("/device_profiles?value=first")
    for image in scene.cloud.image.images(name="first"):
        scene.cloud.image.delete_image(image)
    headers = {"OpenStack-API-Version": "accelerator 2.4"}
    answer = scene.cloud.accelerator.get("/function_pools", headers=headers)
    for pool in answer.json()["function_pools"]:
        scene.delete_pool(pool["uuid"])


@pytest.mark.usefixtures("undone")
def test_the_first_server_has_its_device(scene: Scene, tmp_path: Path) -> None:
    bitstream = tmp_path / "first"
    bitstream.write_text(json.dumps({"function": VALUES["FUNCTION"]}))
    path = f"{BIN}:/usr/local/bin:/usr/bin:/bin"
    variables = scene.stack.shell_variables() | {"PATH": path}
    # What comes before them is run where the installation is tested.
    sections = list(bare_machine.sections("install/verify").values())[1:]
    # Each block is followed by what this cloud has of its variables.
    values = VALUES | {"BITSTREAM": str(bitstream)}
    mine = "\n".join(f"export {name}={value}" for name, value in values.items())
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
    assert "| succeeded " in done.stdout
