# SPDX-License-Identifier: Apache-2.0
"""An allocation's side in Placement: what its consumer holds there.

Placement keeps a type of each consumer; that of ours begins with :data:`PREFIX`, so that what Nova
or others have claimed is never changed here. Both functions may be run twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from cyborg import errors, work
from cyborg.db import models
from cyborg.placement import client

#: What the consumer types of our claims begin with.
PREFIX = "CYBORG_"

#: Changes by others that one call is made again after.
_ATTEMPTS = 5


class NoRoom(errors.Conflict):
    """There is no room any more for what was chosen."""


class NotOurs(errors.Conflict):
    """Somebody else has claimed something for the consumer."""


def owner_of(row: models.Allocation) -> client.Owner:
    """Whose the allocation is, as Placement keeps it."""
    return client.Owner(
        project_id=row.project_id,
        user_id=row.user_id,
        consumer_type=f"{PREFIX}{row.consumer_type}",
    )


def take(
    api: client.Client, uuid: str, owner: client.Owner, amounts: Mapping[str, Mapping[str, int]]
) -> None:
    """Hold exactly that for the consumer, whatever we held for it before.

    :raises NoRoom: there is no room for it
    :raises NotOurs: the consumer has something that is not ours
    :raises TryLater: others change the same providers all the time
    """
    generation = None
    for _ in range(_ATTEMPTS):
        try:
            api.hold(uuid, owner, amounts, generation)
        except client.GenerationConflict:
            held = api.find_held(uuid)
            if held is not None and not _is_ours(held):
                raise NotOurs(
                    f"consumer: Placement has an allocation of consumer {uuid} that Cyborg has not "
                    "made; give another uuid, or delete that allocation."
                ) from None
            generation = None if held is None else held.generation
        except client.NotPermitted:
            raise
        except client.Refused as exc:
            raise NoRoom(str(exc)) from exc
        else:
            return
    raise work.TryLater(f"Others keep changing what consumer {uuid} claims")


def give_back(api: client.Client, uuid: str) -> None:
    """Hold nothing for the consumer any more; what others have claimed for it stays.

    :raises TryLater: others change the same consumer all the time
    """
    for _ in range(_ATTEMPTS):
        held = api.find_held(uuid)
        if held is None or not _is_ours(held):
            return
        try:
            api.hold(uuid, held.owner, {}, held.generation)
        except client.GenerationConflict:
            continue
        return
    raise work.TryLater(f"Others keep changing what consumer {uuid} has")


def _is_ours(held: client.Held) -> bool:
    return held.owner.consumer_type.startswith(PREFIX)
