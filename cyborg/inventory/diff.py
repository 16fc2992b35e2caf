# SPDX-License-Identifier: Apache-2.0
"""The difference between a host's rows and its report, as a :class:`Plan`.

Everything here is pure: it reads loaded rows and reported devices and changes neither.
:mod:`cyborg.inventory.apply` carries the plan out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from cyborg.common.reasons import is_news
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import identities
from cyborg.notifications import notices

#: The devices that each driver reports, by the driver's name.
Reported = Mapping[str, Sequence[base.Device]]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDevice:
    """A device to insert, with its control path, deployables and attach handles."""

    driver: str
    device: base.Device
    #: Whether another card was there, and an administrator must look before it is given out.
    look: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDevice:
    """A device that is in the database and in the report."""

    row: models.Device
    driver: str
    device: base.Device
    #: Whether it is known by its serial, and elsewhere than it was.
    moved: bool = False
    #: Whether it may be another card, and an administrator must look before it is given out.
    look: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a report changes."""

    new: tuple[NewDevice, ...] = ()
    kept: tuple[KeptDevice, ...] = ()
    gone: tuple[models.Device, ...] = ()
    new_deployables: tuple[tuple[KeptDevice, base.Deployable], ...] = ()
    kept_deployables: tuple[tuple[models.Deployable, KeptDevice, base.Deployable], ...] = ()
    gone_deployables: tuple[models.Deployable, ...] = ()
    #: The ids of those gone ones that are known to be elsewhere, where another may still be.
    stuck: frozenset[int] = frozenset()

    @property
    def moved(self) -> tuple[KeptDevice, ...]:
        """Cards that are at another address than before."""
        return tuple(kept for kept in self.kept if kept.moved)

    def displaced(self) -> tuple[models.Device, ...]:
        """Those that are gone and have an address or a name that another card has now."""
        comers = [*(new.device for new in self.new), *(kept.device for kept in self.moved)]
        taken = {path_key(device.control_path) for device in comers}
        names = {part.name for device in comers for part in device.deployables}
        return tuple(
            row
            for row in self.gone
            if row.id in self.stuck
            or _row_key(row) in taken
            or not names.isdisjoint(part.name for part in row.deployables)
        )

    def summary(self) -> str:
        """The numbers of devices, for the log."""
        return f"{len(self.new)} devices new, {len(self.kept)} kept, {len(self.gone)} gone"

    def new_names(self) -> dict[str, str]:
        """The driver of each deployable to insert, by the deployable's name."""
        of_new = {dep.name: new.driver for new in self.new for dep in new.device.deployables}
        return of_new | {dep.name: kept.driver for kept, dep in self.new_deployables}

    def new_names_being_written(self) -> list[str]:
        """Those of :meth:`new_names` whose device may be in the middle of a write."""
        written = (new.device for new in self.new if new.device.being_written)
        names = [dep.name for device in written for dep in device.deployables]
        return names + [dep.name for kept, dep in self.new_deployables if kept.device.being_written]

    def device_uuids(self) -> dict[int, str]:
        """The device's uuid of each deployable in the database, by the deployable's id."""
        rows = (*self.gone, *(kept.row for kept in self.kept))
        return {dep.id: row.uuid for row in rows for dep in row.deployables}

    def health_changes(self) -> list[tuple[str, str | None]]:
        """Control paths of devices whose health changes, each with what is wrong now, if anything.

        Call this before the plan is applied, which changes the rows.
        """
        healths: list[tuple[base.Device, str | None]] = [(new.device, None) for new in self.new]
        healths += [(kept.device, kept.row.unhealthy) for kept in self.kept]
        return [
            (device.control_path.place, device.unhealthy)
            for device, before in healths
            if is_news(before, device.unhealthy)
        ]

    def ill(self) -> dict[str, str | None]:
        """The present faults of known devices that are or were unhealthy, by uuid; None if cured.

        Call this before the plan is applied, likewise.
        """
        healths = ((kept.row, kept.device.unhealthy) for kept in self.kept)
        return {row.uuid: now for row, now in healths if (row.unhealthy, now) != (None, None)}

    def events(self, told: Set[str]) -> Iterator[tuple[notices.NoticeKind, models.Device]]:
        """The events of the known devices: missing, found again, unhealthy, healthy.

        The health is told of devices with the uuids ``told``. Read this before the plan is applied,
        which changes the rows.
        """
        for row in self.gone:
            if not row.missing:
                yield notices.DEVICE_MISSING, row
        for kept in self.kept:
            if kept.row.missing:
                yield notices.DEVICE_FOUND, kept.row
            elif kept.moved:
                yield notices.DEVICE_MOVED, kept.row
            if kept.look:
                yield notices.DEVICE_DISABLED, kept.row
            if kept.row.uuid in told:
                is_ill = kept.device.unhealthy is not None
                yield notices.DEVICE_UNHEALTHY if is_ill else notices.DEVICE_HEALTHY, kept.row


