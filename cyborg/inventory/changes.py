# SPDX-License-Identifier: Apache-2.0
"""What distinguishes a host's rows from its report: a pure :func:`diff`, and :func:`apply`.

The diff reads loaded rows and frozen dataclasses and touches neither.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import orm

from cyborg import work
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import attributes, handles, lost_handles, mediated
from cyborg.programming import reports

LOG = logging.getLogger(__name__)

_CpidKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDevice:
    """A device to insert with all that belongs to it."""

    driver: str
    device: base.Device


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDevice:
    """A device that is in the database and in the report."""

    row: models.Device
    driver: str
    device: base.Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a report changes."""

    new: tuple[NewDevice, ...] = ()
    kept: tuple[KeptDevice, ...] = ()
    gone: tuple[models.Device, ...] = ()
    new_deployables: tuple[tuple[KeptDevice, base.Deployable], ...] = ()
    kept_deployables: tuple[tuple[models.Deployable, KeptDevice, base.Deployable], ...] = ()
    gone_deployables: tuple[models.Deployable, ...] = field(default=())

    def summary(self) -> str:
        """The plan in numbers, for the log."""
        return f"{len(self.new)} devices new, {len(self.kept)} kept, {len(self.gone)} gone"

    def new_names(self) -> dict[str, str]:
        """Names of the deployables to insert, each with its driver."""
        of_new = {dep.name: new.driver for new in self.new for dep in new.device.deployables}
        return of_new | {dep.name: kept.driver for kept, dep in self.new_deployables}

    def device_uuids(self) -> dict[int, str]:
        """The device of each deployable that there was, by the deployable's id."""
        rows = (*self.gone, *(kept.row for kept in self.kept))
        return {dep.id: row.uuid for row in rows for dep in row.deployables}

    def health_changes(self) -> list[tuple[str, str | None]]:
        """Control paths of devices that have fallen ill, each with the reason, or got well: None.

        To be asked before the plan is applied, which changes the rows.
        """
        healths: list[tuple[base.Device, str | None]] = [(new.device, None) for new in self.new]
        healths += [(kept.device, kept.row.unhealthy) for kept in self.kept]
        return [
            (" ".join(_key(device.control_path)), device.unhealthy)
            for device, before in healths
            if device.unhealthy != before
        ]


def diff(
    known: Sequence[models.Device],
    reported: Mapping[str, Sequence[base.Device]],
    *,
    failed_drivers: set[str],
) -> Plan:
    """Match the rows of a host with its report.

    A device is the same when its control path is, or failing that when a deployable of it has the
    same name. What a failed driver reported before is neither kept up to date nor gone, nor is it
    another driver's that may see it now.
    """
    rows = {_key_of_row(row): row for row in known}
    by_name = {dep.name: row for row in known for dep in row.deployables}
    untold = {row.id for row in known if row.driver in failed_drivers}
    new: list[NewDevice] = []
    kept: list[KeptDevice] = []
    matched: set[int] = set()
    left: list[tuple[str, base.Device]] = []
    for driver, device in _each(reported):
        row = rows.get(_key(device.control_path))
        if row is None or row.id in matched:
            left.append((driver, device))
        elif row.id not in untold or row.driver == driver:
            matched.add(row.id)
            kept.append(_kept(row, driver, device))
    for driver, device in left:
        row = next((by_name[dep.name] for dep in device.deployables if dep.name in by_name), None)
        if row is None or row.id in matched:
            new.append(NewDevice(driver=driver, device=device))
        elif row.id not in untold or row.driver == driver:
            matched.add(row.id)
            kept.append(_kept(row, driver, device))
    gone = (row for row in known if row.id not in matched | untold)
    return _with_deployables(Plan(new=tuple(new), kept=tuple(kept), gone=tuple(gone)))


def _kept(row: models.Device, driver: str, device: base.Device) -> KeptDevice:
    if device.health_unknown:
        device = replace(device, unhealthy=row.unhealthy)
    return KeptDevice(row=row, driver=driver, device=device)


def _each(reported: Mapping[str, Sequence[base.Device]]) -> Iterator[tuple[str, base.Device]]:
    for driver, devices in sorted(reported.items()):
        for device in devices:
            yield driver, device


def _key(path: base.ControlPath) -> _CpidKey:
    return path.cpid_type, base.canonical_json(dict(path.cpid_info))


def _key_of_row(row: models.Device) -> _CpidKey:
    return row.control_path.cpid_type, row.control_path.cpid_info


