# SPDX-License-Identifier: Apache-2.0
"""The running stack, servers that are removed, and what must be true when none is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scene import Scene
from stack import Stack


@pytest.fixture(scope="session")
def stack() -> Stack:
    """The stack of the directory that the environment names, started as far as it is not."""
    running = Stack(Path(os.environ["CYBORG_STACK_STATE"]))
    running.up()
    return running


@pytest.fixture(scope="session")
def prepared(stack: Stack) -> Scene:
    """What every test needs: an image, device profiles, flavors."""
    scene = Scene(stack)
    scene.prepare()
    return scene


@pytest.fixture
def scene(prepared: Scene) -> Iterator[Scene]:
    """Servers may be made; afterwards all are deleted, and nothing of them is left anywhere."""
    yield prepared
    prepared.clear()
    prepared.check_at_rest()
