# SPDX-License-Identifier: Apache-2.0
"""Binding: ARQs get attach handles, or fail.

The API does it at once where that takes nothing but the database, else a conductor does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from cyborg.db.providers import Provider
from cyborg.handles import release, taking
from cyborg.notifications import notices
from cyborg.peers import clients, glance
from cyborg.policy.context import RequestContext
from cyborg.programming import matching, operations, program, trait_match
from cyborg.states import arq_states, availability

#: An ARQ with its provider's deployable.
_Pair = tuple[models.Arq, Provider | None]


class _Binds(NamedTuple):
    """ARQs whose bind is undecided, in the order of their ids.

    ``begin``: what is written next makes them BindStarted, which they are in memory alone.
    """

    pairs: Sequence[_Pair]
    clock: Clock
    begin: bool = False


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
) -> None:
    """Record that ARQs are to be bound and unbound: all of them, or none if one is refused.

    ``images`` are those that :func:`look_up_images` has found, and ``limits`` those of the projects
    to which ARQs are moved.

    :raises Forbidden: there is no service token
    :raises QuotaExceeded: a project would have more than its limits by what is moved to it
    :raises NotFound: an ARQ or a provider is unknown
    :raises Invalid: a target contradicts what is known of hosts, providers or ARQs
    :raises Conflict: the device is disabled or unhealthy
    """
    if not ctx.has_service_token:
        raise errors.Forbidden("Binding and unbinding an ARQ requires a service token.")
    try:
        _record(ctx, binds, unbinds, images, limits)
    except refusals.REFUSALS as exc:
        if isinstance(exc, quotas.QuotaExceeded):
            quotas.announce(exc)
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
) -> None:
    with db.writer() as session:
        # First of all, since the lock on this row serialises the requests of one instance. The
        # event is due if the binds end here or have ended before, else it waits for the others.
        instances = {target.instance_uuid for target in binds.values()}
        work.want(session, work.NOVA_EVENT, instances)
        arqs = release.lock_arqs(session, ctx, {*binds, *unbinds})
        release.refuse_unknown({*binds, *unbinds} - arqs.keys())
        fresh = {uuid: t for uuid, t in binds.items() if not t.is_of(arqs[uuid])}
        due: _Binds | None = None
        if fresh:
            checked = {uuid: arqs[uuid] for uuid in fresh}
            _refuse_moves(session, checked, fresh, limits)
            due = _begin(session, checked, fresh, images, binds.keys())
        if due and len(fresh) < len(binds):
            # The binds that were asked for before may be undecided too.
            _write_begin(session, due.pairs)
            due = None
        if instances:
            _bind_at_once(session, due or _undecided(session, instances), _takes_more)
        release.unbind(session, [arqs[uuid] for uuid in unbinds])


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


def bind_allocated(
    session: orm.Session, arqs: Mapping[str, models.Arq], targets: Mapping[str, BindTarget]
) -> list[arq_states.BindEnd]:
    """Bind all ARQs of an allocation, which are locked, and claimed in Placement.

    What has programs is left to work, as after a request of Nova's; where a host only prepares the
    handle, the work for that is wanted at once. Returns how the other binds have ended.

    :raises NotFound, Invalid, Conflict: as :func:`request_changes` does; nothing is bound then
    """
    begun = _begin(session, arqs, targets, {}, targets.keys())
    return _bind_at_once(session, begun, _has_programs)


def _begin(
    session: orm.Session,
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    images: Mapping[str, glance.Image],
    asked: Collection[str],
) -> _Binds:
    """The binds of ARQs, unless one of them is refused; ``asked`` are all of the request."""
    found = bind_requests.check(session, arqs, targets, images)
    clock = bind_requests.refuse_second(session, targets, asked, found)
    for uuid, target in targets.items():
        _mark(arqs[uuid], target, clock)
    pairs = [(arqs[uuid], found[target.device_rp_uuid]) for uuid, target in targets.items()]
    return _Binds(sorted(pairs, key=lambda pair: pair[0].id), clock, begin=True)


def _mark(arq: models.Arq, target: BindTarget, clock: Clock) -> None:
    """Give an ARQ in memory the values that its row gets when its bind begins."""
    changed = {
        "state": models.BIND_STARTED,
        "state_reason": None,
        "private_reason": None,
        "hostname": target.hostname,
        "device_rp_uuid": target.device_rp_uuid,
        "instance_uuid": target.instance_uuid,
        "project_id": target.project_id or arq.project_id,
        "bind_started_ms": clock.at_ms,
    }
    for name, value in changed.items():
        orm.attributes.set_committed_value(arq, name, value)


def _write_begin(session: orm.Session, pairs: Iterable[_Pair]) -> None:
    bind_writes.write(session, [bind_writes.Step(arq, begins=True) for arq, _ in pairs])


def _bind_at_once(
    session: orm.Session, binds: _Binds, is_later: Callable[[Provider], bool]
) -> list[arq_states.BindEnd]:
    """Decide the binds but those ``is_later`` of, which are left to work; return how they end."""
    later = [(arq, dep) for arq, dep in binds.pairs if dep is not None and is_later(dep)]
    ids = {arq.id for arq, _ in later}
    if binds.begin:
        _write_begin(session, later)
    at_once = [pair for pair in binds.pairs if pair[0].id not in ids]
    ends = _bind(session, binds._replace(pairs=at_once), {}, tell_consumer=False)
    work.want(session, work.BIND, {arq.instance_uuid for arq, _ in later if arq.instance_uuid})
    return ends


def _takes_more(deployable: Provider) -> bool:
    """Whether binds to the deployable may take more than the database."""
    return deployable.prepares or _has_programs(deployable)


def _has_programs(deployable: Provider) -> bool:
    """Whether a program may have to be written for the bind, or is being written."""
    return bool(deployable.program_mode) or not deployable.is_settled


@db.retry
def bind_instance(claim: work.Claim) -> None:
    """Decide every BindStarted ARQ of one instance: the handler of ``bind/<instance>``.

    Each ARQ has its own result. One whose handle needs a host step keeps BindStarted until the
    step is done.
    """
    claim.checkpoint()
    with db.writer() as session:
        binds = _undecided(session, [claim.key])
        if _lock_programs(session, [deployable for _, deployable in binds.pairs]):
            binds = _undecided(session, [claim.key])
        known = [deployable for _, deployable in binds.pairs if deployable is not None]
        _bind(session, binds, operations.will_run(session, known))


class _Decision(NamedTuple):
    """How a bind goes on: it ends, or the ARQ gets a handle, or both."""

    end: arq_states.BindEnd | None = None
    taken: bind_writes.Taken | None = None


def _bind(
    session: orm.Session,
    binds: _Binds,
    coming: Mapping[str, program.Program],
    *,
    tell_consumer: bool = True,
) -> list[arq_states.BindEnd]:
    """Give the ARQs their handles, or say why they get none; return the binds that end here.

    :param coming: what deployables in doubt will run, by their uuids
    :param tell_consumer: whether the consumers are still to be told of the binds that end here
    """
    groups = {arq.id: arq.request for arq, _ in binds.pairs}
    refused = {arq.id: matching.why_not_given(arq, dep, coming) for arq, dep in binds.pairs}
    handles = _take_handles(session, binds.pairs, refused)
    # When a write began, what was noted is who had a handle by then.
    doubtful = {dep.id for _, dep in binds.pairs if dep is not None and not dep.is_settled}
    written = operations.being_written(session, doubtful)
    decided = [
        (arq, _decide(arq, groups[arq.id], dep, handles, written, refused[arq.id]))
        for arq, dep in binds.pairs
    ]
    bind_writes.write(
        session,
        [
            bind_writes.Step(arq, binds.begin, each.taken)
            for arq, each in decided
            if binds.begin or each.taken
        ],
    )
    ends = [each.end for _, each in decided if each.end is not None]
    now_ms = binds.clock.now_ms()
    if ends and not arq_states.end_binds(session, ends, now_ms, tell_consumer=tell_consumer):
        raise db.RestartTransaction
    to_prepare = [each.taken.handle_uuid for _, each in decided if each.taken and not each.end]
    work.want(session, work.HOST_STEP, to_prepare)
    _offer_the_rest(session, binds.pairs)
    return ends


def _offer_the_rest(session: orm.Session, pairs: Iterable[_Pair]) -> None:
    """Want Placement updated where nothing was offered before somebody had a handle."""
    ids = {dep.id for _, dep in pairs if dep is not None and dep.program_mode}
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
            arq.instance_uuid.in_(instances),
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


def _lock_programs(session: orm.Session, deployables: Iterable[Provider | None]) -> bool:
    """Lock the programmable ones, so that their program stays the same; whether there is one."""
    ids = {found.id for found in deployables if found is not None and found.program_mode}
    if ids:
        row = models.Deployable
        session.execute(sa.select(row.id).where(row.id.in_(ids)).with_for_update(read=True))
    return bool(ids)


#: Free handles of deployables, by the ids of these.
_Handles = Mapping[int, list[sa.Row[int, str, str]]]


def _take_handles(
    session: orm.Session, pairs: Sequence[_Pair], refused: Mapping[int, Reason | None]
) -> _Handles:
    """Free handles of each deployable, as many as there are ARQs for it, locked if possible."""
    needed: dict[int, int] = {}
    single = {dep.id for _, dep in pairs if dep is not None and dep.num_accelerators == 1}
    for arq, deployable in pairs:
        if deployable is not None and not refused[arq.id]:
            needed[deployable.id] = needed.get(deployable.id, 0) + 1
    return {
        deployable_id: taking.lock(
            session, deployable_id, count, is_one=deployable_id in single
        )
        for deployable_id, count in sorted(needed.items())
    }


def _decide(
    arq: models.Arq,
    group: RequestGroup,
    deployable: Provider | None,
    handles: _Handles,
    written: Collection[int],
    refused: Reason | None,
) -> _Decision:
    """How the bind of one ARQ goes on; ``written`` are deployables that are being written."""
    if deployable is None or refused:
        return _Decision(arq_states.BindEnd(arq, refused))
    provider = f"Provider {arq.device_rp_uuid}"
    why_not = matching.why_no_match_when_bound(group, deployable)
    if why_not:
        # A report has changed it since the request was checked, while nobody held a handle.
        changed = Reason.of(reasons.UNAVAILABLE, f"{provider} changed", f"{why_not}.")
        return _Decision(arq_states.BindEnd(arq, changed))
    free = handles[deployable.id]
    if not free:
        none_free = Reason(reasons.NONE_FREE, f"{provider} has no free attach handle.")
        return _Decision(arq_states.BindEnd(arq, none_free))
    handle = free.pop(0)
    needs_step = deployable.prepares or program.lacking(group, deployable) is not None
    state = models.BIND_STARTED if needs_step else models.BOUND
    needs_write = deployable.id in written
    taken = bind_writes.Taken(handle.id, handle.uuid, state, needs_write)
    if needs_step:
        return _Decision(taken=taken)
    held = notices.Handle(
        handle.uuid, handle.attach_type, deployable.device.uuid, matching.class_of(deployable)
    )
    return _Decision(arq_states.BindEnd(arq, handle=held), taken)
