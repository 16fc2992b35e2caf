# SPDX-License-Identifier: Apache-2.0
"""Write converted rows: each batch in one transaction, and only what is not there yet.

Rows are the same by their uuid. So an import that was killed goes on where it was, and one that is
repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, work
from cyborg.db import models
from cyborg.importing.convert import ImportedArq, ImportedDeployable, Values, Whole
from cyborg.placement import adoption
from cyborg.states import handle_states

_HOST, _PROFILE = models.Host, models.DeviceProfile


def conflicts_of_profiles(session: orm.Session, found: Sequence[Values]) -> list[str]:
    """A sentence for each profile whose name another one has here already."""
    there = _by(session, _PROFILE.name, _PROFILE.uuid, [values["name"] for values in found])
    return [
        f"Device profile {values['name']} exists here with the uuid {there[values['name']]}, and "
        f"has {values['uuid']} in the old database. Delete the one here."
        for values in found
        if there.get(values["name"], values["uuid"]) != values["uuid"]
    ]


def conflicts_of_devices(session: orm.Session, found: Sequence[Whole]) -> list[str]:
    """A sentence for each deployable whose name another one has here already.

    And one for each host that is known from Ironic here, and so may have no deployables.
    """
    host = models.Host
    nodes = {whole.hostname for whole in found}
    of_ironic = session.scalars(
        sa.select(host.node).where(host.node.in_(nodes), host.managed_by == models.IRONIC)
    )
    bare = [
        f"Host {node} is known here from Ironic alone. Run `cyborg-ironic forget {node}` first."
        for node in sorted(of_ironic)
    ]
    names = [part.values["name"] for whole in found for part in whole.parts]
    there = _by(session, models.Deployable.name, models.Deployable.uuid, names)
    return bare + [
        f"Deployable {part.values['name']} exists here with the uuid "
        f"{there[part.values['name']]}, and has {part.values['uuid']} in the old database: an "
        "agent has reported it here. Import into a new, empty database."
        for whole in found
        for part in whole.parts
        if there.get(part.values["name"], part.values["uuid"]) != part.values["uuid"]
    ]


def conflicts_of_arqs(session: orm.Session, found: Sequence[ImportedArq]) -> list[str]:
    """A sentence for each ARQ that is here already and not as the old database has it."""
    arq, handle = models.Arq, models.AttachHandle
    uuids = [request.values["uuid"] for request in found]
    query = (
        sa.select(arq.uuid, arq.state, arq.consumer_uuid, handle.uuid)
        .outerjoin(handle, handle.id == arq.attach_handle_id)
        .where(arq.uuid.in_(uuids))
    )
    there = {uuid: rest for uuid, *rest in session.execute(query)}
    return [
        f"ARQ {request.values['uuid']} has changed since it was imported: it is {there[uuid][0]} "
        f"here and would be {request.values['state']}. Import into a new, empty database."
        for request in found
        if (uuid := request.values["uuid"]) in there
        and there[uuid]
        != [
            request.values["state"],
            request.values["consumer_uuid"],
            None if request.needs_step else request.handle,
        ]
    ]


def _by(
    session: orm.Session, key: sa.SQLColumnExpression[str], value: Any, keys: Collection[str]
) -> dict[str, Any]:
    """A value of the rows that have one of the keys, by their keys."""
    return dict(list(session.execute(sa.select(key, value).where(key.in_(keys)))))


def count_new(session: orm.Session, model: type[Any], uuids: Sequence[str]) -> int:
    """The number of these that are not there yet."""
    return len(uuids) - len(_there(session, model, uuids))


def _there(session: orm.Session, model: type[Any], uuids: Sequence[str]) -> set[str]:
    return set(session.scalars(sa.select(model.uuid).where(model.uuid.in_(uuids))))


def _insert(session: orm.Session, model: type[Any], rows: Sequence[Values]) -> None:
    if rows:
        session.execute(sa.insert(model), list(rows))


@db.retry
def store_profiles(found: Sequence[Values]) -> None:
    """Insert device profiles."""
    with db.writer() as session:
        there = _there(session, models.DeviceProfile, [values["uuid"] for values in found])
        new = [values for values in found if values["uuid"] not in there]
        _insert(session, models.DeviceProfile, new)


@db.retry
def store_devices(found: Sequence[Whole]) -> None:
    """Insert devices with all that belongs to them, and their hosts.

    A host is down until its agent reports; until then it has the name of its node.
    """
    with db.writer() as session:
        hosts = _hosts(session, {whole.hostname for whole in found})
        there = _there(session, models.Device, [whole.values["uuid"] for whole in found])
        new = [whole for whole in found if whole.values["uuid"] not in there]
        device_rows = [whole.values | {"host_id": hosts[whole.hostname]} for whole in new]
        _insert(session, models.Device, device_rows)
        devices = _ids(session, models.Device, [row["uuid"] for row in device_rows])
        paths, parts = list[Values](), list[tuple[ImportedDeployable, int]]()
        for whole in new:
            own = {"device_id": devices[whole.values["uuid"]], "host_id": hosts[whole.hostname]}
            paths.append(whole.path | own)
            parts += [(part, own["device_id"]) for part in whole.parts]
        _insert(session, models.ControlPath, paths)
        _store_parts(session, parts)


def _store_parts(session: orm.Session, parts: Sequence[tuple[ImportedDeployable, int]]) -> None:
    rows = [part.values | {"device_id": device_id} for part, device_id in parts]
    _insert(session, models.Deployable, rows)
    ids = _ids(session, models.Deployable, [row["uuid"] for row in rows])
    attributes, handles = list[Values](), list[Values]()
    for part, _ in parts:
        own = {"deployable_id": ids[part.values["uuid"]]}
        attributes += [values | own for values in part.attributes]
        handles += [values | own for values in part.handles]
    _insert(session, models.Attribute, attributes)
    _insert(session, models.AttachHandle, handles)
    parents = {part.values["uuid"]: part.parent for part, _ in parts if part.parent is not None}
    below = [
        {"id": ids[uuid], "parent_id": ids[parent], "root_id": ids[_top(uuid, parents)]}
        for uuid, parent in parents.items()
    ]
    if below:
        session.execute(sa.update(models.Deployable), below)


def _top(uuid: str, parents: Mapping[str, str | None]) -> str:
    seen = {uuid}
    while (above := parents.get(uuid)) is not None and above not in seen:
        uuid = above
        seen.add(above)
    return uuid


def _hosts(session: orm.Session, nodes: set[str]) -> dict[str, int]:
    """The ids of the hosts of these nodes; those that are not there are made."""
    there = _by(session, _HOST.node, _HOST.id, nodes)
    rows = [
        {
            "uuid": models.new_uuid(),
            "name": node,
            "node": node,
            "driver_errors": {},
            "down": True,
            "audited_ms": db.now_ms(),
            "created_at": models.utcnow(),
        }
        for node in sorted(nodes - there.keys())
    ]
    if rows:
        session.execute(sa.insert(models.Host).values(rows))
    return there if not rows else _by(session, _HOST.node, _HOST.id, nodes)


def _ids(session: orm.Session, model: type[Any], uuids: Sequence[str]) -> dict[str, int]:
    return _by(session, model.uuid, model.id, uuids)


@db.retry
def store_arqs(found: Sequence[ImportedArq]) -> None:
    """Insert ARQs, the beginning of their history, and the work that ends what is unfinished."""
    with db.writer() as session:
        there = _there(session, models.Arq, [request.values["uuid"] for request in found])
        new = [request for request in found if request.values["uuid"] not in there]
        given = [request.handle for request in new if request.handle is not None]
        handles = _ids(session, models.AttachHandle, given)
        names = {request.values["device_profile_name"] for request in new}
        made_of = _by(session, _PROFILE.name, _PROFILE.uuid, names)
        rows = [
            {
                **request.values,
                "device_profile_uuid": made_of.get(request.values["device_profile_name"]),
                "attach_handle_id": (
                    handles[request.handle]
                    if request.handle is not None and not request.needs_step
                    else None
                ),
            }
            for request in new
            if not is_only_left(request)
        ]
        if rows:
            asked = {"instance_asked_ms": db.now_ms()}
            session.execute(sa.insert(models.Arq).values([row | asked for row in rows]))
            # Who had what before, and gave it back, upstream has not kept.
            history.note_forgotten(session, db.now_ms())
        history.write(session, [request.used for request in new if request.used])
        _leave(session, new, handles)


def is_only_left(found: object) -> bool:
    """True if it is an ARQ that gets no row: only what it has left is noted."""
    return isinstance(found, ImportedArq) and found.values["state"] == models.DELETING


def _leave(session: orm.Session, new: Sequence[ImportedArq], handles: Mapping[str, int]) -> None:
    """Have those handles cleaned that were still to be; one may be noted or clean already."""
    left = {each.handle: each for each in new if each.needs_step and each.handle is not None}
    handle = models.AttachHandle
    query = sa.select(handle.uuid).where(handle.uuid.in_(left), ~handle.is_kept)
    still = list(session.scalars(query.with_for_update()))
    handle_states.leave(
        session,
        [
            handle_states.Leaving(
                handles[uuid],
                models.Arq(needs_write=False, **left[uuid].values),
                handle_states.Event.LEFT,
            )
            for uuid in still
        ],
    )
    work.want(session, work.HOST_STEP, still)


@db.retry
def store_providers(found: Sequence[Whole]) -> None:
    """Record the resource providers as ours, as upstream has made them.

    Nothing of them is given out before their allocations were compared with the ARQs.
    """
    parts = {part.values["rp_uuid"]: (whole, part) for whole in found for part in whole.parts}
    with db.writer() as session:
        hosts = _by(session, _HOST.node, _HOST.id, {whole.hostname for whole in found})
        there = _there(session, models.ResourceProvider, list(parts))
        _insert(
            session,
            models.ResourceProvider,
            [
                {
                    "uuid": uuid,
                    "name": part.values["name"],
                    "host_id": hosts[whole.hostname],
                    "generation": None,
                    "withheld": adoption.NOT_COMPARED,
                    "created_at": models.utcnow(),
                    "written": {
                        "inventories": {part.resource_class: None} if part.resource_class else {},
                        "traits": part.traits,
                        "others": {"inventories": {}, "traits": []},
                    },
                }
                for uuid, (whole, part) in parts.items()
                if uuid not in there
            ],
        )
