# SPDX-License-Identifier: Apache-2.0
"""What a request to bind asks for, and why it is refused before anything is written."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db
from cyborg.arqs import service
from cyborg.common import errors
from cyborg.common.reasons import Reason
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models, providers
from cyborg.db.providers import ProviderRow
from cyborg.peers import clients, glance
from cyborg.placement import client
from cyborg.policy.context import RequestContext
from cyborg.programming import matching, operations, program, trait_match
from cyborg.states import arq_states

LOG = logging.getLogger(__name__)

#: The code of the reason of a bind that is refused.
REFUSED = "refused"


class NotGiven(errors.Conflict):
    """A device is not given out; the ``detail`` is for those who may see hosts."""

    def __init__(self, field: str, what: str, detail: str) -> None:
        self.reason = Reason.of(REFUSED, what, detail)
        super().__init__(self.reason.public, field)


class HoldsOthers(errors.Invalid):
    """An instance has other ARQs than those that are to be bound."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        super().__init__(
            f"instance {instance} already holds ARQs that are not in this request; bind all ARQs "
            "of an instance in one request, or delete the others first.",
            "instance_uuid",
        )


def reason_of(exc: errors.CyborgError) -> Reason:
    """Why a bind is refused, without the name of the field."""
    return exc.reason if isinstance(exc, NotGiven) else Reason(REFUSED, exc.sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindTarget:
    """Where to bind an ARQ, as the consumer sent it.

    ``hostname`` is the host's name or the name of its root provider. ``project_id`` moves the ARQ
    to that project; None leaves it where it is.
    """

    hostname: str
    device_rp_uuid: str
    consumer_uuid: str
    project_id: str | None = None

    def is_of(self, arq: models.Arq) -> bool:
        """Whether the ARQ was asked to be bound exactly here before."""
        return (
            arq.state in models.ASKED
            and arq.hostname == self.hostname
            and arq.device_rp_uuid == self.device_rp_uuid
            and arq.consumer_uuid == self.consumer_uuid
            and self.project_id in {None, arq.project_id}
        )


def check(
    session: orm.Session,
    arqs: Mapping[str, models.Arq],
    targets: Mapping[str, BindTarget],
    images: Mapping[str, glance.Image],
) -> dict[str, ProviderRow]:
    """Refuse what cannot be done; return the deployables by the uuids of their providers."""
    for uuid, arq in arqs.items():
        _check_state(uuid, arq)
    found = providers.read(session, {target.device_rp_uuid for target in targets.values()})
    coming = operations.will_run(session, found.values())
    of_providers: dict[str, list[RequestGroup]] = {}
    for uuid, target in targets.items():
        provider = found.get(target.device_rp_uuid)
        if provider is None:
            raise errors.NotFound.of("Deployable", rp_uuid=target.device_rp_uuid)
        arq, image = arqs[uuid], images.get(uuid)
        group = arq.request
        _check_match(arq, group, target, provider, coming)
        _check_program(arq, group, provider, image)
        of_providers.setdefault(provider.rp_uuid, []).append(trait_match.known(group, image))
    for rp_uuid, groups in of_providers.items():
        _refuse_two_programs(groups, found[rp_uuid])
    return found


@dataclass(frozen=True, slots=True)
class Clock:
    """The database's clock, which was read at ``read_at`` by the monotonic one of this process."""

    at_ms: int
    read_at: float

    def now_ms(self) -> int:
        """What the database's clock says now, or a moment later: the way to it counts as time."""
        return round(self.at_ms + (time.monotonic() - self.read_at) * 1000)


def refuse_second(
    session: orm.Session,
    targets: Mapping[str, BindTarget],
    asked: Collection[str],
    found: Mapping[str, ProviderRow],
) -> Clock:
    """Return if no instance has other ARQs than those ``asked``, repeated ones included.

    From now on nobody takes the hosts and devices of the providers ``found`` out of service before
    this transaction has ended.

    :raises HoldsOthers: one has
    :raises RestartTransaction: somebody has done so since they were read
    """
    read = {each.device for each in found.values()}
    given = {
        "hosts": list({each.host_id for each in read}),
        "devices": list({each.id for each in read}),
        "instances": list({target.consumer_uuid for target in targets.values()}),
        "asked": list(asked),
    }
    read_at = time.monotonic()
    locked = session.execute(_PLACES, given).all()
    if {tuple(row[:-2]) for row in locked} != {_place(each) for each in read}:
        raise db.RestartTransaction
    now_ms, other = locked[0][-2:]
    if other is not None:
        raise HoldsOthers(other)
    return Clock(now_ms, read_at)


_ARQS, _DEVICES, _HOSTS = (model.__table__ for model in (models.Arq, models.Device, models.Host))
_OTHER = (
    sa.select(_ARQS.c.consumer_uuid)
    .where(
        _ARQS.c.consumer_uuid.in_(sa.bindparam("instances", expanding=True)),
        _ARQS.c.uuid.not_in(sa.bindparam("asked", expanding=True)),
    )
    .limit(1)
)
#: Devices with what :func:`_check_device` reads of them and their hosts, locked so that others may
#: bind to them, but not change that; the clock; and an instance that has another ARQ. MariaDB
#: locks the host first, as reports do, where it is one; with several a deadlock with a report is
#: possible, and is tried again. Made once, since making it takes longer than running it.
_PLACES = (
    sa.select(
        _DEVICES.c.id,
        _DEVICES.c.status,
        _DEVICES.c.tainted,
        _DEVICES.c.unhealthy,
        _HOSTS.c.drained,
        _HOSTS.c.tainted,
        _HOSTS.c.down,
        db.now_ms(),
        _OTHER.scalar_subquery(),
    )
    .select_from(_HOSTS)
    .join(_DEVICES, _DEVICES.c.host_id == _HOSTS.c.id)
    .where(
        _HOSTS.c.id.in_(sa.bindparam("hosts", expanding=True)),
        _DEVICES.c.id.in_(sa.bindparam("devices", expanding=True)),
    )
    .order_by(_HOSTS.c.id, _DEVICES.c.id)
    .with_for_update(read=True, of=(_HOSTS, _DEVICES))
)


def _place(device: providers.DeviceRow) -> tuple[Any, ...]:
    """What :data:`_PLACES` reads, as it was read before."""
    host = device.host
    state = (device.status, device.tainted, device.unhealthy)
    return (device.id, *state, host.drained, host.tainted, host.down)


def superseded(
    conf: cfg.ConfigOpts, ctx: RequestContext, instance: str, binds: Mapping[str, BindTarget]
) -> Collection[str]:
    """The other ARQs of an instance, if its allocation is of the providers of ``binds`` alone.

    If a compute host cannot take an instance, Nova frees what it has claimed, claims the next
    host's providers and binds new ARQs there. It does not delete those of the first host.

    There are none if it has something of the others' providers, or Placement does not say.
    """
    others = _others(ctx, instance, binds)
    wanted = {each.device_rp_uuid for each in binds.values() if each.consumer_uuid == instance}
    claimed = _claimed(conf, instance)
    if not wanted <= claimed or not claimed.isdisjoint(others.values()):
        return ()
    LOG.warning(
        "Nova claims other providers for instance %s now: its ARQs %s are deleted",
        instance,
        ", ".join(sorted(others)),
    )
    return others.keys()


@db.retry
def _others(ctx: RequestContext, instance: str, binds: Collection[str]) -> dict[str, str]:
    """The providers of the instance's other ARQs, by the uuids of these.

    Those of an allocation are left out: Nova has not bound them.
    """
    arq = models.Arq
    query = sa.select(arq.uuid, arq.device_rp_uuid).where(arq.allocation_uuid.is_(None))
    mine = (arq.consumer_uuid == instance, *service.in_scope(ctx))
    return dict(db.rows(query.where(arq.uuid.not_in(binds), *mine)))


def _claimed(conf: cfg.ConfigOpts, instance: str) -> frozenset[str]:
    """The providers of which the instance has an allocation; none if Placement does not say."""
    if not clients.configured(conf, "placement"):
        return frozenset()
    try:
        found = client.Client(conf).find_allocations(instance)
    except (client.PlacementError, ka_exc.ClientException) as exc:
        LOG.warning("It is not known which providers instance %s has: %s", instance, exc)
        return frozenset()
    return frozenset(found.amounts) if found else frozenset()


def _check_state(uuid: str, arq: models.Arq) -> None:
    if arq.state not in arq_states.predecessors(models.BIND_STARTED):
        raise errors.Invalid(
            f"ARQ {uuid} is {arq.state} with other values than these; unbind it first."
        )


def _check_host(host: providers.HostRow) -> None:
    why_not = "drained, and gives out nothing new" if host.drained else None
    if host.down:
        # It may come back before the bind's deadline, and be down for us alone. But nobody knows
        # how its devices are, and a consumer that is refused at once need not wait for nothing.
        why_not = "down, and gives out nothing until its agent reports"
    if why_not:
        what = f"the host is {why_not}; choose another one"
        raise NotGiven("hostname", what, f"host {host.name}.")


def _check_match(
    arq: models.Arq,
    group: RequestGroup,
    target: BindTarget,
    deployable: ProviderRow,
    coming: Mapping[str, program.Program],
) -> None:
    host, provider = deployable.device.host, f"provider {target.device_rp_uuid}"
    if target.hostname not in {host.name, host.node}:
        raise errors.Invalid(
            f"{provider} is not on that host; give the host on which the provider is.", "hostname"
        )
    _check_host(host)
    _check_device(arq, group, deployable)
    why_not = matching.why_not_now(group, deployable, coming)
    if why_not:
        raise errors.Conflict(
            f"the deployable of {provider} is {why_not}; choose another provider.",
            "device_rp_uuid",
        )
    why_not = matching.why_no_match(group, deployable)
    if why_not:
        raise errors.Invalid(f"{provider} does not fit {_asks(arq)}: {why_not}.", "device_rp_uuid")


def _asks(arq: models.Arq) -> str:
    """What asks for the ARQ, in a sentence."""
    return f"group {arq.device_profile_group_id} of device profile {arq.device_profile_name}"


def _check_device(arq: models.Arq, group: RequestGroup, deployable: ProviderRow) -> None:
    device, provider = deployable.device, f"provider {deployable.rp_uuid}"
    if device.status != models.ENABLED:
        raise errors.Conflict(
            f"the device of {provider} is disabled; choose another provider or enable device "
            f"{device.uuid}.",
            "device_rp_uuid",
        )
    if matching.is_kept_from(group, deployable):
        raise errors.Conflict(
            f"{provider} is tainted, and {_asks(arq)} does not tolerate that; choose another "
            "provider.",
            "device_rp_uuid",
        )
    if device.unhealthy is not None:
        raise NotGiven(
            "device_rp_uuid",
            f"the device of {provider} is unhealthy; choose another provider",
            device.unhealthy,
        )
    if deployable.withheld is not None:
        raise NotGiven(
            "device_rp_uuid",
            f"nothing of {provider} is given out; choose another one",
            deployable.withheld,
        )


def _check_program(
    arq: models.Arq, group: RequestGroup, deployable: ProviderRow, image: glance.Image | None
) -> None:
    """Return if the image that would be written for the ARQ may give what its group asks for."""
    if program.lacking(group, deployable.record) is None:
        return
    why_not = trait_match.why_never(group, image) or matching.why_no_match(
        trait_match.known(group, image), deployable
    )
    if why_not:
        raise errors.Invalid(
            f"the request of {_asks(arq)} contradicts itself: {why_not}.", "device_rp_uuid"
        )


def _refuse_two_programs(groups: Sequence[RequestGroup], deployable: ProviderRow) -> None:
    """Return unless some of the groups need a program that the others cannot have, or use."""
    written = [each for each in groups if program.lacking(each, deployable.record) is not None]
    for one in map(program.of_group, written):
        for other in map(program.of_group, groups):
            if not other or one.contradicts(other):
                raise errors.Invalid(
                    f"the deployable of provider {deployable.rp_uuid} cannot be programmed with "
                    f"{one} for one ARQ, and with {other or 'nothing'} for another; choose another "
                    "provider for one of them.",
                    "device_rp_uuid",
                )
