# SPDX-License-Identifier: Apache-2.0
"""An operation that is about to be written."""

from __future__ import annotations

from cyborg import work
from cyborg.db import models
from cyborg.peers import glance
from cyborg.programming import operation_steps, operations, program
from cyborg.programming.operation_facts import OperationFacts
from cyborg.tests import engine, hosts

IMAGE = "abcdef00-2222-4222-8222-222222222222"


def deployable() -> models.Deployable:
    (found,) = hosts.deployables()
    return found


def situation(item: work.Item) -> OperationFacts:
    found = operation_steps.read(item)
    assert found is not None
    return found


def withdrawn() -> work.Item:
    """An operation that is about to be written."""
    operations.ask(deployable().uuid, program.Program(image_uuid=IMAGE), "user 1")
    item = engine.take("conductor-1", 600, [work.PROGRAM])
    assert item is not None
    assert operation_steps.read(item) is not None
    assert operation_steps.withdraw(item, glance_image())
    return item


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
