# SPDX-License-Identifier: Apache-2.0
"""Rows of the released upstream as rows of ours. Nothing here reads or writes a database.

What cannot be taken over as it is makes a sentence: a refusal, which says how to mend it, or a note
about what is left out or changed.
"""

from __future__ import annotations

import calendar
import datetime
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from cyborg import history, profiles
from cyborg.common import errors
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models
from cyborg.drivers import base
from cyborg.importing.source import DeviceRows, Row
from cyborg.inventory import apply, attributes

_NAME_MAX = 255
_MDEV = "MDEV"
_PCI_DRIVER = "pci_driver"

#: Our driver by what upstream calls its own, in small letters, and by the device's type where one
#: vendor has several.
_DRIVERS: Mapping[tuple[str, str | None], str] = {
    ("fake", None): "fake_driver",
    ("nvidia", None): "nvidia_gpu_driver",
    ("huawei", None): "huawei_ascend_driver",
    ("xilinx", None): "xilinx_fpga_driver",
    ("inspur", "FPGA"): "inspur_fpga_driver",
    ("inspur", "SSD"): "inspur_nvme_ssd_driver",
    ("intel", "FPGA"): "intel_fpga_driver",
    ("intel", "QAT"): "intel_qat_driver",
    ("intel", "NIC"): "intel_nic_driver",
}

_NOT_ENDED = "The bind had not ended when the database was imported."

Values = dict[str, Any]


@dataclass(slots=True)
class RowFindings:
    """The sentences about the rows, in the order in which they were read."""

    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ImportedDeployable:
    """A deployable with all that belongs to it."""

    values: Values
    #: The uuid of the deployable above it.
    parent: str | None
    resource_class: str | None
    traits: list[str]
    attributes: list[Values]
    handles: list[Values]


@dataclass(slots=True, kw_only=True)
class Whole:
    """A device with all that belongs to it."""

    hostname: str
    values: Values
    path: Values
    parts: list[ImportedDeployable]


@dataclass(slots=True, kw_only=True)
class ImportedArq:
    """An ARQ, the handle that it has, and what its history begins with if it is Bound."""

    values: Values
    handle: str | None
    used: Values | None
    #: Whether the handle must be cleaned on its host before it is free.
    needs_step: bool


