# SPDX-License-Identifier: Apache-2.0
"""Providers of a host by the database: how they should be, and what we have written.

Reading a host takes a constant number of statements, and so does recording it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common.request_groups import TAINT
from cyborg.db import models
from cyborg.drivers import base
from cyborg.placement import client, tree
from cyborg.states import availability

LOG = logging.getLogger(__name__)

_PROVIDER, _DEPLOYABLE = models.ResourceProvider, models.Deployable
_DEVICE, _HOST = models.Device, models.Host

#: Of what is written to a provider: that we do not know whether it is.
_UNSURE = "unsure"

#: Raises in a transaction, and until its end keeps others away, if another process has the host.
Hold = Callable[[orm.Session], None]

#: What the row of a provider says that we have not written yet.
NOTHING_WRITTEN: Mapping[str, Any] = {
    "inventories": {},
    "traits": [],
    "others": {"inventories": {}, "traits": []},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The row of a provider that we made: what we set on it, and how we left it."""

    host_id: int
    name: str
    #: Placement's generation when the rest was true; None if it is not known.
    generation: int | None
    ours: tree.Ours
    inventories: tree.Inventories
    traits: frozenset[str]
    #: Why nothing of it is given out.
    withheld: str | None = None
    #: Whether Placement may still carry out a request of ours that was made before.
    unsure: bool = False
    #: The provider above it, if that is known.
    parent_uuid: str | None = None
    #: How many seconds ago it was taken out of its tree; None if it was not.
    detached_seconds: float | None = None

    def has(self, provider: tree.Provider) -> bool:
        """The things that we set on it are just those that the given provider has."""
        ours = {name: inv for name, inv in self.inventories.items() if name in self.ours.classes}
        return ours == dict(provider.inventories) and self.ours.traits == provider.traits


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host. The root is not in ``providers``: it is the parent of those that have none."""

    host_id: int
    name: str
    #: Name of the root provider.
    root_name: str
    providers: tree.Tree
    #: By provider uuid.
    records: Mapping[str, Record]
    #: Whether to delete the host's row when it has no records any more.
    removed: bool = False

    def below(self, root_uuid: str | None) -> tree.Tree:
        """The wanted providers, below that root."""
        return {
            uuid: replace(provider, parent_uuid=provider.parent_uuid or root_uuid)
            for uuid, provider in self.providers.items()
        }

    def ours(self) -> dict[str, tree.Ours]:
        """The things that we set on each provider, by its uuid."""
        return {uuid: record.ours for uuid, record in self.records.items()}

    def detached(self, delay: float) -> dict[str, bool]:
        """Whether each provider that was taken out of its tree was so that many seconds ago."""
        ages = ((uuid, record.detached_seconds) for uuid, record in self.records.items())
        return {uuid: age >= delay for uuid, age in ages if age is not None}

    def roots(self) -> set[str]:
        """The root providers below which its providers were left: one, as long as it stays."""
        tops = (uuid for uuid, each in self.providers.items() if each.parent_uuid is None)
        found = (self.records[uuid].parent_uuid for uuid in tops if uuid in self.records)
        return {uuid for uuid in found if uuid is not None}

    def as_left(self, found: client.ListedProvider) -> tree.Provider | None:
        """A provider as we have left it, if its generation is still the same."""
        record = self.records.get(found.uuid)
        if record is None or record.generation != found.generation:
            return None
        return tree.Provider(
            uuid=found.uuid,
            name=found.name,
            parent_uuid=found.parent_uuid,
            inventories=record.inventories,
            traits=record.traits,
            generation=found.generation,
        )


@db.retry
def read(host_name: str) -> HostState | None:
    """The state of the host with that name, or None if there is no such host.

    What commits between two of the statements must not pair the traits of one program with the
    free inventory of another.
    """
    with db.snapshot() as session:
        host = session.scalar(sa.select(models.Host).where(models.Host.name == host_name))
        if host is None:
            return None
        return HostState(
            host_id=host.id,
            name=host.name,
            root_name=host.node,
            providers=_providers(session, host.id),
            records={
                row.uuid: _record(row, age_ms)
                for row, age_ms in session.execute(_RECORDS, {"host": host.id})
            },
            removed=host.removed,
        )


_WHICH: sa.BindParameter[int] = sa.bindparam("host")
#: Whether a deployable is on the host.
_ON_HOST = models.Deployable.device_id.in_(
    sa.select(models.Device.id).where(models.Device.host_id == _WHICH)
)
_PARENT = orm.aliased(models.Deployable)
#: Made once, like those below, since making them takes longer than running them.
_DEPLOYABLES = (
    sa.select(
        models.Deployable.id,
        models.Deployable.rp_uuid,
        _PARENT.rp_uuid,
        models.Deployable.name,
        models.Deployable.num_accelerators,
        availability.on_offer(),
        availability.tainted(),
    )
    .join(models.Device, models.Device.id == models.Deployable.device_id)
    .join(models.Host, models.Host.id == models.Device.host_id)
    .outerjoin(_PARENT, _PARENT.id == models.Deployable.parent_id)
    .where(models.Device.host_id == _WHICH)
)
_ATTRIBUTES = (
    sa.select(models.Attribute.deployable_id, models.Attribute.key, models.Attribute.value)
    .join(models.Deployable, models.Deployable.id == models.Attribute.deployable_id)
    .where(
        _ON_HOST,
        sa.or_(
            models.Attribute.key.in_([base.RESOURCE_CLASS_KEY, base.BOARD_FUNCTIONS_KEY]),
            models.Attribute.key.startswith(base.TRAIT_PREFIX),
        ),
    )
)
_IS_MISSING = models.AttachHandle.missing
#: Whoever has it has no claim in Placement for it.
_IS_UNCLAIMED = models.Arq.allocation_missed_ms.is_not(None)
_IS_UNUSABLE = sa.or_(_IS_MISSING, models.AttachHandle.is_left, _IS_UNCLAIMED)
#: Of each deployable's handles that ARQs hold: the number of those that are gone, and of all that
#: are no use, which are also those that wait to be cleaned, or that nobody claims in Placement.
_HANDLES = (
    sa.select(
        models.AttachHandle.deployable_id,
        sa.func.sum(sa.case((_IS_MISSING, 1), else_=0)),
        sa.func.sum(sa.case((_IS_UNUSABLE, 1), else_=0)),
    )
    .outerjoin(models.Arq, models.Arq.attach_handle_id == models.AttachHandle.id)
    .join(models.Deployable, models.Deployable.id == models.AttachHandle.deployable_id)
    .where(_ON_HOST, models.AttachHandle.is_kept_beside(models.Arq))
    .group_by(models.AttachHandle.deployable_id)
)


def _providers(session: orm.Session, host_id: int) -> tree.Tree:
    classes, traits, units = _classes_traits_and_units(session, host_id)
    held = {
        row_id: (int(missing), int(unusable))
        for row_id, missing, unusable in session.execute(_HANDLES, {"host": host_id})
    }
    providers: dict[str, tree.Provider] = {}
    for row in session.execute(_DEPLOYABLES, {"host": host_id}):
        row_id, uuid, parent_uuid, name, accelerators, on_offer, tainted = row
        missing, unusable = held.get(row_id, (0, 0))
        total = accelerators + missing
        inventory = tree.Inventory(
            total=total,
            reserved=min(unusable, total),
            min_unit=units.get(row_id, 1),
            max_unit=total,
            step_size=units.get(row_id, 1),
        )
        if not on_offer:
            inventory = inventory.withdrawn()
        # Placement knows no inventory of nothing.
        offered = classes.get(row_id) if total else None
        providers[uuid] = tree.Provider(
            uuid=uuid,
            name=name,
            parent_uuid=parent_uuid,
            inventories={offered: inventory} if offered else {},
            traits=frozenset(traits.get(row_id, ())) | ({TAINT} if tainted else frozenset()),
        )
    return providers


def _classes_traits_and_units(
    session: orm.Session, host_id: int
) -> tuple[dict[int, str], dict[int, list[str]], dict[int, int]]:
    """The resource class, the traits, and how many go together if not each alone.

    Each is by deployable id.
    """
    classes: dict[int, str] = {}
    traits: dict[int, list[str]] = {}
    units: dict[int, int] = {}
    for row_id, key, value in session.execute(_ATTRIBUTES, {"host": host_id}):
        if key == base.RESOURCE_CLASS_KEY:
            classes[row_id] = value
        elif key == base.BOARD_FUNCTIONS_KEY:
            units[row_id] = max(1, int(value))
        else:
            traits.setdefault(row_id, []).append(value)
    return classes, traits, units


def _records_of_host() -> sa.Select[models.ResourceProvider, int | None]:
    """The host's rows, and those that another host left for providers that are this host's now.

    Likewise a row of this host is left out if another host has the deployable now: the allocations
    of the provider move there with it.
    """
    ours = (
        sa.select(_PROVIDER.id)
        .outerjoin(_DEPLOYABLE, _DEPLOYABLE.rp_uuid == _PROVIDER.uuid)
        .outerjoin(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .where(_PROVIDER.host_id == _WHICH, sa.or_(_DEVICE.id.is_(None), _DEVICE.host_id == _WHICH))
    )
    reported = (
        sa.select(_PROVIDER.id)
        .join(_DEPLOYABLE, _DEPLOYABLE.rp_uuid == _PROVIDER.uuid)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .where(_DEVICE.host_id == _WHICH)
    )
    # An OR instead of the UNION would read both tables from end to end.
    ids = sa.union(ours, reported).subquery()
    age_ms = db.now_ms() - _PROVIDER.detached_ms
    return sa.select(_PROVIDER, age_ms).join(ids, ids.c.id == _PROVIDER.id)


_RECORDS = _records_of_host()


def _record(row: models.ResourceProvider, age_ms: int | None) -> Record:
    written = row.written
    ours = tree.Ours(frozenset(written["inventories"]), frozenset(written["traits"]))
    others = written["others"]
    inventories = written["inventories"] | others["inventories"]
    return Record(
        host_id=row.host_id,
        name=row.name,
        generation=row.generation,
        ours=ours,
        inventories={
            name: tree.Inventory(**values) for name, values in inventories.items() if values
        },
        traits=ours.traits.union(others["traits"]),
        withheld=row.withheld,
        unsure=written.get(_UNSURE, False),
        parent_uuid=written.get("parent"),
        detached_seconds=None if age_ms is None else age_ms / 1000,
    )


def unsure(uuids: Collection[str]) -> list[str]:
    """The providers among these of which Placement may still carry out an earlier request."""
    found = sa.select(_PROVIDER.uuid, _PROVIDER.written).where(_PROVIDER.uuid.in_(uuids))
    return [uuid for uuid, written in db.rows(found) if written and written.get(_UNSURE, False)]


def why_not_withdrawn(
    api: client.Client, uuids: Collection[str], classes: Collection[str]
) -> str | None:
    """The reason why Placement may give out some of these providers, or None if it cannot."""
    for provider in unsure(uuids):
        # Until the next update of the host.
        return f"Placement may yet carry out what it was asked of provider {provider} before."
    offered = (each for each in uuids if not api.is_withdrawn(each, classes))
    return next((f"Placement still offers provider {each}." for each in offered), None)


@db.retry
def record_intent(state: HostState, asked: Collection[str], hold: Hold) -> None:
    """Record what we are about to write, before Placement has it.

    So it is known as ours even if this process is killed in the middle. Of the providers that are
    ``asked`` to change it is not known what becomes of that, until :func:`record` says so. ``hold``
    comes last, as an audit locks the rows in this order.
    """
    new: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    for uuid, provider in state.providers.items():
        record = state.records.get(uuid)
        ours = tree.Ours.of(provider) | (record.ours if record is not None else tree.Ours())
        is_unsure = uuid in asked or (record is not None and record.unsure)
        values = _values(state, provider, ours, None, unsure=is_unsure)
        if record is None:
            new.append({"uuid": uuid, **values})
        elif uuid in asked or record.host_id != state.host_id or ours != record.ours:
            known.append({"row_uuid": uuid, **values})
    if new or known:
        with db.writer() as session:
            if new:
                session.execute(_INSERT, new)
            if known:
                session.execute(_UPDATE, known)
            hold(session)


@db.retry
def record(
    state: HostState,
    seen: tree.Tree,
    deleted: Collection[str],
    asked: Collection[str],
    unsure: Collection[str],
    hold: Hold,
) -> None:
    """Record how Placement's providers are now, if that is known and has changed.

    ``state`` and ``asked`` are those that :func:`record_intent` got. All requests about the
    providers in ``seen`` have been answered; about those that are still ``unsure`` there are
    earlier ones, and the generation is what it was.
    """
    changed: list[dict[str, Any]] = []
    for uuid, provider in seen.items():
        known = state.records.get(uuid)
        ours = known.ours if known else tree.Ours()
        if uuid in state.providers:
            ours |= tree.Ours.of(state.providers[uuid])
        ours &= tree.Ours.of(provider)
        before = known and uuid not in asked and (known.generation, known.ours, known.parent_uuid)
        if before != (provider.generation, ours, provider.parent_uuid):
            values = _values(state, provider, ours, provider.generation, unsure=uuid in unsure)
            tainted = TAINT in provider.traits
            changed.append({"row_uuid": uuid, **values, "tainted": tainted})
    # Providers without a parent were taken out of the tree: its root is not ours.
    detached = [
        uuid for uuid in seen.keys() - state.providers.keys() if seen[uuid].parent_uuid is None
    ]
    if changed or detached or deleted:
        with db.writer() as session:
            if changed:
                session.execute(_UPDATE, changed)
            if detached:
                # Nobody has an allocation of what is empty.
                left = {"detached_ms": db.now_ms(), "withheld": None}
                db.update(session, _PROVIDER, _PROVIDER.uuid.in_(detached), **left)
            if deleted:
                _record_deleted(session, state.host_id, deleted)
            hold(session)


def _record_deleted(session: orm.Session, host_id: int, deleted: Collection[str]) -> None:
    db.delete(session, _PROVIDER, _PROVIDER.uuid.in_(deleted), _PROVIDER.host_id == host_id)
    # A host that has reported one of them meanwhile may have made it just before we deleted it.
    new_hosts = (
        sa.select(models.Host.name)
        .join(_DEVICE, _DEVICE.host_id == models.Host.id)
        .join(_DEPLOYABLE, _DEPLOYABLE.device_id == _DEVICE.id)
        .where(_DEPLOYABLE.rp_uuid.in_(deleted))
    )
    work.want(session, work.PLACEMENT, session.scalars(new_hosts))


@db.retry
def set_node(state: HostState, node: str) -> None:
    """Record that the host's root provider has another name than its agent has reported."""
    with db.writer() as session:
        same = (_HOST.id == state.host_id, _HOST.node == state.root_name)
        db.update(session, _HOST, *same, node=node)