def rows_with(known: Iterable[models.Device], addresses: Collection[str]) -> frozenset[int]:
    """The ids of devices that have one of these PCI functions."""
    if not addresses:
        return frozenset()
    return frozenset(
        row.id
        for row in known
        if not {_pci_function(text) for text in _infos(row)}.isdisjoint(addresses)
    )


def _infos(row: models.Device) -> Iterator[str]:
    yield row.control_path.cpid_info
    yield from (each.attach_info for dep in row.deployables for each in dep.attach_handles)


def _pci_function(info: str) -> str | None:
    """The address of a PCI function in a control path or attach handle, or None."""
    parts = json.loads(info)
    try:
        return "{domain}:{bus}:{device}.{function}".format_map(parts)
    except KeyError:
        return None


def frozen_ids(
    known: Iterable[models.Device], failed_drivers: Set[str], unknown: Set[_Key]
) -> frozenset[int]:
    """The ids of devices of which nothing is known now.

    Their driver failed, or the report has something at their control paths that we cannot read.
    """
    return frozenset(
        row.id
        for row in known
        if row.driver in failed_drivers
        or (row.control_path.cpid_type, row.control_path.cpid_info) in unknown
    )


def diff(
    known: Sequence[models.Device],
    reported: Reported,
    *,
    frozen: Set[int],
    unread: Set[int] = frozenset(),
) -> Plan:
    """Match the rows of a host with its report.

    A device is the same if its card shows the same serial, see :mod:`.identities`; or else, unless
    it is certainly another card, if its control path is the same, or one of its deployables has
    the same name. Frozen devices are not updated and do not count as gone, and no other driver
    that reports them now takes them over. Nor does any driver change those whose ids are in
    ``unread``.
    """
    rows = {_row_key(row): row for row in known}
    by_name = {dep.name: row for row in known for dep in row.deployables}
    found = list(_each(reported))
    followed = identities.followed(known, [device for _, device in found])
    same_card = {row.id for row in followed.values()}
    new: list[NewDevice] = []
    kept: list[KeptDevice] = []
    matched: set[int] = set()
    unmatched: list[tuple[str, base.Device]] = []

    def is_it(row: models.Device | None, device: base.Device) -> bool:
        """The device may be that of the row."""
        if row is None or row.id in matched | same_card:
            return False
        return row.id in frozen | unread or not identities.is_other(row, device)

    def keep(row: models.Device, driver: str, device: base.Device) -> None:
        if row.id not in unread and (row.id not in frozen or row.driver == driver):
            matched.add(row.id)
            one = _kept(row, driver, device, by_serial=row.id in same_card)
            there = rows.get(path_key(device.control_path), row)
            kept.append(replace(one, look=one.look or _may_have_been(there, one)))

    for number, (driver, device) in enumerate(found):
        row = rows.get(path_key(device.control_path))
        if number in followed:
            keep(followed[number], driver, device)
        elif row is not None and is_it(row, device):
            keep(row, driver, device)
        else:
            unmatched.append((driver, device))
    for driver, device in unmatched:
        row = next((by_name[dep.name] for dep in device.deployables if dep.name in by_name), None)
        if row is not None and is_it(row, device):
            keep(row, driver, device)
        else:
            look = path_key(device.control_path) in rows and identities.is_doubtful(device)
            new.append(NewDevice(driver=driver, device=device, look=look))
    stuck = _stuck(known, kept, matched | frozen | unread)
    kept = [each for each in kept if each.row.id not in stuck]
    gone = [row for row in known if row.id not in (matched - stuck) | frozen | unread]
    plan = Plan(new=tuple(new), kept=tuple(kept), gone=tuple(gone), stuck=stuck)
    return _with_deployables(_looked_at(plan))


def _looked_at(plan: Plan) -> Plan:
    """The plan with a look at each card without a serial that may be another of its kind.

    That is so if one of the kind has gone and one has come: all between may have been shifted.
    """
    come = {identities.nameless(identities.of_device(each.device)) for each in plan.new} - {None}
    kinds = ((identities.nameless(identities.of_row(row)), row) for row in plan.gone if come)
    shifted = {kind for kind, row in kinds if kind in come and not getattr(row, "missing", False)}
    if not shifted:
        return plan

    def may_be_other(device: base.Device) -> bool:
        return identities.nameless(identities.of_device(device)) in shifted

    return replace(
        plan,
        kept=tuple(
            replace(one, look=one.look or (not one.moved and may_be_other(one.device)))
            for one in plan.kept
        ),
        new=tuple(replace(one, look=one.look or may_be_other(one.device)) for one in plan.new),
    )


def path_key(path: base.ControlPath) -> _Key:
    """The type and the info of a control path as they are stored."""
    return path.cpid_type, base.canonical_json(dict(path.cpid_info))


def handle_key(handle: base.AttachHandle) -> _Key:
    """The type and the info of an attach handle as they are stored."""
    return handle.attach_type, base.canonical_json(dict(handle.attach_info))


