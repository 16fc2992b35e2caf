# SPDX-License-Identifier: Apache-2.0
"""Carry out the plan of a host's report: insert and update rows, and mark those that are gone."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import reasons
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import attributes, identities, moves
from cyborg.inventory.diff import KeptDevice, NewDevice, Plan, handle_key, path_key
from cyborg.notifications import notices
from cyborg.placement import adoption
from cyborg.programming import operations, reports
from cyborg.states import arq_states

#: Why a device is disabled until an administrator enables it.
_LOOK = (
    "Another card than before is in its slot, or may be. Look at it, and at lists that have its "
    "address, and enable the device."
)
_VANISHED = Reason(
    reasons.UNAVAILABLE, "The device vanished from its host while it was being prepared."
)
_PCI_ADDRESS = ("domain", "bus", "device", "function")
_PciAddress = tuple[str | None, ...]
_INSERT_HANDLES = sa.insert(cast(sa.Table, models.AttachHandle.__table__))
#: Several statements make less of a peak of memory, which the process would keep, than a large one.
_ROWS_AT_ONCE = 500


def apply(
    session: orm.Session,
    host_id: int,
    plan: Plan,
    known: Iterable[models.Device],
    reported: Mapping[str, Set[tuple[str, str]]],
) -> list[models.Device]:
    """Carry the plan out, and return the rows of new devices. ``known`` are all of the host.

    ``reported`` are the keys of all handles that each deployable was reported with, by its name;
    the plan lacks those that are held as part of another one.

    Rows that are gone are marked as missing; :func:`cyborg.inventory.missing.discard` deletes
    those that no ARQ holds.

    :raises RestartTransaction: a bind to a handle that is gone has ended since the rows were read
    """
    moves.carry_out(session, plan)
    gone = _mark_gone(plan)
    lost = _handles_of(gone)
    for kept in plan.kept:
        _update_device(kept)
    rows = [row for row, _, _ in plan.kept_deployables]
    away = [handle for handle in _handles_of(rows) if handle.missing]
    for row, kept, deployable in plan.kept_deployables:
        lost += _update_deployable(session, row, kept, deployable)
    for handle in lost:
        handle.missing = True
    new, renamed = _insert(session, host_id, plan, known, reported)
    written_ms = {row.id: row.programmed_ms for row in [*gone, *rows]}
    _fail_binds(session, lost, plan.device_uuids(), written_ms)
    returned = [handle for handle in away if not handle.missing]
    pending = [*_in_step(lost), *_in_step(returned), *_not_prepared(plan)]
    work.want(session, work.HOST_STEP, pending)
    doubtful = [row.uuid for row in [*rows, *renamed] if not row.is_settled]
    work.want(session, work.PROGRAM, doubtful)
    return new


def _handles_of(rows: Iterable[models.Deployable]) -> list[models.AttachHandle]:
    return [handle for row in rows for handle in row.attach_handles]


def _mark_gone(plan: Plan) -> list[models.Deployable]:
    """Mark as missing what is gone, and return the deployables of it."""
    for device in plan.gone:
        device.missing = True
    gone = [*(dep for row in plan.gone for dep in row.deployables), *plan.gone_deployables]
    for row in gone:
        row.missing, row.num_accelerators = True, 0
    return gone


def _update_device(kept: KeptDevice) -> None:
    columns = _device_columns(kept.driver, kept.device, kept.row) | _look(kept)
    _set(kept.row, columns, missing=False, kept_until_ms=None)
    path = kept.row.control_path
    path.cpid_type, path.cpid_info = path_key(kept.device.control_path)


def _insert(
    session: orm.Session,
    host_id: int,
    plan: Plan,
    known: Iterable[models.Device],
    reported: Mapping[str, Set[tuple[str, str]]],
) -> tuple[list[models.Device], list[models.Deployable]]:
    """Insert what is new, and return the new devices, and the new deployables of known ones."""
    uuids = _provider_uuids(known, plan.new_names())
    added = _add_deployables(plan, uuids, reported)
    renamed = [row for row, _ in added]
    new = [_device(host_id, each, uuids) for each in plan.new]
    for device, each in zip(new, plan.new, strict=True):
        added += zip(device.deployables, each.device.deployables, strict=True)
    session.add_all(new)
    session.flush()
    _complete(session, added)
    _set_parents(plan, [row for device in new for row in device.deployables])
    return new, renamed


def _add_deployables(
    plan: Plan, uuids: Mapping[str, str], reported: Mapping[str, Set[tuple[str, str]]]
) -> list[tuple[models.Deployable, base.Deployable]]:
    added = []
    for kept, deployable in plan.new_deployables:
        parts = kept.row.deployables
        if len(kept.device.deployables) > 1:
            # Which of them it is, only what guests have of it can tell.
            its = reported[deployable.name]
            parts = [part for part in parts if _has_any(part, its)]
        row = _deployable(kept.driver, deployable, uuids, reports.find_former(parts))
        kept.row.deployables.append(row)
        added.append((row, deployable))
    return added


def is_incomplete(plan: Plan) -> bool:
    """Something must be changed later; asked after the plan was applied.

    While a guest has a handle, its info and the resource class stay as they were. So do the record
    of the program and the blank image of a deployable that is not programmed any more.
    """
    return any(
        _has_other_info(row, deployable)
        or reports.is_kept_for_guests(row)
        or attributes.is_class_outdated(row, deployable)
        or row.blank_image != deployable.blank_image
        for row, _, deployable in plan.kept_deployables
    )


def provider_uuid(deployable_name: str) -> str:
    """The uuid of a deployable's resource provider, which it keeps if its card moves."""
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, deployable_name))