@db.retry
def forget(state: HostState) -> bool:
    """Delete the row of a removed host; False if another host has yet to take over a provider.

    A host that has reported since then is kept.
    """
    with db.writer() as session:
        left = sa.select(_PROVIDER.id).where(_PROVIDER.host_id == state.host_id).limit(1)
        if session.scalar(left) is not None:
            return False
        if db.delete(session, _HOST, _HOST.id == state.host_id, _HOST.removed.is_(True)):
            LOG.info("Forgot host %s, which was removed", state.name)
        return True


_TABLE = cast(sa.Table, models.ResourceProvider.__table__)
_INSERT = sa.insert(models.ResourceProvider)
_UPDATE = sa.update(_TABLE).where(_TABLE.c.uuid == sa.bindparam("row_uuid"))


def _values(
    state: HostState,
    provider: tree.Provider,
    ours: tree.Ours,
    generation: int | None,
    *,
    unsure: bool,
) -> dict[str, Any]:
    own = {name: asdict(inv) for name, inv in provider.inventories.items() if name in ours.classes}
    others = provider.inventories.keys() - ours.classes
    return {
        "name": provider.name,
        "host_id": state.host_id,
        "generation": generation,
        "detached_ms": None,
        "written": {
            "parent": provider.parent_uuid,
            _UNSURE: unsure,
            # Claimed and not written yet: only the name matters.
            "inventories": dict.fromkeys(ours.classes) | own,
            "traits": sorted(ours.traits),
            "others": {
                "inventories": {name: asdict(provider.inventories[name]) for name in others},
                "traits": sorted(provider.traits - ours.traits),
            },
        },
    }