def handle_keys(reported: Reported) -> dict[str, frozenset[_Key]]:
    """The keys of the attach handles that each deployable is reported with, by its name."""
    found: dict[str, frozenset[_Key]] = {}
    for part in (part for _, device in _each(reported) for part in device.deployables):
        found[part.name] = found.get(part.name, frozenset()).union(
            map(handle_key, part.attach_handles)
        )
    return found


def _row_key(row: models.Device) -> _Key:
    return row.control_path.cpid_type, row.control_path.cpid_info


def _kept(row: models.Device, driver: str, device: base.Device, *, by_serial: bool) -> KeptDevice:
    if device.health_unknown:
        device = replace(device, unhealthy=row.unhealthy)
    moved = by_serial and _row_key(row) != path_key(device.control_path)
    look = not moved and identities.has_other_board(row, device)
    return KeptDevice(row=row, driver=driver, device=device, moved=moved, look=look)


def _may_have_been(there: models.Device, one: KeptDevice) -> bool:
    """A card with that serial may be what others have, or left, without its serial."""
    is_known = there is one.row or identities.of_row(there).serial is not None
    if is_known or identities.is_other(there, one.device):
        return False
    return any(handle.is_kept for part in there.deployables for handle in part.attach_handles)


def _stuck(
    known: Iterable[models.Device], kept: Sequence[KeptDevice], here: Set[int]
) -> frozenset[int]:
    """The ids of cards that have come to where another may still be.

    They are at no place until that is known. ``here`` are the ids of rows that are not gone.
    """
    moved = {each.row.id: each.device for each in kept if each.moved}
    staying = [row for row in known if row.id in here - moved.keys()]
    taken = {_row_key(row) for row in staying}
    names = {part.name for row in staying for part in row.deployables}
    return frozenset(
        id_
        for id_, device in moved.items()
        if path_key(device.control_path) in taken
        or not names.isdisjoint(part.name for part in device.deployables)
    )


def _each(reported: Reported) -> Iterator[tuple[str, base.Device]]:
    for driver, devices in sorted(reported.items()):
        for device in devices:
            yield driver, device


def _with_deployables(plan: Plan) -> Plan:
    new: list[tuple[KeptDevice, base.Deployable]] = []
    same: list[tuple[models.Deployable, KeptDevice, base.Deployable]] = []
    gone: list[models.Deployable] = []
    for kept in plan.kept:
        rows = {row.name: row for row in kept.row.deployables}
        if kept.moved:
            old = identities.at_home(kept.row.control_path.cpid_info)
            place = kept.device.control_path.cpid_info
            rows = {identities.name_at(name, old, place): row for name, row in rows.items()}
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


def events_of_new(
    rows: Sequence[models.Device],
) -> Iterator[tuple[notices.NoticeKind, models.Device]]:
    """The same of inserted devices: created, unhealthy."""
    yield from ((notices.DEVICE_CREATED, row) for row in rows)
    yield from ((notices.DEVICE_UNHEALTHY, row) for row in rows if row.unhealthy is not None)


def without(plan: Plan, names: Set[str]) -> Plan:
    """The plan without the new devices and deployables that have a deployable of these names."""
    return replace(
        plan,
        new=tuple(
            new for new in plan.new if names.isdisjoint(dep.name for dep in new.device.deployables)
        ),
        new_deployables=tuple(
            (kept, dep) for kept, dep in plan.new_deployables if dep.name not in names
        ),
    )


def drop_held_elsewhere(
    known: Iterable[models.Device], reported: Reported, frozen: Set[int]
) -> tuple[Reported, Set[str]]:
    """Drop reported handles that are held as part of another deployable of the host.

    A deployable may get another name, or its functions may be grouped differently, while guests
    have some of them. Nobody else is given such a handle until it is free. The handles of frozen
    devices count as held.

    Returns the rest of the report, and the infos of all handles that moved to another deployable.
    """
    seen = {(name, key) for name, keys in handle_keys(reported).items() for key in keys}
    stored = {
        (row.name, (handle.attach_type, handle.attach_info)): (
            handle.is_kept or device.id in frozen
        )
        for device in known
        for row in device.deployables
        for handle in row.attach_handles
    }
    gone = {place: is_held for place, is_held in stored.items() if place not in seen}
    new = seen - stored.keys()
    moved = {key for _, key in gone} & {key for _, key in new}
    if not moved:
        return reported, set()
    held = {key for (_, key), is_held in gone.items() if is_held}
    taken = {place for place in new if place[1] in held}
    rest = {
        driver: tuple(
            replace(device, deployables=tuple(_without(each, taken) for each in device.deployables))
            for device in devices
        )
        for driver, devices in reported.items()
    }
    return rest, {info for _, info in moved}


def _without(deployable: base.Deployable, taken: Set[tuple[str, _Key]]) -> base.Deployable:
    handles = tuple(
        each
        for each in deployable.attach_handles
        if (deployable.name, handle_key(each)) not in taken
    )
    number = min(deployable.num_accelerators, len(handles))
    return replace(deployable, attach_handles=handles, num_accelerators=number)
