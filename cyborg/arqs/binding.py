# SPDX-License-Identifier: Apache-2.0
"""Binding: ARQs get attach handles, or fail.

The API does it at once where that takes nothing but the database, else a conductor does.
"""

from __future__ import annotations

import collections
import enum
import functools
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, quotas, work
from cyborg.arqs import bind_requests, bind_writes, refusals, service
from cyborg.arqs.bind_requests import BindTarget, Clock
from cyborg.common import errors, reasons
from cyborg.common.reasons import Reason, shown
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models, providers
from cyborg.db.providers import ProviderRow
from cyborg.drivers import base
from cyborg.handles import release, taking
from cyborg.notifications import notices
from cyborg.peers import clients, glance
from cyborg.policy.context import RequestContext
from cyborg.programming import matching, operations, program, trait_match
from cyborg.states import arq_states, availability

#: An ARQ with its provider's deployable.
_Pair = tuple[models.Arq, ProviderRow | None]


class _Binds(NamedTuple):
    """ARQs whose bind is undecided, in the order of their ids.

    ``begin``: what is written next makes them BindStarted, which they are in memory alone.
    """

    pairs: Sequence[_Pair]
    clock: Clock
    begin: bool = False

    def deployables(self) -> list[ProviderRow]:
        """The deployables of the binds, but those that are gone."""
        return [deployable for _, deployable in self.pairs if deployable is not None]


def look_up_images(
    conf: cfg.ConfigOpts, ctx: RequestContext, binds: Mapping[str, BindTarget]
) -> dict[str, glance.Image]:
    """By the ARQs the images to write for them, where an image may contradict what is asked for.

    Glance is asked for those alone.
    """
    if not (binds and ctx.has_service_token and clients.configured(conf, "glance")):
        return {}
    arq = models.Arq
    query = sa.select(arq.uuid, arq.group).where(arq.uuid.in_(binds), *service.in_scope(ctx))
    with db.reader() as session:
        asked = session.execute(query).all()
    of_groups: dict[str, glance.Image | None] = {}
    found: dict[str, glance.Image] = {}
    for uuid, group in asked:
        key = json.dumps(group, sort_keys=True)
        if key not in of_groups:
            of_groups[key] = trait_match.look_up(conf, RequestGroup.parse(group))
        if (image := of_groups[key]) is not None:
            found[uuid] = image
    return found


def request_changes(
    ctx: RequestContext,
    binds: Mapping[str, BindTarget],
    unbinds: Collection[str],
    images: Mapping[str, glance.Image] = MappingProxyType({}),
    limits: Mapping[str, quotas.Limits] = MappingProxyType({}),
    conf: cfg.ConfigOpts | None = None,
) -> None:
    """Record that ARQs are to be bound and unbound: all of them, or none if one is refused.

    ``images`` are those that :func:`look_up_images` has found, and ``limits`` those of the projects
    to which ARQs are moved. With ``conf``, Placement is asked about an instance that has other
    ARQs: those that Nova has left are deleted.

    :raises Forbidden: there is no service token
    :raises QuotaExceeded: a project would have more than its limits by what is moved to it
    :raises NotFound: an ARQ or a provider is unknown
    :raises Invalid: a target contradicts what is known of hosts, providers or ARQs
    :raises Conflict: the device is disabled or unhealthy
    """
    if not ctx.has_service_token:
        raise errors.Forbidden("Binding and unbinding an ARQ requires a service token.")
    record = functools.partial(_record, ctx, binds, unbinds, images, limits)
    try:
        with quotas.announcing():
            try:
                record()
            except bind_requests.HoldsOthers as exc:
                left = bind_requests.superseded(conf, ctx, exc.instance, binds) if conf else ()
                if not left:
                    raise
                record(left)
    except refusals.REFUSALS as exc:
        reason = bind_requests.reason_of(exc)
        refusals.of_binds(ctx, binds, exc, exc.of_field(reason.whole))
        if reason.private is not None:
            told = shown(ctx, reason.public, reason.private)
            raise errors.Conflict(told, exc.field) from exc
        raise