class Converter:
    """Converts row by row; it knows the rows of before, which may have the same names."""

    def __init__(self, findings: RowFindings) -> None:
        self._findings = findings
        #: The device or deployable that has a control path, a name, a provider.
        self._paths: dict[tuple[str, str, str], str] = {}
        self._names: dict[str, str] = {}
        self._providers: dict[str, str] = {}

    def profile(self, row: Row) -> Values | None:
        """A device profile, or None if it is refused."""
        mend = "Correct its profile_json in the old database, or delete it there."
        groups = _groups(row["profile_json"])
        if isinstance(groups, str):
            self._refuse(f"Device profile {row['name']} {groups}. {mend}")
            return None
        if not uuidutils.is_uuid_like(row["uuid"]):
            self._refuse(f"Device profile {row['name']} has the uuid {row['uuid']!r}. {mend}")
            return None
        values = {name: row[name] for name in ("name", "description")}
        return {**_identity(row), **values, "groups": groups, "visibility": profiles.PUBLIC}

    def device(self, rows: DeviceRows) -> Whole | None:
        """A device, or None if it is refused or left out."""
        row, whose = rows.device, f"Device {rows.device['uuid']} of host {rows.device['hostname']}"
        held = any(
            handle["id"] in rows.held
            for part in rows.deployables
            for handle in rows.handles.get(part["id"], ())
        )
        if why := self._why_not_whole(rows):
            if held:
                self._refuse(f"{whose} {why}, and ARQs have its handles. Delete their servers, or "
                             "mend it in the old database.")  # fmt: skip
            else:
                self._note(f"{whose} {why}: it is left out, and its agent reports it again.")
            return None
        path = rows.paths[0]
        info = _canonical(path["cpid_info"])
        if info is None:
            self._refuse(f"{whose} has a control path that is not JSON: {path['cpid_info']!r}.")
            return None
        key = (row["hostname"], path["cpid_type"], info)
        if self._is_taken(self._paths, key, row["uuid"], f"{whose} has the address {_place(info)}"):
            return None
        return Whole(
            hostname=row["hostname"],
            values={
                **_identity(row),
                "driver": _driver(row, rows.deployables),
                **{name: row[name] for name in _DEVICE_COLUMNS},
            },
            path={**_identity(path), "cpid_type": path["cpid_type"], "cpid_info": info},
            parts=list(self._parts(rows)),
        )

    def _why_not_whole(self, rows: DeviceRows) -> str | None:
        if len(rows.paths) != 1:
            return f"has {len(rows.paths) or 'no'} control paths"
        if not rows.deployables:
            return "has no deployable"
        return None

    def _parts(self, rows: DeviceRows) -> Iterator[ImportedDeployable]:
        uuids = {row["id"]: row["uuid"] for row in rows.deployables}
        for row in rows.deployables:
            whose = f"Deployable {row['name']} ({row['uuid']})"
            provider = row["rp_uuid"] or apply.provider_uuid(row["name"])
            named = self._is_taken(self._names, row["name"], row["uuid"], f"{whose} has the name")
            if named or self._is_taken(
                self._providers, provider, row["uuid"], f"{whose} has the provider {provider}"
            ):
                continue
            if row["parent_id"] is not None and row["parent_id"] not in uuids:
                self._note(f"{whose} is below one of another device: it is taken as the topmost.")
            found = self._attributes(whose, rows.attributes.get(row["id"], ()))
            handles = self._handles(whose, rows.handles.get(row["id"], ()), rows.held)
            mediated = any(handle["attach_type"] == _MDEV for handle in handles)
            by_key = {each["key"]: each["value"] for each in found}
            yield ImportedDeployable(
                values={
                    **_identity(row),
                    **{name: row[name] for name in ("name", "num_accelerators", "bitstream_id")},
                    "rp_uuid": provider,
                    "driver_name": _driver(rows.device, [row]),
                    # Until its agent says so itself.
                    "prepares": mediated,
                    "cleans": mediated,
                },
                parent=uuids.get(row["parent_id"]),
                resource_class=by_key.get(base.RESOURCE_CLASS_KEY),
                traits=sorted(
                    value for key, value in by_key.items() if key.startswith(base.TRAIT_PREFIX)
                ),
                attributes=found,
                handles=handles,
            )

    def _attributes(self, whose: str, rows: Sequence[Row]) -> list[Values]:
        found: dict[str, Values] = {}
        for row in rows:
            key = row["key"]
            if len(key) > _NAME_MAX:
                self._note(f"{whose}: an attribute whose key is too long is left out.")
                continue
            if key in found:
                self._note(f"{whose} has the attribute {key} twice: the later one is taken.")
            is_own = key == base.RESOURCE_CLASS_KEY or key.startswith(base.TRAIT_PREFIX)
            known = is_own or key in base.FACTS
            found[key] = {
                **_identity(row),
                "key": key,
                "value": row["value"],
                # What no driver of ours reports was set by an administrator, and stays.
                "origin": attributes.DRIVER if known else attributes.ADMIN,
            }
        return list(found.values())

    def _handles(
        self, whose: str, rows: Sequence[Row], held: frozenset[int]
    ) -> list[Values]:
        found: dict[str, Row] = {}
        # The one that an ARQ has comes first.
        for row in sorted(rows, key=lambda row: row["id"] not in held):
            info = _canonical(row["attach_info"])
            handle = f"attach handle {row['uuid']}"
            if info is None:
                self._refuse(f"{whose}: {handle} has an attach_info that is not JSON.")
            elif info not in found:
                found[info] = row
                if row["in_use"] and row["id"] not in held:
                    self._note(f"{whose}: {handle} counted as in use, but no ARQ has it: it is "
                               "free now.")  # fmt: skip
            elif row["id"] in held:
                self._refuse(
                    f"{whose}: {handle} and {found[info]['uuid']} are both "
                    f"{_place(info)}, and ARQs have both. Delete one of their servers first."
                )
            else:
                self._note(f"{whose}: {handle} is there twice and left out.")
        return [
            {**_identity(row), "attach_type": row["attach_type"], "attach_info": info}
            for info, row in sorted(found.items(), key=lambda item: item[1]["id"])
        ]

    def arq(self, row: Row) -> ImportedArq | None:
        """An ARQ, or None if it is refused or left out."""
        whose = f"ARQ {row['uuid']}"
        group = self._group_of(whose, row)
        if group is None:
            return None
        if why := _why_impossible(row):
            self._refuse(f"{whose} {why}. Delete it or its server with the old Cyborg first.")
            return None
        state, reason = _state(row)
        if state is None:
            self._note(f"{whose} is Deleting and has no handle: it is left out.")
            return None
        if state != row["state"]:
            self._note(f"{whose} is {state} now, and was {row['state']}.")
        bound = state in {models.BOUND, models.BIND_FAILED}
        given = row["handle_uuid"]
        instance = _uuid(row["instance_uuid"]) if bound else None
        since = _ms(row["updated_at"] or row["created_at"])
        values = {
            **_identity(row),
            "project_id": row["project_id"],
            "state": state,
            "state_reason": reason,
            "device_profile_name": row["profile_name"],
            "device_profile_group_id": row["device_profile_group_id"],
            "group": group,
            "resource_class": next(iter(RequestGroup.parse(group).resources), None),
            "hostname": row["hostname"] if bound else None,
            "device_rp_uuid": _uuid(row["device_rp_uuid"]) if bound else None,
            "consumer_uuid": instance,
            "bind_started_ms": since if bound else None,
        }
        used = {
            "kind": history.USED,
            "device_uuid": row["device_uuid"],
            "handle_uuid": given,
            "resource_class": row["handle_class"],
            "project_id": row["project_id"],
            "consumer_uuid": instance,
            "arq_uuid": row["uuid"],
            "hostname": row["hostname"],
            "started_ms": since,
        }
        return ImportedArq(
            values=values,
            handle=given,
            used=used if state == models.BOUND else None,
            needs_step=given is not None and state != models.BOUND,
        )

    def _group_of(self, whose: str, row: Row) -> dict[str, str] | None:
        groups = _groups(row["profile_json"] or "")
        # A profile that cannot be read has been refused itself.
        index = row["device_profile_group_id"] or 0
        if isinstance(groups, str):
            return None
        if index >= len(groups):
            self._refuse(
                f"{whose} is of group {index} of device profile {row['profile_name']}, which has "
                f"{len(groups)}. Delete it with the old Cyborg first."
            )
            return None
        return groups[index]

    def _is_taken(self, known: dict[Any, str], key: Any, whose: str, sentence: str) -> bool:
        other = known.setdefault(key, whose)
        if other == whose:
            return False
        self._refuse(f"{sentence} of {other}. Delete one of them in the old database first.")
        return True

    def _refuse(self, sentence: str) -> None:
        self._findings.refusals.append(sentence)

    def _note(self, sentence: str) -> None:
        self._findings.notes.append(sentence)


