# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables, which drivers report and administrators add.

They are stored as text, shown in their types, and updated from reports. Each change by an
administrator requests the Placement sync of the host in its own transaction, and does not wait for
Placement.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.drivers import base, trait_names

LOG = logging.getLogger(__name__)

#: Columns by which a list may be sorted and filtered; the names are those of the REST API.
COLUMNS = paging.columns(
    models.Attribute,
    *("id", "uuid", "deployable_id", "deployable_uuid", "key", "created_at", "updated_at"),
    deployable_uuid=models.Deployable.uuid,
)

_FILTERS = {**COLUMNS, "value": db.exactly(models.Attribute.value)}
_OPTIONS = (orm.contains_eager(models.Attribute.deployable),)
# With an inner join MariaDB would begin at the smaller table, and sort all rows to cut a page.
_ATTRIBUTES = sa.select(models.Attribute).outerjoin(models.Attribute.deployable)

_KIND = "Attribute"

#: Maximum number of attributes that are made at once.
MAX_ATTRIBUTES = 1000

_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")

DRIVER, ADMIN = "driver", "admin"

_NUMBER_MAX = 2**31 - 1


def shown(key: str, value: str) -> str | int:
    """The stored text in the type of its key, or as it is if it does not fit that type.

    It may have been stored before the key had a type.
    """
    if base.FACTS.get(key) is int and re.fullmatch("[0-9]{1,10}", value):
        return int(value)
    return value


def reported(
    deployable: base.Deployable, present: Collection[models.Attribute] = ()
) -> dict[str, str]:
    """Values by key, as a driver reports them: ``traits1``…, ``rc`` and its other attributes.

    A trait that is ``present`` keeps its key; a new one gets the first free number.
    """
    taken = {attribute.key: attribute for attribute in present}
    new = dict.fromkeys(deployable.traits)
    values: dict[str, str] = {}
    for key, attribute in taken.items():
        if key.startswith(base.TRAIT_PREFIX) and attribute.value in new:
            del new[attribute.value]
            if attribute.origin == DRIVER:
                values[key] = attribute.value
    numbers = (f"traits{number}" for number in range(1, len(taken) + len(new) + 1))
    free = (key for key in numbers if key not in taken)
    values |= {next(free): trait for trait in new}
    own = {key: str(value) for key, value in deployable.attributes.items()}
    return values | {base.RESOURCE_CLASS_KEY: deployable.resource_class} | own


def rows(values: dict[str, str]) -> list[models.Attribute]:
    """New rows for values that a driver reports."""
    return [models.Attribute(key=key, value=value, origin=DRIVER) for key, value in values.items()]


def update(row: models.Deployable, deployable: base.Deployable) -> None:
    """Change a deployable's rows to what its driver reports; other attributes stay."""
    present = {attribute.key: attribute for attribute in row.attributes}
    values = reported(deployable, row.attributes)
    held = any(handle.is_kept for handle in row.attach_handles)
    keep = _hidden_by_guest(present.values(), values) if held else set()
    for key, attribute in present.items():
        if attribute.origin != DRIVER:
            continue
        if key not in values:
            if key not in keep:
                row.attributes.remove(attribute)
        elif not (key == base.RESOURCE_CLASS_KEY and held):
            # The guest's allocation uses the old resource class until the guest is gone.
            attribute.value = values[key]
    row.attributes += rows({key: values[key] for key in values if key not in present})


def is_class_outdated(row: models.Deployable, deployable: base.Deployable) -> bool:
    """The row still has another resource class, because a guest's allocation uses it."""
    return any(
        (attribute.key, attribute.origin) == (base.RESOURCE_CLASS_KEY, DRIVER)
        and attribute.value != deployable.resource_class
        for attribute in row.attributes
    )


def _hidden_by_guest(
    present: Collection[models.Attribute], reported_keys: Collection[str]
) -> set[str]:
    """Keys of facts that are not reported now, and of the traits that follow from them.

    The host can read many facts of a device only while its own driver has the device, and not
    while a guest has it.
    """
    own = [each for each in present if each.origin == DRIVER and each.key not in reported_keys]
    traits = {each.key: each.value for each in own if each.key.startswith(base.TRAIT_PREFIX)}
    facts = {
        each.key: shown(each.key, each.value)
        for each in own
        if each.key != base.RESOURCE_CLASS_KEY and each.key not in traits
    }
    derived = trait_names.of_facts(facts)
    return facts.keys() | {key for key, value in traits.items() if value in derived}


