# SPDX-License-Identifier: Apache-2.0
"""An operation that is about to be written."""

from __future__ import annotations

from cyborg import work
from cyborg.db import models
from cyborg.peers import glance
from cyborg.programming import executor, operations, program
from cyborg.programming.situation import Situation
from cyborg.tests import engine, hosts

IMAGE = "abcdef00-2222-4222-8222-222222222222"


def deployable() -> models.Deployable:
    (found,) = hosts.deployables()
    return found


def situation(claim: work.Claim) -> Situation:
    found = executor.read(claim)
    assert found is not None
    return found


def withdrawn() -> work.Claim:
    """An operation that is about to be written."""
    operations.ask(deployable().uuid, program.Program(image_uuid=IMAGE), "user 1")
    claim = engine.claim("conductor-1", 600, [work.PROGRAM])
    assert claim is not None
    assert executor.read(claim) is not None
    assert executor.withdraw(claim, glance_image())
    return claim


def glance_image() -> glance.Image:
    return glance.Image(
        uuid=IMAGE,
        name=None,
        size=4,
        hash_algo="sha512",
        hash_value="00",
        checksum=None,
        status="active",
        properties={},
    )
