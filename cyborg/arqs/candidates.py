# SPDX-License-Identifier: Apache-2.0
"""Where the requests of a device profile could be bound, what the profile prefers first.

For consumers that choose themselves. Placement says what has room; the order is made of what the
deployables run, which Placement cannot be asked to sort by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import clients, db, errors
from cyborg.arqs import fit, programs, states
from cyborg.db import models
from cyborg.placement import client
from cyborg.programming import program

#: Keys of a group that order candidates and keep none away.
PREFERRED_FUNCTION = "accel:preferred_function"
PREFERRED_TRAIT = "accel:preferred_trait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The deployable that would serve one group."""

    #: The index of the group.
    group: int
    deployable: models.Deployable
    #: Whether it does not run the function that is preferred.
    lacks_function: bool
    #: How many of the traits that are preferred it does not have.
    lacks_traits: int
    #: Whether it would be programmed for the group.
    reprogram: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Deployables of one host that can serve all groups together."""

    hostname: str
    choices: tuple[Choice, ...]

    @property
    def programmed(self) -> list[models.Deployable]:
        """The deployables that would be programmed, each once."""
        found = {each.deployable.id: each.deployable for each in self.choices if each.reprogram}
        return list(found.values())

    @property
    def reprogrammings(self) -> int:
        """How many deployables would be programmed."""
        return len(self.programmed)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Less is better."""
        lacks_functions = sum(each.lacks_function for each in self.choices)
        lacks_traits = sum(each.lacks_traits for each in self.choices)
        return lacks_functions, lacks_traits, self.reprogrammings


def find(
    conf: cfg.ConfigOpts, groups: Sequence[Mapping[str, str]], *, most: int, limit: int
) -> list[Candidate]:
    """Candidates for all groups together, the best ones first, ``limit`` at most.

    They are the best of ``most`` that Placement names. From one SELECT, and another one where any
    deployable would have to be programmed.

    :raises NotOffered: there is no Placement
    :raises ServiceUnavailable: Placement cannot be asked
    """
    if not clients.configured(conf, "placement"):
        raise errors.NotOffered("There is no Placement: [placement] auth_type is not set here.")
    asked = {
        index: _request(group)
        for index, group in enumerate(groups)
        if any(key.startswith("resources:") for key in group)
    }
    try:
        found = client.Client(conf).find_candidates(list(asked.values()), most) if asked else []
    except ka_exc.ClientException as exc:
        raise errors.ServiceUnavailable("Placement cannot be reached at present.") from exc
    deployables = _deployables({uuid for providers in found for uuid in providers})
    of_groups = {index: groups[index] for index in asked}
    candidates = [
        candidate
        for providers in found
        if all(uuid in deployables for uuid in providers)
        and (candidate := _candidate(of_groups, [deployables[uuid] for uuid in providers]))
    ]
    used = _used({dep.id for candidate in candidates for dep in candidate.programmed})
    free = [each for each in candidates if used.isdisjoint(dep.id for dep in each.programmed)]
    return sorted(free, key=lambda candidate: candidate.rank)[:limit]


def _request(group: Mapping[str, str]) -> client.RequestGroup:
    keys: dict[str, dict[str, str]] = {"resources": {}, "trait": {}}
    for key, value in group.items():
        kind, _, name = key.partition(":")
        keys.setdefault(kind, {})[name] = value
    return client.RequestGroup(
        resources={name: int(amount) for name, amount in keys["resources"].items()},
        required=frozenset(name for name, how in keys["trait"].items() if how == "required"),
        forbidden=frozenset(name for name, how in keys["trait"].items() if how == "forbidden"),
    )


def _deployables(providers: set[str]) -> dict[str, models.Deployable]:
    device = models.Deployable.device
    query = (
        sa.select(models.Deployable)
        .join(device)
        .join(models.Device.host)
        .options(
            orm.contains_eager(device).contains_eager(models.Device.host),
            orm.joinedload(models.Deployable.attributes),
        )
        .where(models.Deployable.rp_uuid.in_(providers))
    )
    with db.reader() as session:
        return {found.rp_uuid: found for found in session.scalars(query).unique()}


def _used(deployables: Collection[int]) -> set[int]:
    """Those deployables that are in use, or are about to be, so that they are not programmed.

    As in :mod:`cyborg.programming.guard`, but that who waits for the same program is in the way
    here: it is not known yet whether it will be written.
    """
    if not deployables:
        return set()
    arq, handle = models.Arq, models.AttachHandle
    row, part = orm.aliased(models.Deployable), orm.aliased(models.Deployable)
    same = sa.and_(
        part.device_id == row.device_id, sa.or_(part.id == row.id, part.missing.is_(True))
    )
    parts = sa.select(row.id).join(part, same).where(row.id.in_(deployables))
    held = parts.join(handle, handle.deployable_id == part.id).join(
        arq, arq.attach_handle_id == handle.id
    )
    undecided = parts.join(arq, arq.device_rp_uuid == part.rp_uuid).where(
        arq.state == states.BIND_STARTED
    )
    # An OR instead of the UNION would read all ARQs.
    with db.reader() as session:
        return set(session.scalars(sa.union(held, undecided)))


def _candidate(
    groups: Mapping[int, Mapping[str, str]], chosen: Sequence[models.Deployable]
) -> Candidate | None:
    """The candidate, or None where it could not be bound."""
    choices = tuple(
        _choice(index, group, deployable)
        for (index, group), deployable in zip(groups.items(), chosen, strict=True)
        if not _is_refused(group, deployable)
    )
    if len(choices) < len(groups) or _disagree(groups, choices):
        return None
    return Candidate(hostname=chosen[0].device.host.node, choices=choices)


def _is_refused(group: Mapping[str, str], deployable: models.Deployable) -> bool:
    """Whether the deployable would not be given to the group, whoever else has any of it."""
    device = deployable.device
    ails = deployable.missing or device.unhealthy is not None or device.status != "enabled"
    reason = (
        programs.flaw(group)
        or programs.obstacle(group, deployable)
        or fit.misfit(group, deployable.attributes)
        or fit.misfit_when_bound(group, deployable)
    )
    return ails or reason is not None


def _choice(index: int, group: Mapping[str, str], deployable: models.Deployable) -> Choice:
    function = group.get(PREFERRED_FUNCTION)
    runs = deployable.is_settled and deployable.function_id
    traits = fit.traits(deployable.attributes)
    preferred = {name.strip() for name in group.get(PREFERRED_TRAIT, "").split(",")} - {""}
    return Choice(
        group=index,
        deployable=deployable,
        lacks_function=bool(function) and not (runs and program.same(runs, function)),
        lacks_traits=len(preferred - traits),
        reprogram=programs.needs_programming(group, deployable),
    )


def _disagree(groups: Mapping[int, Mapping[str, str]], choices: Sequence[Choice]) -> bool:
    """Whether one deployable would have to run two programs, or be programmed while it is used."""
    needed: dict[int, program.Program] = {}
    programmed = {choice.deployable.id for choice in choices if choice.reprogram}
    for choice in choices:
        what = program.of_group(groups[choice.group])
        if what and not needed.setdefault(choice.deployable.id, what).agrees(what):
            return True
        if not what and choice.deployable.id in programmed:
            return True
    return False
