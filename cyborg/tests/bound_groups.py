# SPDX-License-Identifier: Apache-2.0
"""Requests of one group each, bound to cards."""

from __future__ import annotations

from cyborg.arqs import service
from cyborg.db import models
from cyborg.handles import release
from cyborg.tests import boots
from cyborg.tests.programmed_cards import Fpga
from cyborg.tests.programming_machine import Machine


def ask(machine: Machine, card: Fpga, **group: str) -> str:
    """Ask for an ARQ with such a group to be bound to a card that Placement has given out."""
    cloud, instance = machine.cloud, models.new_uuid()
    cloud.placement.allocate(instance, card.provider, FPGA=1)
    (arq,) = boots.arqs(cloud.ctx, group={"resources:FPGA": "1"} | group)
    boots.bind(cloud.ctx, [arq], instance, device_rp_uuid=card.provider)
    return arq


def read(machine: Machine, uuid: str) -> tuple[str, str | None]:
    found = service.get_arq(machine.cloud.ctx, uuid)
    return found.state, found.private_reason or found.state_reason


def leave(machine: Machine, arq: str) -> str:
    """The guest's instance is deleted; Nova gives its allocation back a little later."""
    instance = str(service.get_arq(machine.cloud.ctx, arq).consumer_uuid)
    release.delete_instance_arqs(machine.cloud.ctx, instance)
    return instance