@db.retry
def _record(
    ctx: RequestContext,
    binds: Mapping[str, BindTarget],
    unbinds: Collection[str],
    images: Mapping[str, glance.Image],
    limits: Mapping[str, quotas.Limits],
    left: Collection[str] = (),
) -> None:
    with db.writer() as session:
        # First of all, since the lock on this row serialises the requests of one instance. The
        # event is due if the binds end here or have ended before, else it waits for the others.
        instances = {target.consumer_uuid for target in binds.values()}
        work.want(session, work.NOVA_EVENT, instances)
        arqs = release.lock_arqs(session, ctx, {*binds, *unbinds, *left})
        found = [arqs[uuid] for uuid in left if uuid in arqs]
        release.delete(session, [arq for arq in found if arq.consumer_uuid in instances])
        release.refuse_unknown({*binds, *unbinds} - arqs.keys())
        _refuse_moves(session, arqs, binds, limits)
        bind(session, Asker.PATCH, instances, arqs, binds, images)
        release.unbind(session, [arqs[uuid] for uuid in unbinds])


@db.retry
def bind_instance(item: work.Item) -> None:
    """Decide every BindStarted ARQ of one instance: the handler of ``bind/<instance>``."""
    item.checkpoint()
    with db.writer() as session:
        bind(session, Asker.CONDUCTOR, [item.key])


def _refuse_moves(
    session: orm.Session,
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    limits: Mapping[str, quotas.Limits],
) -> None:
    """Return if the projects to which ARQs are moved may have them."""
    moved: dict[str, list[str]] = {}
    for uuid, target in targets.items():
        if target.project_id not in {None, arqs[uuid].project_id} and limits.get(target.project_id):
            moved.setdefault(target.project_id, []).append(uuid)
    # In one order for all who lock several.
    for project, uuids in sorted(moved.items()):
        quotas.enforce(session, project, limits[project], quotas.classes_of(session, uuids))


class Asker(enum.Enum):
    """The asker of a bind, which decides what of it is left to a conductor."""

    #: A request of Nova's, which waits for nothing but the database.
    PATCH = enum.auto()
    #: The work of an allocation, which has claimed in Placement what it asks for.
    ALLOCATION = enum.auto()
    #: The work ``bind/<instance>``: nothing is left.
    CONDUCTOR = enum.auto()

    def leaves(self, deployable: ProviderRow | None) -> bool:
        """Whether a bind to the deployable is left.

        A program may have to be written for it, or is being written; or a host prepares the handle.
        """
        if deployable is None or self is Asker.CONDUCTOR:
            return False
        has_programs = bool(deployable.record.program_mode or deployable.part_of)
        has_programs = has_programs or not deployable.record.is_settled
        return has_programs or (self is Asker.PATCH and deployable.prepares)


def bind(
    session: orm.Session,
    asker: Asker,
    instances: Collection[str],
    arqs: Mapping[str, models.Arq] = MappingProxyType({}),
    targets: Mapping[str, BindTarget] = MappingProxyType({}),
    images: Mapping[str, glance.Image] = MappingProxyType({}),
) -> list[arq_states.BindEnd]:
    """Begin to bind locked ARQs to their targets, all or none, and decide all of the instances.

    What the asker leaves is wanted of a conductor. Each of the others has its own result: it ends,
    as is returned, or keeps BindStarted until a host step for its handle is done.

    :raises NotFound, Invalid, Conflict: as :func:`request_changes` does
    """
    if not instances:
        return []
    binds = _begin(session, arqs, targets, images) or _undecided(session, instances)
    coming: Mapping[str, program.Program] = {}
    if asker is Asker.CONDUCTOR:
        if _lock_programs(session, binds.deployables()):
            binds = _undecided(session, instances)
        coming = operations.will_run(session, binds.deployables())
    later = [pair for pair in binds.pairs if asker.leaves(pair[1])]
    if binds.begin:
        _write_begin(session, later)
    at_once = binds._replace(pairs=[pair for pair in binds.pairs if not asker.leaves(pair[1])])
    # A PATCH and an allocation tell the consumer anyway.
    ends = _bind(session, at_once, coming, tell_consumer=asker is Asker.CONDUCTOR)
    work.want(session, work.BIND, {arq.consumer_uuid for arq, _ in later if arq.consumer_uuid})
    return ends


