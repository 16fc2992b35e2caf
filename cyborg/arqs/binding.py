# SPDX-License-Identifier: Apache-2.0
"""Binding: ARQs get attach handles, or fail.

The API does it at once where that takes nothing but the database, else a conductor does.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import arq_states, availability, clients, db, errors, glance, quotas, work
from cyborg.arqs import free_handles, matching, refusals, release, service
from cyborg.context import RequestContext
from cyborg.db import models
from cyborg.notifications import notices
from cyborg.programming import operations, program, trait_match
from cyborg.request_groups import RequestGroup

LOG = logging.getLogger(__name__)

#: ARQs, each with its provider's deployable and the database's clock.
_Undecided = list[tuple[models.Arq, models.Deployable | None, int]]


class _NotGiven(errors.Conflict):
    """A device is not given out; ``why`` may name hosts, paths, and other projects' instances.

    So it is for administrators.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def whole_reason(exc: errors.CyborgError) -> str:
    """All of why a bind is refused; what is for administrators follows a colon."""
    return f"{exc.message[:-1]}: {exc.why}" if isinstance(exc, _NotGiven) else exc.message


@dataclass(frozen=True, slots=True, kw_only=True)
class BindTarget:
    """Where to bind an ARQ, as the consumer sent it.

    ``hostname`` is the host's name or the name of its root provider. ``project_id`` moves the ARQ
    to that project; None leaves it where it is.
    """

    hostname: str
    device_rp_uuid: str
    instance_uuid: str
    project_id: str | None = None

    def is_of(self, arq: models.Arq) -> bool:
        """Whether the ARQ was asked to be bound exactly here before."""
        return (
            arq.state in models.ASKED
            and arq.hostname == self.hostname
            and arq.device_rp_uuid == self.device_rp_uuid
            and arq.instance_uuid == self.instance_uuid
            and self.project_id in {None, arq.project_id}
        )


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
    :raises Conflict: the device is disabled or unhealthy, or the handle of an earlier bind is
        being cleaned
    """
    if not ctx.has_service_token:
        raise errors.Forbidden("Binding and unbinding an ARQ requires a service token.")
    try:
        _record(ctx, binds, unbinds, images, limits)
    except refusals.REFUSALS as exc:
        if isinstance(exc, quotas.QuotaExceeded):
            quotas.announce(exc)
        whole = whole_reason(exc)
        refusals.of_binds(ctx, binds, exc, whole)
        if isinstance(exc, _NotGiven) and ctx.is_admin:
            raise errors.Conflict(whole) from exc
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
        started: _Undecided = []
        read_at = time.monotonic()
        if fresh:
            checked = {uuid: arqs[uuid] for uuid in fresh}
            _refuse_moves(session, checked, fresh, limits)
            started = _begin(session, checked, fresh, images, binds.keys())
        if instances:
            # Its instances have no other ARQs than those of the request.
            is_new = len(fresh) == len(binds)
            undecided = started if is_new else _undecided(session, instances)
            work.want(session, work.BIND, _bind_at_once(session, undecided, read_at, _takes_more))
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
) -> None:
    """Bind all ARQs of an allocation, which are locked, and claimed in Placement.

    What has programs is left to work, as after a request of Nova's; where a host only prepares the
    handle, the work for that is wanted at once. The caller looks at how the other binds have ended.

    :raises NotFound, Invalid, Conflict: as :func:`request_changes` does; nothing is bound then
    """
    read_at = time.monotonic()
    started = _begin(session, arqs, targets, {}, targets.keys())
    work.want(session, work.BIND, _bind_at_once(session, started, read_at, _has_programs))


def _begin(
    session: orm.Session,
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    images: Mapping[str, glance.Image],
    asked: Collection[str],
) -> _Undecided:
    """Make ARQs BindStarted, unless one of them is refused; ``asked`` are all of the request."""
    providers = _check(session, arqs, targets, images)
    now_ms = _refuse_second_request(session, targets, asked, providers)
    _start(session, targets)
    return _started(arqs, targets, providers, now_ms)


def _check(
    session: orm.Session,
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    images: Mapping[str, glance.Image],
) -> dict[str, models.Deployable]:
    """Refuse what cannot be done; return the deployables by the uuids of their providers."""
    for uuid, arq in arqs.items():
        _check_state(uuid, arq)
    providers = matching.read_providers(session, {t.device_rp_uuid for t in targets.values()})
    coming = operations.will_run(session, providers.values())
    for uuid, target in targets.items():
        deployable = providers.get(target.device_rp_uuid)
        if deployable is None:
            raise errors.NotFound.of("Deployable", rp_uuid=target.device_rp_uuid)
        _check_match(arqs[uuid], target, deployable, coming)
        _check_program(arqs[uuid], deployable, images.get(uuid))
    for provider, deployable in providers.items():
        groups = [
            trait_match.known(arqs[uuid].request, images.get(uuid))
            for uuid, target in targets.items()
            if target.device_rp_uuid == provider
        ]
        _refuse_two_programs(groups, deployable)
    return providers


def _refuse_second_request(
    session: orm.Session,
    targets: Mapping[str, BindTarget],
    asked: Collection[str],
    providers: Mapping[str, models.Deployable],
) -> int:
    """Return if no instance has other ARQs than those ``asked``, repeated ones included.

    From now on nobody takes the hosts and devices of the ``providers`` out of service before this
    transaction has ended. Returns the database's clock, in milliseconds.

    :raises RestartTransaction: somebody has done so since they were read
    """
    instances = {target.instance_uuid for target in targets.values()}
    others = (
        sa.select(models.Arq.instance_uuid)
        .where(
            models.Arq.instance_uuid.in_(instances),
            models.Arq.uuid.not_in(asked),
            models.Arq.state != models.DELETING,
        )
        .limit(1)
    )
    read = {each.device for each in providers.values()}
    places = _PLACES.add_columns(db.now_ms(), others.scalar_subquery())
    ids = {"hosts": {each.host_id for each in read}, "devices": {each.id for each in read}}
    locked = session.execute(places, {name: list(each) for name, each in ids.items()}).all()
    if {tuple(row[:-2]) for row in locked} != {_place(each) for each in read}:
        raise db.RestartTransaction
    now_ms, other = locked[0][-2:]
    if other is not None:
        raise errors.Invalid(
            f"instance_uuid: instance {other} already holds ARQs that are not in this request; "
            "bind all ARQs of an instance in one request, or delete the others first."
        )
    return int(now_ms)


_DEVICE, _HOST = models.Device, models.Host
#: Devices with what :func:`_check_match` reads of them and their hosts, locked so that others may
#: bind to them, but not change that. Hosts first, as reports do: MariaDB locks in the order in
#: which it reads.
_PLACES = (
    sa.select(
        _DEVICE.id,
        _DEVICE.status,
        _DEVICE.tainted,
        _DEVICE.unhealthy,
        _HOST.drained,
        _HOST.tainted,
        _HOST.down,
    )
    .prefix_with("STRAIGHT_JOIN", dialect="mysql")
    .prefix_with("STRAIGHT_JOIN", dialect="mariadb")
    .select_from(_HOST)
    .join(_DEVICE, _DEVICE.host_id == _HOST.id)
    .where(
        _HOST.id.in_(sa.bindparam("hosts", expanding=True)),
        _DEVICE.id.in_(sa.bindparam("devices", expanding=True)),
    )
    .order_by(_HOST.id, _DEVICE.id)
    .with_for_update(read=True, of=(_HOST, _DEVICE))
)


def _place(device: models.Device) -> tuple[Any, ...]:
    """What :data:`_PLACES` reads, as it was loaded."""
    host = device.host
    state = (device.status, device.tainted, device.unhealthy)
    return (device.id, *state, host.drained, host.tainted, host.down)


def _check_state(uuid: str, arq: models.Arq) -> None:
    if arq.state not in arq_states.predecessors(models.BIND_STARTED):
        raise errors.Invalid(
            f"ARQ {uuid} is {arq.state} with other values than these; unbind it first."
        )
    if arq.attach_handle_id is not None:
        raise errors.Conflict(
            f"ARQ {uuid} still holds the attach handle of its last use, which is being cleaned; "
            "bind it again later, or create another ARQ."
        )


def _check_match(
    arq: models.Arq,
    target: BindTarget,
    deployable: models.Deployable,
    coming: Mapping[str, program.Program],
) -> None:
    host = deployable.device.host
    if target.hostname not in {host.name, host.node}:
        raise errors.Invalid(
            f"hostname: provider {target.device_rp_uuid} is not on that host; give the host on "
            "which the provider is."
        )
    if host.down:
        # It may come back before the bind's deadline, and be down for us alone. But nobody knows
        # how its devices are, and a consumer that is refused at once need not wait for nothing.
        raise _NotGiven(
            "hostname: the host is down, and gives out nothing until its agent reports; choose "
            "another one.",
            f"host {host.name}.",
        )
    if host.drained:
        raise _NotGiven(
            "hostname: the host is drained, and gives out nothing new; choose another one.",
            f"host {host.name}.",
        )
    if deployable.device.status != models.ENABLED:
        raise errors.Conflict(
            f"device_rp_uuid: the device of provider {target.device_rp_uuid} is disabled; choose "
            "another provider or enable device " + deployable.device.uuid + "."
        )
    if matching.is_kept_from(arq.request, deployable):
        raise errors.Conflict(
            f"device_rp_uuid: provider {target.device_rp_uuid} is tainted, and group "
            f"{arq.device_profile_group_id} of device profile {arq.device_profile_name} does not "
            "tolerate that; choose another provider."
        )
    if deployable.device.unhealthy is not None:
        raise _NotGiven(
            f"device_rp_uuid: the device of provider {target.device_rp_uuid} is unhealthy; choose "
            "another provider.",
            deployable.device.unhealthy,
        )
    if deployable.withheld is not None:
        raise _NotGiven(
            f"device_rp_uuid: nothing of provider {target.device_rp_uuid} is given out; choose "
            "another one.",
            deployable.withheld,
        )
    why_not = matching.why_not_now(arq.request, deployable, coming)
    if why_not:
        raise errors.Conflict(
            f"device_rp_uuid: the deployable of provider {target.device_rp_uuid} is {why_not}; "
            "choose another provider."
        )
    why_not = matching.why_no_match(arq.request, deployable)
    if why_not:
        raise errors.Invalid(
            f"device_rp_uuid: provider {target.device_rp_uuid} does not fit group "
            f"{arq.device_profile_group_id} of device profile {arq.device_profile_name}: {why_not}."
        )


def _check_program(
    arq: models.Arq, deployable: models.Deployable, image: glance.Image | None
) -> None:
    """Return if the image that would be written for the ARQ may give what its group asks for."""
    if program.lacking(arq.request, deployable) is None:
        return
    why_not = trait_match.why_never(arq.request, image) or matching.why_no_match(
        trait_match.known(arq.request, image), deployable
    )
    if why_not:
        raise errors.Invalid(
            f"device_rp_uuid: what group {arq.device_profile_group_id} of device profile "
            f"{arq.device_profile_name} asks for contradicts itself: {why_not}."
        )


def _refuse_two_programs(groups: Sequence[RequestGroup], deployable: models.Deployable) -> None:
    """Return unless some of the groups need a program that the others cannot have, or use."""
    written = [each for each in groups if program.lacking(each, deployable) is not None]
    for one in map(program.of_group, written):
        for other in map(program.of_group, groups):
            if not other or one.contradicts(other):
                raise errors.Invalid(
                    f"device_rp_uuid: the deployable of provider {deployable.rp_uuid} cannot be "
                    f"programmed with {one} for one ARQ, and with {other or 'nothing'} for "
                    "another; choose another provider for one of them."
                )


def _start(session: orm.Session, targets: Mapping[str, BindTarget]) -> None:
    arq = models.Arq

    def each(field: str) -> Any:
        return sa.case({uuid: getattr(t, field) for uuid, t in targets.items()}, value=arq.uuid)

    values: dict[str, Any] = {
        name: each(name) for name in ("hostname", "device_rp_uuid", "instance_uuid")
    }
    moved = {uuid: target.project_id for uuid, target in targets.items() if target.project_id}
    if moved:
        values["project_id"] = sa.case(moved, value=arq.uuid, else_=arq.project_id)
    where = (arq.uuid.in_(targets.keys()), arq.attach_handle_id.is_(None))
    values |= {
        "state_reason": None,
        "bind_started_ms": db.now_ms(),
        # Nova has the instance for which it binds, and is never asked for another consumer.
        "instance_asked_ms": sa.case((arq.allocation_uuid.is_(None), db.now_ms())),
        "instance_missed_ms": None,
        "allocation_missed_ms": None,
    }
    if arq_states.enter(session, models.BIND_STARTED, *where, **values) != len(targets):
        raise db.RestartTransaction
    for uuid, target in targets.items():
        LOG.info(
            "ARQ %s is BindStarted: instance %s, host %s, provider %s",
            uuid,
            target.instance_uuid,
            target.hostname,
            target.device_rp_uuid,
        )


def _started(
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    providers: Mapping[str, models.Deployable],
    now_ms: int,
) -> _Undecided:
    """What :func:`_undecided` would read after :func:`_start`; the ARQs were loaded before that."""
    for uuid, target in targets.items():
        changed = {
            "state": models.BIND_STARTED,
            "state_reason": None,
            "hostname": target.hostname,
            "device_rp_uuid": target.device_rp_uuid,
            "instance_uuid": target.instance_uuid,
            "project_id": target.project_id or arqs[uuid].project_id,
            "bind_started_ms": now_ms,
        }
        for name, value in changed.items():
            orm.attributes.set_committed_value(arqs[uuid], name, value)
    started = [(arqs[uuid], providers[target.device_rp_uuid]) for uuid, target in targets.items()]
    started.sort(key=lambda pair: pair[0].id)
    return [(arq, deployable, now_ms) for arq, deployable in started]


def _bind_at_once(
    session: orm.Session,
    undecided: _Undecided,
    read_at: float,
    is_later: Callable[[models.Deployable], bool],
) -> set[str]:
    """Decide the binds but those ``is_later`` of; the database's clock was read at ``read_at``.

    Returns the instances of the others, which are decided by work.
    """
    later = [(arq, dep) for arq, dep, _ in undecided if dep is not None and is_later(dep)]
    ids = {arq.id for arq, _ in later}
    at_once = [each for each in undecided if each[0].id not in ids]
    _bind(session, at_once, {}, read_at=read_at, tell_consumer=False)
    return {arq.instance_uuid for arq, _ in later if arq.instance_uuid}


def _takes_more(deployable: models.Deployable) -> bool:
    """Whether binds to the deployable may take more than the database."""
    return deployable.prepares or _has_programs(deployable)


def _has_programs(deployable: models.Deployable) -> bool:
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
        undecided = _undecided(session, [claim.key])
        if _lock_programs(session, [deployable for _, deployable, _ in undecided]):
            undecided = _undecided(session, [claim.key])
        coming = operations.will_run(session, {dep for _, dep, _ in undecided if dep is not None})
        _bind(session, undecided, coming)


def _bind(
    session: orm.Session,
    undecided: _Undecided,
    coming: Mapping[str, program.Program],
    *,
    read_at: float | None = None,
    tell_consumer: bool = True,
) -> None:
    """Give the ARQs their handles, or say why they get none.

    :param coming: what deployables in doubt will run, by their uuids
    :param read_at: when the database's clock was read, if not just now, by the monotonic one
    :param tell_consumer: whether the consumers are still to be told of the binds that end here
    """
    refused = {
        arq.id: matching.why_not_given(arq.request, dep, coming) for arq, dep, _ in undecided
    }
    handles = _take_handles(session, undecided, refused)
    to_prepare: list[str] = []
    decided = [
        _decide(session, arq, dep, handles, to_prepare, refused[arq.id])
        for arq, dep, _ in undecided
    ]
    ends = [end for end in decided if end is not None]
    passed = 0.0 if read_at is None else time.monotonic() - read_at
    if ends and not arq_states.end_binds(
        session, ends, undecided[0][2] + passed * 1000, tell_consumer=tell_consumer
    ):
        raise db.RestartTransaction
    work.want(session, work.HOST_STEP, to_prepare)
    _offer_the_rest(session, undecided)


def _offer_the_rest(session: orm.Session, undecided: _Undecided) -> None:
    """Want Placement updated where nothing was offered before somebody had a handle."""
    ids = {dep.id for _, dep, _ in undecided if dep is not None and dep.program_mode}
    if ids:
        row, host = models.Deployable, models.Host
        query = sa.select(host.name).join(models.Device).join(row)
        left = query.where(row.id.in_(ids), availability.left_unwanted())
        work.want(session, work.PLACEMENT, session.scalars(left.distinct()))


def _undecided(session: orm.Session, instances: Collection[str]) -> _Undecided:
    """The instances' BindStarted ARQs without a handle, with their providers and the clock."""
    arq = models.Arq
    query = (
        # A subquery, since PostgreSQL's clock runs on from row to row.
        sa.select(arq, models.Deployable, sa.select(db.now_ms()).scalar_subquery())
        .outerjoin(models.Deployable, models.Deployable.rp_uuid == arq.device_rp_uuid)
        .where(
            arq.instance_uuid.in_(instances),
            arq.state == models.BIND_STARTED,
            arq.attach_handle_id.is_(None),
        )
        .options(
            *matching.JUDGED,
            orm.joinedload(models.Deployable.device).options(matching.JUDGED_OF_DEVICES),
        )
        .order_by(arq.id)
        .execution_options(populate_existing=True)
    )
    return [(row[0], row[1], row[2]) for row in session.execute(query).unique()]