def _with_deployables(plan: Plan) -> Plan:
    new: list[tuple[KeptDevice, base.Deployable]] = []
    same: list[tuple[models.Deployable, KeptDevice, base.Deployable]] = []
    gone: list[models.Deployable] = []
    for kept in plan.kept:
        rows = {row.name: row for row in kept.row.deployables}
        for deployable in kept.device.deployables:
            row = rows.pop(deployable.name, None)
            if row is None:
                new.append((kept, deployable))
            else:
                same.append((row, kept, deployable))
        gone.extend(rows.values())
    return replace(
        plan,
        new_deployables=tuple(new),
        kept_deployables=tuple(same),
        gone_deployables=tuple(gone),
    )


def without(plan: Plan, names: set[str]) -> Plan:
    """The plan less every insertion of a deployable with one of ``names``."""
    if not names:
        return plan
    return replace(
        plan,
        new=tuple(
            new for new in plan.new if names.isdisjoint(dep.name for dep in new.device.deployables)
        ),
        new_deployables=tuple(
            (kept, dep) for kept, dep in plan.new_deployables if dep.name not in names
        ),
    )


def apply(session: orm.Session, host_id: int, plan: Plan) -> list[models.Device]:
    """Carry the plan out, and return the rows of new devices.

    What is gone is marked, for :func:`cyborg.inventory.missing.discard`.
    """
    lost: list[models.AttachHandle] = []
    for device in plan.gone:
        device.missing = True
        lost += _lose_deployables(device.deployables)
    lost += _lose_deployables(plan.gone_deployables)
    for kept in plan.kept:
        _update_device(kept)
    known = [handle for row, *_ in plan.kept_deployables for handle in row.attach_handles]
    away = [handle for handle in known if handle.missing]
    for row, kept, deployable in plan.kept_deployables:
        lost += _update_deployable(session, row, kept.driver, deployable)
    for kept, deployable in plan.new_deployables:
        session.add(_deployable(kept.driver, deployable, kept.row))
    inserted = [list(_device(host_id, new)) for new in plan.new]
    for rows in inserted:
        session.add_all(rows)
    session.flush()
    _nest(plan, [row for rows in inserted for row in rows if isinstance(row, models.Deployable)])
    lost_handles.fail_binds(session, lost, plan.device_uuids())
    returned = [handle for handle in away if not handle.missing]
    pending = [*lost_handles.pending_steps([*lost, *returned]), *_forgotten(plan)]
    work.want(session, work.HOST_STEP, pending)
    unsettled = (row.uuid for row, _, _ in plan.kept_deployables if not row.is_settled)
    work.want(session, work.PROGRAM, unsettled)
    return [row for rows in inserted for row in rows if isinstance(row, models.Device)]


def _nest(plan: Plan, new: Iterable[models.Deployable]) -> None:
    """Put every deployable below its parent; one that is missing stays where it was."""
    rows = [*new, *(row for kept in plan.kept for row in kept.row.deployables)]
    devices = [*(new.device for new in plan.new), *(kept.device for kept in plan.kept)]
    parents = {dep.name: dep.parent for device in devices for dep in device.deployables}
    by_name = {row.name: row for row in rows}
    by_id = {row.id: row for row in rows}
    for row in rows:
        if row.name in parents:
            # Where another host has one of the parent's name, that is left out.
            above = by_name.get(parents[row.name] or "")
            row.parent_id = above.id if above is not None else None
    for row in rows:
        root, seen = row, set[int]()
        # What an earlier release left may be below itself, or below another device's.
        while root.parent_id is not None and root.parent_id in by_id and root.id not in seen:
            seen.add(root.id)
            root = by_id[root.parent_id]
        row.root_id = root.id if root is not row else None


def _lose_deployables(rows: Iterable[models.Deployable]) -> list[models.AttachHandle]:
    lost: list[models.AttachHandle] = []
    for row in rows:
        row.missing = True
        row.num_accelerators = 0
        lost += _lose_handles(row.attach_handles)
    return lost


def _lose_handles(handles: Iterable[models.AttachHandle]) -> list[models.AttachHandle]:
    lost = list(handles)
    for handle in lost:
        handle.missing = True
    return lost


def _update_device(kept: KeptDevice) -> None:
    row, device = kept.row, kept.device
    row.driver = kept.driver
    row.type = device.type
    row.vendor = device.vendor
    row.model = device.model
    row.std_board_info = device.std_board_info
    row.vendor_board_info = device.vendor_board_info
    row.unhealthy = device.unhealthy
    row.missing = False
    row.control_path.cpid_type, row.control_path.cpid_info = _key(device.control_path)


