# SPDX-License-Identifier: Apache-2.0
"""Requests of one group each, bound to cards."""

from __future__ import annotations

from cyborg import profiles
from cyborg.arqs import bind_requests, binding, service
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.programmed_cards import Fpga
from cyborg.tests.programming_machine import Machine


def ask(machine: Machine, card: Fpga, **group: str) -> str:
    """Ask for an ARQ with such a group to be bound to a card that Placement has given out."""
    name = models.new_uuid()
    groups = [{"resources:FPGA": "1"} | group]
    profiles.create_profile(name=name, groups=groups, description=None, uuid=None)
    cloud = machine.cloud
    cloud.placement.allocate(name, card.provider, FPGA=1)
    (arq,) = service.create(cloud.ctx, name)
    target = bind_requests.BindTarget(
        hostname=hosts.ROOT, device_rp_uuid=card.provider, consumer_uuid=name
    )
    binding.request_changes(cloud.ctx, {arq.uuid: target}, [])
    return arq.uuid


def read(machine: Machine, uuid: str) -> tuple[str, str | None]:
    found = service.get_arq(machine.cloud.ctx, uuid)
    return found.state, found.private_reason or found.state_reason