def _provider_uuids(known: Iterable[models.Device], names: Iterable[str]) -> dict[str, str]:
    """The uuids of new providers by name: one of their own where a card has taken theirs along."""
    taken = {part.rp_uuid for row in known for part in row.deployables}
    uuids = {name: provider_uuid(name) for name in names}
    return {name: models.new_uuid() if rp in taken else rp for name, rp in uuids.items()}


def _set(row: models.Base, columns: dict[str, Any], **more: Any) -> None:
    for name, value in (columns | more).items():
        setattr(row, name, value)


def _device_columns(
    driver: str, device: base.Device, row: models.Device | None = None
) -> dict[str, Any]:
    return {
        "driver": driver,
        "type": device.type,
        "vendor": device.vendor,
        "model": device.model,
        "std_board_info": device.std_board_info,
        "vendor_board_info": device.vendor_board_info,
        "unhealthy": device.unhealthy,
        "identity": identities.serial_to_keep(row, device),
    }


def _look(found: NewDevice | KeptDevice) -> dict[str, str]:
    return {"status": models.MAINTAINING, "disabled_reason": _LOOK} if found.look else {}


def _device(host_id: int, new: NewDevice, uuids: Mapping[str, str]) -> models.Device:
    cpid_type, cpid_info = path_key(new.device.control_path)
    return models.Device(
        host_id=host_id,
        **_device_columns(new.driver, new.device),
        **_look(new),
        control_path=models.ControlPath(host_id=host_id, cpid_type=cpid_type, cpid_info=cpid_info),
        deployables=[_deployable(new.driver, each, uuids) for each in new.device.deployables],
    )


def _deployable_columns(
    driver: str, deployable: base.Deployable, handles: Iterable[models.AttachHandle] = ()
) -> dict[str, Any]:
    return {
        "driver_name": driver,
        "num_accelerators": _num_accelerators(deployable, handles),
        "prepares": deployable.prepares,
        "cleans": deployable.cleans,
        "clean_erases": deployable.clean_erases,
        "blank_image": deployable.blank_image,
        "shared": deployable.shared,
    }


def _deployable(
    driver: str,
    deployable: base.Deployable,
    uuids: Mapping[str, str],
    former: models.Deployable | None = None,
) -> models.Deployable:
    row = models.Deployable(
        name=deployable.name,
        rp_uuid=uuids[deployable.name],
        # Said, so that to find none later is no change.
        parent_id=None,
        root_id=None,
        **_deployable_columns(driver, deployable),
        attributes=list(attributes.rows(attributes.reported(deployable))),
    )
    reports.add(row, deployable, former)
    return row