def _begin(
    session: orm.Session,
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    images: Mapping[str, glance.Image],
) -> _Binds | None:
    """The binds to the targets, unless one of them is refused; None if some are as asked before."""
    fresh = {uuid: target for uuid, target in targets.items() if not target.is_of(arqs[uuid])}
    if not fresh:
        return None
    found = bind_requests.check(session, {uuid: arqs[uuid] for uuid in fresh}, fresh, images)
    clock = bind_requests.refuse_second(session, fresh, targets.keys(), found)
    for uuid, target in fresh.items():
        _mark(session, arqs[uuid], target, clock)
    pairs = [(arqs[uuid], found[target.device_rp_uuid]) for uuid, target in fresh.items()]
    pairs.sort(key=lambda pair: pair[0].id)
    if len(fresh) == len(targets):
        return _Binds(pairs, clock, begin=True)
    # The others may be undecided too.
    _write_begin(session, pairs)
    return None


def _mark(session: orm.Session, arq: models.Arq, target: BindTarget, clock: Clock) -> None:
    """Give an ARQ the values that its row gets when its bind begins; they are written by others."""
    session.expunge(arq)
    changed = {
        "state": models.BIND_STARTED,
        "state_reason": None,
        "private_reason": None,
        "hostname": target.hostname,
        "device_rp_uuid": target.device_rp_uuid,
        "consumer_uuid": target.consumer_uuid,
        "project_id": target.project_id or arq.project_id,
        "bind_started_ms": clock.at_ms,
    }
    for name, value in changed.items():
        setattr(arq, name, value)


def _write_begin(session: orm.Session, pairs: Iterable[_Pair]) -> None:
    bind_writes.write(session, [bind_writes.Step(arq, begins=True) for arq, _ in pairs])


class _Decision(NamedTuple):
    """How a bind goes on: it ends, or the ARQ gets a handle, or both."""

    arq: models.Arq
    end: arq_states.BindEnd | None = None
    taken: bind_writes.Taken | None = None


def _bind(
    session: orm.Session,
    binds: _Binds,
    coming: Mapping[str, program.Program],
    *,
    tell_consumer: bool,
) -> list[arq_states.BindEnd]:
    """Give the ARQs their handles, or say why they get none; return the binds that end here.

    :param coming: what deployables in doubt will run, by their uuids
    """
    decided = _decide_all(session, binds, coming)
    steps = [bind_writes.Step(each.arq, binds.begin, each.taken) for each in decided]
    bind_writes.write(session, [step for step in steps if step.begins or step.taken])
    ends = [each.end for each in decided if each.end is not None]
    now_ms = binds.clock.now_ms()
    if ends and not arq_states.end_binds(session, ends, now_ms, tell_consumer=tell_consumer):
        raise db.RestartTransaction
    to_prepare = [each.taken.handle_uuid for each in decided if each.taken and not each.end]
    work.want(session, work.HOST_STEP, to_prepare)
    _offer_the_rest(session, binds.deployables())
    return ends


def _decide_all(
    session: orm.Session, binds: _Binds, coming: Mapping[str, program.Program]
) -> list[_Decision]:
    refused = {arq.id: matching.why_not_given(arq, dep, coming) for arq, dep in binds.pairs}
    handles = _take_handles(session, binds, refused)
    refused |= _refused_guests(session, binds, refused, handles)
    # When a write began, what was noted is who had a handle by then.
    doubtful = {dep.id for dep in binds.deployables() if not dep.record.is_settled}
    written = operations.being_written(session, doubtful)
    return [_decide(arq, dep, handles, written, refused[arq.id]) for arq, dep in binds.pairs]


def _refused_guests(
    session: orm.Session, binds: _Binds, refused: Mapping[int, Reason | None], handles: _Handles
) -> dict[int, Reason | None]:
    """Why guests get none of what is for containers; nobody is asked if all get a handle."""
    left = [
        (arq, dep)
        for arq, dep in binds.pairs
        if dep and not (refused[arq.id] or arq.allocation_uuid or handles[dep.id])
    ]
    kept = taking.of_containers(session, {dep.id for _arq, dep in left})
    of_kind = "is for containers on its host, and no guest gets it"
    return {
        arq.id: Reason(reasons.CONTAINERS_ONLY, f"Provider {arq.device_rp_uuid} {of_kind}.")
        for arq, dep in left
        if dep.id in kept
    }


def _offer_the_rest(session: orm.Session, deployables: Iterable[ProviderRow]) -> None:
    """Want Placement updated where nothing was offered before somebody had a handle."""
    ids = {dep.id for dep in deployables if dep.record.program_mode}
    if ids:
        row, host = models.Deployable, models.Host
        query = sa.select(host.name).join(models.Device).join(row)
        left = query.where(row.id.in_(ids), availability.left_unwanted())
        work.want(session, work.PLACEMENT, session.scalars(left.distinct()))