def _lock_programs(
    session: orm.Session, deployables: Iterable[models.Deployable | None]
) -> bool:
    """Lock the programmable ones, so that their program stays the same; whether there is one."""
    ids = {found.id for found in deployables if found is not None and found.program_mode}
    if ids:
        row = models.Deployable
        session.execute(sa.select(row.id).where(row.id.in_(ids)).with_for_update(read=True))
    return bool(ids)


def _take_handles(
    session: orm.Session,
    undecided: _Undecided,
    refused: Mapping[int, str | None],
) -> dict[int, list[sa.Row[int, str, str]]]:
    """Free handles of each deployable, as many as there are ARQs for it, locked if possible."""
    needed: dict[int, int] = {}
    single = {dep.id for _, dep, _ in undecided if dep is not None and dep.num_accelerators == 1}
    for arq, deployable, _ in undecided:
        if deployable is not None and not refused[arq.id]:
            needed[deployable.id] = needed.get(deployable.id, 0) + 1
    return {
        deployable_id: free_handles.lock(
            session, deployable_id, count, is_one=deployable_id in single
        )
        for deployable_id, count in sorted(needed.items())
    }


def _decide(
    session: orm.Session,
    arq: models.Arq,
    deployable: models.Deployable | None,
    handles: Mapping[int, list[sa.Row[int, str, str]]],
    to_prepare: list[str],
    refused: str | None,
) -> arq_states.BindEnd | None:
    """How the bind of one ARQ ends; None if its host prepares the handle first."""
    provider = f"Provider {arq.device_rp_uuid}"
    if deployable is None or refused:
        return arq_states.BindEnd(arq, f"{provider} is {refused}.")
    why_not = matching.why_no_match_when_bound(arq.request, deployable)
    if why_not:
        # A report has changed it since the request was checked, while nobody held a handle.
        return arq_states.BindEnd(arq, f"{provider} changed: {why_not}.")
    free = handles[deployable.id]
    if not free:
        reason = f"{provider} has no free attach handle."
        return arq_states.BindEnd(arq, reason, plain=arq_states.TAKEN)
    handle = free.pop(0)
    steps = deployable.prepares or program.lacking(arq.request, deployable) is not None
    # When a write began, what was noted is who had a handle by then.
    doubtful = () if deployable.is_settled else (deployable.id,)
    needs_write = bool(operations.being_written(session, doubtful))
    state = models.BIND_STARTED if steps else models.BOUND
    _take(session, arq, handle, state, needs_write=needs_write)
    if steps:
        to_prepare.append(handle.uuid)
        return None
    held = notices.Handle(handle.uuid, handle.attach_type, deployable.device.uuid)
    return arq_states.BindEnd(arq, handle=held)


def _take(
    session: orm.Session,
    arq: models.Arq,
    handle: sa.Row[int, str, str],
    state: str,
    *,
    needs_write: bool,
) -> None:
    """Give the BindStarted ARQ a free handle; it is BindStarted still, or Bound.

    :raises RestartTransaction: the ARQ or the handle has changed since it was read
    """
    where = (
        models.Arq.id == arq.id,
        models.Arq.state == models.BIND_STARTED,
        models.Arq.attach_handle_id.is_(None),
    )
    try:
        values = {"attach_handle_id": handle.id, "needs_write": needs_write}
        taken = db.update(session, models.Arq, *where, state=state, **values)
    except (db_exc.DBDuplicateEntry, db_exc.DBReferenceError) as exc:
        # Another ARQ took the handle, or a report removed it, after we saw it free.
        raise db.RestartTransaction from exc
    if not taken:
        raise db.RestartTransaction
    LOG.info("ARQ %s is %s with attach handle %s", arq.uuid, state, handle.uuid)
