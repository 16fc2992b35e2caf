# SPDX-License-Identifier: Apache-2.0
"""Whether a deployable can serve a request group: its resource class, its traits, its program.

A function ``why_…`` that returns no :class:`Reason` returns the end of a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa
from oslo_utils import uuidutils
from sqlalchemy import orm

from cyborg.common.reasons import NOT_READY, UNAVAILABLE, Reason
from cyborg.common.request_groups import RequestGroup
from cyborg.db import models
from cyborg.db.providers import ProviderRow
from cyborg.drivers import base
from cyborg.programming import layouts, program, trait_match
from cyborg.states import availability


def is_kept_from(group: RequestGroup, deployable: ProviderRow) -> bool:
    """Whether the deployable is tainted, and the group does not tolerate that.

    A bind that was accepted before is carried out nevertheless.
    """
    return availability.is_tainted(deployable) and not group.tolerates_taint


def why_no_match(group: RequestGroup, deployable: ProviderRow) -> str | None:
    """Why the deployable cannot be asked for: as it is now, or as it will be when it is bound."""
    if group.image_uuid is not None and not uuidutils.is_uuid_like(group.image_uuid):
        return f"accel:bitstream_id {group.image_uuid} is no UUID of an image"
    has = trait_match.traits(deployable.facts)
    return (
        _why_other_class(group, deployable)
        or trait_match.why_other_traits(group.traits, has, has)
        or why_no_match_when_bound(group, deployable)
    )


def why_no_match_when_bound(group: RequestGroup, deployable: ProviderRow) -> str | None:
    """Why the deployable does not fit the group once it is programmed for it, if it must be.

    Programming brings the trait of its function. A forbidden trait must not be there now either.
    """
    has = then = trait_match.traits(deployable.facts)
    if program.lacking(group, deployable.record) is not None:
        vendor = deployable.function_vendor
        then = trait_match.when_programmed(group, deployable.facts, vendor)
    why_not = trait_match.why_other_traits(group.traits, has, then)
    return _why_other_class(group, deployable) or _why_other_layout(group, deployable) or why_not


def why_not_usable(
    group: RequestGroup, record: models.ProgramRecord, facts: Collection[models.Fact]
) -> Reason | None:
    """Why a handle cannot be prepared: what its deployable runs is not enough."""
    if lacks_program(group, record):
        return Reason(NOT_READY, "The deployable has lost its program.")
    why_not = why_wrong_function(group, record, facts)
    what = "The deployable does not fit as it is now"
    return Reason.of(NOT_READY, what, f"{why_not}.") if why_not else None


def why_wrong_function(
    group: RequestGroup, record: models.ProgramRecord, facts: Collection[models.Fact]
) -> str | None:
    """Why a programmed deployable lacks the function's trait that the group requires."""
    if record.program_mode is None or not serves(group, record):
        return None
    asked = {name: how for name, how in group.traits.items() if program.is_function_trait(name)}
    has = trait_match.traits(facts)
    return trait_match.why_other_traits(asked, has, has)


def why_not_now(
    group: RequestGroup,
    deployable: ProviderRow,
    coming: Mapping[str, program.Program] | None = None,
) -> str | None:
    """Why the deployable's program forbids to give out a handle for the group now.

    ``coming`` is what deployables in doubt will run, by their uuids: who wants that waits for it.
    """
    what = program.of_group(group)
    if not deployable.record.is_settled:
        its = (coming or {}).get(deployable.uuid, program.Program())
        # The handles of the next layout are other ones.
        waits = what and what.is_part_of(its) and not layouts.is_layout(deployable.record)
        return None if waits else "being programmed"
    if what and deployable.record.program_mode is None:
        return f"not programmable, and not known to run {what}"
    if lacks_program(group, deployable.record):
        return "not programmed yet"
    if why_not := _why_other_layout(group, deployable):
        return why_not
    if not what and availability.does_await_report(deployable.record):
        return "not reported since a write of it failed"
    return None


def why_not_given(
    arq: models.Arq,
    deployable: ProviderRow | None,
    coming: Mapping[str, program.Program],
) -> Reason | None:
    """Why no handle of the provider can be given out now, although the bind was accepted.

    A device that was disabled since then still serves the bind, as an administrator who disables it
    looks after the present requests. An unhealthy one would fail its guest.
    """
    its = f"Provider {arq.device_rp_uuid} is"
    if deployable is None or deployable.missing:
        return Reason(UNAVAILABLE, f"{its} gone from its host.")
    if deployable.device.unhealthy is not None:
        return Reason.of(UNAVAILABLE, f"{its} unhealthy", f"{deployable.device.unhealthy}.")
    why_not = why_not_now(arq.request, deployable, coming)
    return Reason(UNAVAILABLE, f"{its} {why_not}.") if why_not else None


def lacks_program(group: RequestGroup, record: models.ProgramRecord) -> bool:
    """Whether a deployable must be programmed, and the group does not say with what."""
    return availability.does_run_nothing(record) and not group.names_program


def serves(group: RequestGroup, record: models.ProgramRecord) -> bool:
    """Whether what the group asks for runs, for certain."""
    other = program.lacking(group, record) is not None
    return not lacks_program(group, record) and not other and record.is_settled


def class_of(deployable: ProviderRow) -> str | None:
    """The resource class of a deployable."""
    keyed = (each.value for each in deployable.facts if each.key == base.RESOURCE_CLASS_KEY)
    return next(keyed, None)


def lock_if_serving(session: orm.Session, group: RequestGroup, deployable_uuid: str) -> bool:
    """Whether a deployable runs what the group asks for; if so, nobody changes that meanwhile."""
    row = models.Deployable
    query = sa.select(row).where(row.uuid == deployable_uuid)
    query = query.options(orm.selectinload(row.attributes))
    found = session.scalar(query.with_for_update(read=True))
    if found is None or not serves(group, found.record):
        return False
    return why_wrong_function(group, found.record, found.facts) is None


def _why_other_layout(group: RequestGroup, deployable: ProviderRow) -> str | None:
    """No layout is changed for a guest, who has been given one of its handles by then."""
    record = deployable.record
    what = program.lacking(group, record) if layouts.is_layout(record) else None
    return f"not known to have {what} as its layout" if what else None


def _why_other_class(group: RequestGroup, deployable: ProviderRow) -> str | None:
    its = class_of(deployable)
    if its not in group.resources:
        return f"it offers {its or 'nothing'}, not {', '.join(sorted(group.resources))}"
    return None