_DEVICE_COLUMNS = ("type", "vendor", "model", "std_board_info", "vendor_board_info", "status")


def _identity(row: Row) -> Values:
    """The columns that every row keeps; upstream may leave out when it was made."""
    return {
        "uuid": _uuid(row["uuid"]),
        "created_at": row["created_at"] or models.utcnow(),
        "updated_at": row["updated_at"],
    }


def _groups(text: str) -> list[dict[str, str]] | str:
    """The groups of a profile, or why they cannot be read."""
    try:
        given = json.loads(text)["groups"]
        # Upstream takes a null as the value of a key, which means as much as no key.
        stated = [{key: each for key, each in group.items() if each is not None} for group in given]
        read = profiles.read_groups(stated)
        amounts = [RequestGroup.parse(group).resources for group in read]
    except errors.Invalid as exc:
        return f"has groups that cannot be used: {exc}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "has groups that cannot be read"
    wrong = [name for each in amounts for name, amount in each.items() if amount < 0]
    return f"asks for less than nothing of {wrong[0]}" if wrong else read


def _why_impossible(row: Row) -> str | None:
    """The reason why no row of ours can be like this one, if so."""
    for name in ("uuid", "instance_uuid", "device_rp_uuid"):
        if row[name] and not uuidutils.is_uuid_like(row[name]):
            return f"has the {name} {row[name]!r}"
    if row["state"] != models.BOUND:
        return None
    lacking = [name for name in _BINDING if not row[name]]
    if lacking:
        return f"is Bound and has no {' and no '.join(lacking)}"
    if row["handle_uuid"] is None:
        return "is Bound and has no attach handle"
    if _uuid(row["device_rp_uuid"]) != row["handle_rp_uuid"]:
        return f"is Bound to provider {row['device_rp_uuid']} and has a handle of another"
    return None


_BINDING = ("hostname", "device_rp_uuid", "instance_uuid")


def _state(row: Row) -> tuple[str | None, str | None]:
    """The state here, None if the ARQ is to be left out, and the reason of a failed bind."""
    state: str = row["state"]
    if state == models.DELETING:
        return (state if row["handle_uuid"] else None), None
    if state == models.INITIAL and (row["handle_uuid"] or any(row[name] for name in _BINDING)):
        return models.UNBOUND, None
    if state in {models.BIND_STARTED, models.BIND_FAILED}:
        if not all(row[name] for name in _BINDING):
            return models.UNBOUND, None
        return models.BIND_FAILED, _NOT_ENDED if state == models.BIND_STARTED else None
    return state, None


def _driver(device: Row, parts: Sequence[Row]) -> str:
    """The driver of ours that reports the device."""
    named = (parts[0]["driver_name"] or "").lower()
    either = _DRIVERS.get((named, device["type"])) or _DRIVERS.get((named, None))
    return either or _PCI_DRIVER


def _canonical(text: str) -> str | None:
    """A control path or an attach handle in the form in which ours are compared."""
    try:
        info = json.loads(text)
    except ValueError:
        return None
    return base.canonical_json(info) if isinstance(info, dict) else None


def _place(info: str) -> str:
    """A control path or an attach handle as people read it."""
    return base.place({key: str(value) for key, value in json.loads(info).items()})


def _uuid(text: str | None) -> str | None:
    """In the form in which all are stored."""
    if text and uuidutils.is_uuid_like(text):
        return str(uuid.UUID(text))
    return text


def _ms(at: datetime.datetime | None) -> int:
    """Milliseconds since the epoch of a naive UTC time."""
    return calendar.timegm((at or models.utcnow()).timetuple()) * 1000
