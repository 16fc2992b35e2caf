# SPDX-License-Identifier: Apache-2.0
"""Who has some of a deployable as Placement knows, and so keeps it from being programmed."""

from __future__ import annotations

import logging

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db
from cyborg.common import errors
from cyborg.db import models
from cyborg.peers import clients
from cyborg.placement import client
from cyborg.programming import guard, operations, program

LOG = logging.getLogger(__name__)


def refuse(conf: cfg.ConfigOpts, deployable_uuid: str, what: program.Program) -> None:
    """Return unless Placement says at once that a consumer without an ARQ has the deployable.

    It is asked again before anything is written, also if it does not answer now.

    :raises Conflict: one has
    """
    found = _read(deployable_uuid, what) if clients.configured(conf, "placement") else None
    if found is None:
        return
    provider, known = found
    try:
        others = client.Client(conf).consumers(provider) - known
    except (errors.CyborgError, ka_exc.ClientException) as exc:
        LOG.warning("Placement cannot be asked who has provider %s: %s", provider, exc)
        return
    if others:
        raise errors.Conflict(
            f"Deployable {deployable_uuid} cannot be programmed: {sentence(min(others), provider)}"
        )


def sentence(consumer: str, provider: str) -> str:
    """Says who has it."""
    return f"Consumer {consumer} has an allocation of provider {provider} in Placement."


def _read(deployable_uuid: str, what: program.Program) -> tuple[str, set[str]] | None:
    """The provider, and the instances that the database knows; None if nothing would be written."""
    row = models.Deployable
    with db.reader() as session:
        found = session.scalar(sa.select(row).where(row.uuid == deployable_uuid))
        if found is None or found.program_mode is None or not found.is_settled:
            return None
        if what.is_run_by(found) or what.may_be_run_by(found):
            return None
        if operations.active_on(session, deployable_uuid) is not None:
            return None
        return found.rp_uuid, guard.instances(session, found)