def _complete(
    session: orm.Session, added: Sequence[tuple[models.Deployable, base.Deployable]]
) -> None:
    """Insert the handles of new deployables, and doubt what is known of their providers.

    The handles are plain rows, since a host may bring thousands.
    """
    adoption.doubt(session, [row.rp_uuid for row, _ in added])
    rows = (
        {"deployable_id": row.id, "attach_type": attach_type, "attach_info": attach_info}
        for row, deployable in added
        for attach_type, attach_info in map(handle_key, deployable.attach_handles)
    )
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        session.execute(_INSERT_HANDLES, some)


def _update_deployable(
    session: orm.Session, row: models.Deployable, kept: KeptDevice, deployable: base.Deployable
) -> list[models.AttachHandle]:
    """Update a row from a report, and return its handles that are not reported any more."""
    columns = _deployable_columns(kept.driver, deployable, row.attach_handles)
    if deployable.program_mode is None and any(handle.is_kept for handle in row.attach_handles):
        # What its guests leave is overwritten on the day when it can be programmed again.
        del columns["blank_image"]
    _set(row, columns, missing=False)
    reports.update(session, row, deployable, being_written=kept.device.being_written)
    attributes.update(row, deployable)
    return _update_handles(row, deployable)


def _num_accelerators(deployable: base.Deployable, handles: Iterable[models.AttachHandle]) -> int:
    """The number of accelerators that can be given to guests.

    libvirt and operators make mediated devices too. Each that is not ours, which has the uuid of
    one of ``handles``, takes one accelerator of its parent.
    """
    if all(handle.attach_type != "MDEV" for handle in deployable.attach_handles):
        return deployable.num_accelerators
    others = set(deployable.prepared or ()) - {handle.uuid for handle in handles}
    return max(0, deployable.num_accelerators - len(others))


def _update_handles(
    row: models.Deployable, deployable: base.Deployable
) -> list[models.AttachHandle]:
    """Update a deployable's handles, and return those that are not reported any more.

    A PCI function stays the same handle if other facts of it change, such as its physical network:
    a second handle would give the same function to a second guest. The info of a handle that a
    guest has stays as it was.
    """
    rest = {handle.attach_info: handle for handle in row.attach_handles}
    new: list[base.AttachHandle] = []
    for handle in deployable.attach_handles:
        attach_type, attach_info = handle_key(handle)
        found = rest.pop(attach_info, None)
        if found is None:
            new.append(handle)
        else:
            found.attach_type = attach_type
            found.missing = False
    by_address = _by_pci_address(list(rest.values())) if new else {}
    for handle in new:
        found = by_address.pop(_pci_address(handle.attach_type, handle.attach_info), None)
        if found is None:
            attach_type, attach_info = handle_key(handle)
            # With arq set, SQLAlchemy looks for no ARQ in the database that holds the new handle.
            made = models.AttachHandle(attach_type=attach_type, attach_info=attach_info, arq=None)
            row.attach_handles.append(made)
            continue
        del rest[found.attach_info]
        found.missing = False
        if not found.is_kept:
            found.attach_info = handle_key(handle)[1]
    return list(rest.values())


def _by_pci_address(
    rows: Sequence[models.AttachHandle],
) -> dict[_PciAddress | None, models.AttachHandle]:
    """PCI functions by address; if two have the same address, the one that a guest has."""
    free_first = sorted(rows, key=lambda row: row.is_kept)
    found = {_pci_address(row.attach_type, json.loads(row.attach_info)): row for row in free_first}
    return {address: row for address, row in found.items() if address is not None}


def _pci_address(attach_type: str, info: Mapping[str, str]) -> _PciAddress | None:
    return tuple(info.get(part) for part in _PCI_ADDRESS) if attach_type == "PCI" else None