def _undecided(session: orm.Session, instances: Collection[str]) -> _Binds:
    """The instances' BindStarted ARQs without a handle."""
    arq = models.Arq
    query = (
        # A subquery, since PostgreSQL's clock runs on from row to row.
        sa.select(arq, sa.select(db.now_ms()).scalar_subquery())
        .where(
            arq.consumer_uuid.in_(instances),
            arq.state == models.BIND_STARTED,
            arq.attach_handle_id.is_(None),
        )
        .order_by(arq.id)
        .execution_options(populate_existing=True)
    )
    read_at = time.monotonic()
    rows = session.execute(query).all()
    clock = Clock(rows[0][1] if rows else 0, read_at)
    named = {row[0].device_rp_uuid for row in rows if row[0].device_rp_uuid}
    found = providers.read(session, named) if named else {}
    return _Binds([(row[0], found.get(row[0].device_rp_uuid)) for row in rows], clock)


def _lock_programs(session: orm.Session, deployables: Iterable[ProviderRow]) -> bool:
    """Lock the programmable ones, so that their program stays the same; whether there is one.

    Of a part of a layout, the one with the layout is locked.
    """
    ids = {
        found.part_of or found.id
        for found in deployables
        if found.part_of or found.record.program_mode
    }
    if ids:
        row = models.Deployable
        session.execute(sa.select(row.id).where(row.id.in_(ids)).with_for_update(read=True))
    return bool(ids)


#: Free handles of deployables, by the ids of these.
_Handles = Mapping[int, list[sa.Row[int, str, str]]]


def _take_handles(
    session: orm.Session, binds: _Binds, refused: Mapping[int, Reason | None]
) -> _Handles:
    """Free handles of each deployable, as many as there are ARQs for it, locked if possible."""
    pairs = [(arq, dep) for arq, dep in binds.pairs if dep is not None and not refused[arq.id]]
    wanted = (dep.id for _arq, dep in pairs)
    of_guests = {dep.id for arq, dep in pairs if arq.allocation_uuid is None}
    single = {dep.id for dep in binds.deployables() if dep.num_accelerators == 1}
    known = {dep.id: (dep, arq.project_id) for arq, dep in pairs}

    def take(id_: int, count: int) -> list[sa.Row[int, str, str]]:
        (deployable, project_id), for_guest = known[id_], id_ in of_guests
        of_share = matching.class_of(deployable) == base.SHARE_CLASS
        if of_share != bool(deployable.shared) or (of_share and for_guest):
            # It is offered as what it was before, or a guest asks for what is no guest's.
            return []
        if of_share:
            return taking.lock_shares(session, deployable, count, project_id)
        return taking.lock(session, id_, count, is_one=id_ in single, for_guest=for_guest)

    return {id_: take(id_, count) for id_, count in sorted(collections.Counter(wanted).items())}


def _decide(
    arq: models.Arq,
    deployable: ProviderRow | None,
    handles: _Handles,
    written: Collection[int],
    refused: Reason | None,
) -> _Decision:
    """How the bind of one ARQ goes on; ``written`` are deployables that are being written."""
    if deployable is None or refused:
        return _Decision(arq, arq_states.BindEnd(arq, refused))
    group = arq.request
    provider = f"Provider {arq.device_rp_uuid}"
    why_not = matching.why_no_match_when_bound(group, deployable)
    if why_not:
        # A report has changed it since the request was checked, while nobody held a handle.
        changed = Reason.of(reasons.UNAVAILABLE, f"{provider} changed", f"{why_not}.")
        return _Decision(arq, arq_states.BindEnd(arq, changed))
    free = handles[deployable.id]
    if not free:
        none_free = Reason(reasons.NONE_FREE, f"{provider} has no free attach handle.")
        return _Decision(arq, arq_states.BindEnd(arq, none_free))
    handle = free.pop(0)
    needs_step = deployable.prepares or program.lacking(group, deployable.record) is not None
    state = models.BIND_STARTED if needs_step else models.BOUND
    needs_write = deployable.id in written
    taken = bind_writes.Taken(handle.id, handle.uuid, state, needs_write)
    if needs_step:
        return _Decision(arq, taken=taken)
    held = notices.Handle(
        handle.uuid, handle.attach_type, deployable.device.uuid, matching.class_of(deployable)
    )
    return _Decision(arq, arq_states.BindEnd(arq, handle=held), taken)
