# SPDX-License-Identifier: Apache-2.0
"""Cards that are at other addresses than before, as after a new card has shifted the bus numbers.

A row follows its card, which it knows by the serial: control path, names of deployables and infos
of handles are those of the new address, those of handles that guests have too, so that Nova plugs
the same card again. The uuid of a resource provider stays with the card, and so do its allocations;
its name is the new one. A card that comes to an address whose provider has moved gets a provider
with a uuid of its own.

A card that is gone and whose address another one has is *displaced*: its names get its own uuid as
a suffix, and its infos name no address any more. So Nova fails where it would give a guest another
tenant's card, and nothing there is cleaned, until the card is back or is removed.

The database checks names and paths row by row. So what changes is first called by its uuid, and
cards may change places in any way, also in a ring.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import identities
from cyborg.inventory.diff import Plan

LOG = logging.getLogger(__name__)


def carry_out(session: orm.Session, plan: Plan) -> None:
    """Bring rows to where their cards are, before the rest of the plan is carried out."""
    names: dict[models.Deployable, str] = {}
    paths: dict[models.ControlPath, str] = {}
    for row, name, info in _targets(plan):
        paths[row.control_path] = identities.apart(info(row.control_path.cpid_info), row.uuid)
        for part in row.deployables:
            names[part] = name(part.name)
            for handle in part.attach_handles:
                handle.attach_info = info(handle.attach_info)
    _set(session, models.Deployable, "name", names)
    _set(session, models.ControlPath, "cpid_info", paths)
    session.flush()


#: A row, and what makes of a name of its deployables, and of an info, the one from now on.
_Target = tuple[models.Device, Callable[[str], str], Callable[[str], str]]


def _targets(plan: Plan) -> Iterator[_Target]:
    for kept in plan.moved:
        old = identities.at_home(kept.row.control_path.cpid_info)
        at: Any = {"old": old, "new": kept.device.control_path.cpid_info}
        said = base.place(old), kept.device.control_path.place
        LOG.warning("Device %s was at %s, and is at %s now", kept.row.uuid, *said)
        name, info = (functools.partial(f, **at) for f in (identities.name_at, identities.moved))
        yield kept.row, name, info
    for row in plan.displaced():
        LOG.warning("Device %s is gone, and another card is at its place", row.uuid)
        yield row, functools.partial(identities.displaced_name, uuid=row.uuid), identities.displaced


def _set(session: orm.Session, model: Any, column: str, values: Mapping[Any, str]) -> None:
    changed = {row: value for row, value in values.items() if getattr(row, column) != value}
    if changed:
        these = model.id.in_([row.id for row in changed])
        db.update(session, model, these, **{column: model.uuid})
    for row, value in changed.items():
        setattr(row, column, value)