def _has_other_info(row: models.Deployable, deployable: base.Deployable) -> bool:
    """A guest has a handle that is reported with another info now."""
    reported = {handle_key(handle)[1] for handle in deployable.attach_handles}
    return any(
        not handle.missing and handle.attach_info not in reported for handle in row.attach_handles
    )


def _has_any(row: models.Deployable, keys: Set[tuple[str, str]]) -> bool:
    """The row has any of these handles."""
    return any((each.attach_type, each.attach_info) in keys for each in row.attach_handles)


def _set_parents(plan: Plan, new: Iterable[models.Deployable]) -> None:
    """Set the parent and the root of each reported deployable; missing ones keep their parent."""
    rows = [*new, *(row for kept in plan.kept for row in kept.row.deployables)]
    devices = [*(new.device for new in plan.new), *(kept.device for kept in plan.kept)]
    parents = {dep.name: dep.parent for device in devices for dep in device.deployables}
    by_name = {row.name: row for row in rows}
    by_id = {row.id: row for row in rows}
    for row in rows:
        if row.name in parents:
            # The parent is left out if another host has a deployable of its name.
            above = by_name.get(parents[row.name] or "")
            row.parent_id = above.id if above is not None else None
    for row in rows:
        row.root_id = _root_id(row, by_id)


def _root_id(row: models.Deployable, by_id: Mapping[int, models.Deployable]) -> int | None:
    """The id of the root of a deployable, or None if it is one itself."""
    root, seen = row, set[int]()
    # Rows of an earlier release may be below themselves, or below another device's.
    while root.parent_id is not None and root.parent_id in by_id and root.id not in seen:
        seen.add(root.id)
        root = by_id[root.parent_id]
    return root.id if root is not row else None


def _fail_binds(
    session: orm.Session,
    lost: Iterable[models.AttachHandle],
    device_uuids: Mapping[int, str],
    written_ms: Mapping[int, int | None],
) -> None:
    """Fail the binds for which a lost handle is being prepared.

    Some cards leave the bus while they are written: of those the host says in the end whether they
    are still there. Nor need the next report show all that comes with the new program. So a bind
    waits that began before the write ended, as long as :mod:`cyborg.handles.host_steps` lets it.

    ``device_uuids`` has the uuid of each deployable's device by the deployable's id, and
    ``written_ms`` when its last write ended well.

    :raises RestartTransaction: one of them has ended meanwhile
    """
    waiting = {
        handle: handle.arq
        for handle in lost
        if handle.arq is not None and handle.arq.state == models.BIND_STARTED
    }
    written = operations.being_written(session, {handle.deployable_id for handle in waiting})
    ends = [
        arq_states.BindEnd(
            arq,
            _VANISHED,
            notices.Handle(handle.uuid, handle.attach_type, device_uuids[handle.deployable_id]),
        )
        for handle, arq in waiting.items()
        if handle.deployable_id not in written
        and not _was_written_for(arq, written_ms[handle.deployable_id])
    ]
    if ends and not arq_states.end_binds(session, ends, attach_handle_id=None, needs_write=False):
        raise db.RestartTransaction


def _was_written_for(arq: models.Arq, written_ms: int | None) -> bool:
    """A write of its deployable has ended well since the ARQ's bind began."""
    began_ms = arq.bind_started_ms
    return began_ms is not None and written_ms is not None and began_ms <= written_ms


def _in_step(handles: Iterable[models.AttachHandle]) -> Iterator[str]:
    """Uuids of handles that may wait for a host step; the step's handler checks that."""
    for handle in handles:
        is_promised = handle.arq is not None and handle.arq.state == models.BIND_STARTED
        if handle.is_left or is_promised:
            yield handle.uuid


def _not_prepared(plan: Plan) -> Iterator[str]:
    """Handles of Bound ARQs that are not prepared any more, because their host was rebooted."""
    for row, _, deployable in plan.kept_deployables:
        if not deployable.prepares or deployable.prepared is None:
            continue
        ready = set(deployable.prepared)
        for handle in row.attach_handles:
            bound = handle.arq is not None and handle.arq.state == models.BOUND
            if bound and not handle.missing and handle.uuid not in ready:
                yield handle.uuid