def _update_deployable(
    session: orm.Session, row: models.Deployable, driver: str, deployable: base.Deployable
) -> list[models.AttachHandle]:
    row.driver_name = driver
    row.num_accelerators = mediated.accelerators(deployable, row.attach_handles)
    row.prepares = deployable.prepares
    row.cleans = deployable.cleans
    row.clean_erases = deployable.clean_erases
    row.missing = False
    reports.update(session, row, deployable)
    _update_attributes(row, deployable)
    return _lose_handles(handles.update(row, deployable))


def _update_attributes(row: models.Deployable, deployable: base.Deployable) -> None:
    present = {attribute.key: attribute for attribute in row.attributes}
    wanted = attribute_rows(deployable, row.attributes)
    held = any(handle.arq is not None for handle in row.attach_handles)
    for key, value in wanted.items():
        attribute = present.get(key)
        if attribute is None:
            row.attributes.append(models.Attribute(key=key, value=value, origin="driver"))
        elif attribute.origin == "driver" and not (key == "rc" and held):
            # A guest's allocation is of the old resource class, which stays until it is gone.
            attribute.value = value
    untold = attributes.untold(present.values(), wanted) if held else set()
    for key, attribute in present.items():
        if attribute.origin == "driver" and key not in wanted and key not in untold:
            row.attributes.remove(attribute)


def waits(plan: Plan) -> bool:
    """Whether something could not be changed yet, after the plan was applied.

    That is a resource class, a handle, or the record of what is not programmed any more.
    """
    return any(
        handles.waits(row, deployable) or reports.is_kept_for_guests(row)
        for row, _, deployable in plan.kept_deployables
    ) or any(
        (attribute.key, attribute.origin) == ("rc", "driver")
        and attribute.value != deployable.resource_class
        for row, _, deployable in plan.kept_deployables
        for attribute in row.attributes
    )


def attribute_rows(
    deployable: base.Deployable, present: Iterable[models.Attribute] = ()
) -> dict[str, str]:
    """The attribute rows of a reported deployable: ``traits1``…, ``rc`` and the driver's own.

    A trait that has a row keeps its key; a new one gets the first number that is free.
    """
    taken = {attribute.key: attribute for attribute in present}
    new = dict.fromkeys(deployable.traits)
    wanted: dict[str, str] = {}
    for key, attribute in taken.items():
        if key.startswith("trait") and attribute.value in new:
            del new[attribute.value]
            if attribute.origin == "driver":
                wanted[key] = attribute.value
    numbers = (f"traits{number}" for number in range(1, len(taken) + len(new) + 1))
    free = (key for key in numbers if key not in taken)
    wanted |= {next(free): trait for trait in new}
    own = {key: str(value) for key, value in deployable.attributes.items()}
    return wanted | {"rc": deployable.resource_class} | own


def _device(host_id: int, new: NewDevice) -> Iterator[models.Base]:
    device = new.device
    row = models.Device(
        host_id=host_id,
        driver=new.driver,
        type=device.type,
        vendor=device.vendor,
        model=device.model,
        std_board_info=device.std_board_info,
        vendor_board_info=device.vendor_board_info,
        unhealthy=device.unhealthy,
    )
    cpid_type, cpid_info = _key(device.control_path)
    yield row
    yield models.ControlPath(
        device=row, host_id=host_id, cpid_type=cpid_type, cpid_info=cpid_info
    )
    for deployable in device.deployables:
        yield _deployable(new.driver, deployable, row)


def _deployable(
    driver: str, deployable: base.Deployable, device: models.Device
) -> models.Deployable:
    row = models.Deployable(
        device=device,
        name=deployable.name,
        num_accelerators=mediated.accelerators(deployable),
        rp_uuid=provider_uuid(deployable.name),
        driver_name=driver,
        prepares=deployable.prepares,
        cleans=deployable.cleans,
        clean_erases=deployable.clean_erases,
        attributes=[
            models.Attribute(key=key, value=value, origin="driver")
            for key, value in attribute_rows(deployable).items()
        ],
        attach_handles=[handles.made(handle) for handle in deployable.attach_handles],
    )
    reports.add(row, deployable)
    return row


def provider_uuid(deployable_name: str) -> str:
    """The resource provider of a deployable: the same wherever and whenever it is computed."""
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, deployable_name))


def _forgotten(plan: Plan) -> Iterator[str]:
    """Handles that guests have and that are not ready on their host any more: it was rebooted."""
    for row, _, deployable in plan.kept_deployables:
        if deployable.prepares and deployable.prepared is not None:
            ready = set(deployable.prepared)
            for handle in row.attach_handles:
                bound = handle.arq is not None and handle.arq.state == models.BOUND
                if bound and not handle.missing and handle.uuid not in ready:
                    yield handle.uuid