def list_attributes(page: paging.Page = paging.ALL, **wanted: str | int) -> list[models.Attribute]:
    """Attributes that have the values ``wanted``, with their deployables, from one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    with db.reader() as session:
        return paging.fetch(
            session, _ATTRIBUTES, COLUMNS, page, wanted, filters=_FILTERS, options=_OPTIONS
        )


def get_attribute(uuid: str) -> models.Attribute:
    """The attribute of that uuid with its deployable.

    :raises NotFound: there is no such attribute
    """
    with db.reader() as session:
        return paging.get(session, _ATTRIBUTES, COLUMNS, _KIND, options=_OPTIONS, uuid=uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAttribute:
    """An attribute to be made, for the deployable of that uuid, or else of that id."""

    key: str
    value: str
    deployable_id: int | None = None
    deployable_uuid: str | None = None
    uuid: str = field(default_factory=models.new_uuid)

    @property
    def deployable(self) -> int | str | None:
        """The id or the uuid that names the deployable."""
        return self.deployable_id if self.deployable_uuid is None else self.deployable_uuid


@db.retry
def create_attributes(new: Sequence[NewAttribute]) -> list[models.Attribute]:
    """Add attributes, which reports do not change, to deployables: all of them, or none.

    If a key begins with ``trait``, the value becomes a trait in Placement.

    :raises Invalid: a deployable does not exist, or a value is not a custom trait, or not of the
        type that its key has
    :raises Conflict: a deployable has an attribute of that key, or another has that uuid
    """
    values = [_stored_value(attribute) for attribute in new]
    with db.restarting(), db.writer() as session:
        deployables = _find_deployables(session, new)
        _refuse_taken(session, new, deployables)
        made = [
            models.Attribute(
                uuid=each.uuid,
                key=each.key,
                value=value,
                origin=ADMIN,
                deployable=deployables[each.deployable],
            )
            for each, value in zip(new, values, strict=True)
        ]
        session.add_all(made)
        ids = {row.id for row in deployables.values()}
        work.want(session, work.PLACEMENT, sorted(session.scalars(_hosts_of(ids))))
    said = ", ".join(f"{each.key} of deployable {each.deployable.uuid}" for each in made)
    LOG.info("Made the attributes %s", said)
    return made


def _stored_value(new: NewAttribute) -> str:
    """The text that is stored for a value.

    :raises Invalid: it is no custom trait, or the key is that of a number, and it is none
    """
    key, value = new.key, new.value
    if key.startswith(base.TRAIT_PREFIX) and not _TRAIT.fullmatch(value):
        raise errors.Invalid(
            f"value: {value[:255]} is no custom trait; begin with CUSTOM_ and use A-Z, 0-9 and _ "
            "only."
        )
    if base.FACTS.get(key) is not int:
        return value
    if not re.fullmatch("[0-9]{1,10}", value) or int(value) > _NUMBER_MAX:
        raise errors.Invalid(
            f"value: {key} is a whole number from 0 to {_NUMBER_MAX}, not '{value[:255]}'."
        )
    return str(int(value))


def _find_deployables(
    session: orm.Session, new: Sequence[NewAttribute]
) -> dict[int | str | None, models.Deployable]:
    """The deployables by what the attributes name them by: id or uuid."""
    row = models.Deployable
    ids = {each.deployable for each in new if each.deployable_uuid is None}
    uuids = {each.deployable_uuid for each in new}
    found: dict[int | str | None, models.Deployable] = {}
    for each in session.scalars(sa.select(row).where(row.id.in_(ids) | row.uuid.in_(uuids))):
        found |= {each.id: each, each.uuid: each}
    for asked in new:
        if asked.deployable not in found:
            raise errors.Invalid(
                "deployable_id or deployable_uuid: there is no such deployable"
                + (f" as {asked.deployable}." if len(new) > 1 else ".")
            )
    return found


def _refuse_taken(
    session: orm.Session,
    new: Sequence[NewAttribute],
    deployables: Mapping[int | str | None, models.Deployable],
) -> None:
    """Raise Conflict if a uuid, or a key of one deployable, is there already, or twice."""
    table = models.Attribute
    keys = {(deployables[each.deployable].id, each.key): each for each in new}
    uuids = {each.uuid for each in new}
    if min(len(keys), len(uuids)) < len(new):
        raise errors.Conflict(
            "attributes: two of them have the same uuid, or the same key for one deployable."
        )
    taken = sa.select(table.uuid, table.deployable_id, table.key).where(
        sa.or_(
            table.uuid.in_(uuids),
            sa.and_(
                table.deployable_id.in_({row_id for row_id, _ in keys}),
                table.key.in_({key for _, key in keys}),
            ),
        )
    )
    for uuid, deployable_id, key in session.execute(taken):
        if uuid in uuids:
            raise errors.Conflict(f"An attribute with uuid {uuid} already exists.")
        if (deployable_id, key) in keys:
            raise errors.Conflict(
                f"The deployable has an attribute with key {key} already; delete it first or "
                "choose another key."
            )


@db.retry
def delete_attribute(uuid: str) -> None:
    """Delete an attribute that an administrator added.

    :raises NotFound: there is no such attribute
    :raises Conflict: the device's driver reports it
    """
    with db.writer() as session:
        attribute = paging.get(session, sa.select(models.Attribute), COLUMNS, _KIND, uuid=uuid)
        if attribute.origin != ADMIN:
            raise errors.Conflict(
                f"Attribute {uuid} is reported by the device's driver and would come back; only "
                "attributes made by an administrator can be deleted."
            )
        # The next report is applied in full: the driver may report an attribute of the same key.
        host_name = session.scalar(_hosts_of([attribute.deployable_id]))
        db.update(session, models.Host, models.Host.name == host_name, report_digest=None)
        work.want(session, work.PLACEMENT, [host_name] if host_name else [])
        session.delete(attribute)
    LOG.info("Deleted attribute %s", uuid)


def _hosts_of(deployable_ids: Collection[int]) -> sa.Select[str]:
    return (
        sa.select(models.Host.name)
        .join(models.Device, models.Device.host_id == models.Host.id)
        .join(models.Deployable, models.Deployable.device_id == models.Device.id)
        .where(models.Deployable.id.in_(deployable_ids))
        .distinct()
    )
