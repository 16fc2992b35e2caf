# SPDX-License-Identifier: Apache-2.0
"""Compare a host's providers in Placement with the database. Nothing is changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.placement import client, desired, tree

_T = TypeVar("_T")

#: How often a host is read again if it changes meanwhile.
_LOOKS = 3
#: How many names of hosts are read at once.
_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one host: whether work on it is under way, and if not, what differs."""

    in_progress: bool = False
    #: A sentence for each difference.
    differences: tuple[str, ...] = ()


def compare_all(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Comparison]]:
    """Compare the hosts one after the other, by name.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    for name in host_names():
        yield name, compare_host(conf, name)


def host_names() -> Iterator[str]:
    """The names of all hosts, in order."""
    name, last = models.Host.name, ""
    query = sa.select(name).order_by(name).limit(_PAGE)
    while names := db.read_all(query.where(name > last)):
        for last in names:
            yield last


def compare_host(conf: cfg.ConfigOpts, host_name: str, most: int | None = None) -> Comparison:
    """Read all our providers below a host's root, and describe how they differ from the database.

    A difference counts only if it is seen twice and no work on the host is pending: what is just
    being changed is not wrong. Only ``most`` providers are read, first those that have changed
    since they were left, as far as a list shows.

    :raises PlacementError, keystoneauth1.exceptions.ClientException: Placement does not answer
    """
    api = client.Client(conf)
    last: tuple[str, ...] | None = None
    for _ in range(_LOOKS):
        state = desired.read(host_name)
        if state is None or not (state.providers or state.records):
            return Comparison()
        if work.is_wanted(work.PLACEMENT, host_name):
            return Comparison(in_progress=True)
        try:
            found = tuple(_differences(api, state, most))
        except (client.GenerationConflict, client.NoSuchProvider):
            continue
        if not found or found == last:
            return Comparison(differences=found)
        last = found
    return Comparison(in_progress=True)


def _differences(api: client.Client, state: desired.HostState, most: int | None) -> Iterator[str]:
    listed = api.find_tree(state.root_name)
    if not listed and state.providers:
        yield f"There is no root provider {state.root_name}, and so none of those below it."
        return
    known = [item for item in listed if item.uuid in state.providers or item.uuid in state.records]
    known.sort(key=lambda item: state.as_left(item) is not None)
    actual = {item.uuid: api.read_provider(item) for item in known[:most]}
    unread = {item.uuid for item in known} - actual.keys()
    had = state.roots()
    if listed and had and (root := listed[0].uuid) not in had:
        yield f"Root provider {state.root_name} has uuid {root} instead of {', '.join(had)}."
    wanted = state.below(listed[0].uuid if listed else None)
    ours = _without(state.ours(), unread)
    steps = tree.plan(_without(wanted, unread), actual, ours, detached=state.detached(0))
    yield from _sentences(state, actual, steps)


def _without(all_: Mapping[str, _T], uuids: Set[str]) -> dict[str, _T]:
    return {uuid: each for uuid, each in all_.items() if uuid not in uuids}


def _sentences(
    state: desired.HostState, actual: tree.Tree, steps: Iterable[tree.Step]
) -> Iterator[str]:
    """A sentence for what each step would correct."""
    missing: set[str] = set()
    for step in steps:
        if step.uuid in missing:
            continue
        found = actual.get(step.uuid)
        known = found or state.providers.get(step.uuid) or state.records[step.uuid]
        whose = f"Provider {known.name} ({step.uuid})"
        match step:
            case tree.CreateProvider():
                missing.add(step.uuid)
                yield f"{whose} is missing below {_above(state, step)}."
            case tree.UpdateProvider():
                yield f"{whose} should be called {step.name}, below {_above(state, step)}."
            case tree.SetTraits() if found:
                yield from _traits(whose, step, found)
            case tree.SetInventories() if found:
                yield from _inventories(whose, step, found)
            case tree.DetachProvider():
                yield f"{whose} is kept, and no deployable is behind it."


def _above(state: desired.HostState, step: tree.CreateProvider | tree.UpdateProvider) -> str:
    parent = state.providers.get(step.parent_uuid or "")
    return parent.name if parent else state.root_name


def _traits(whose: str, step: tree.SetTraits, found: tree.Provider) -> Iterator[str]:
    if lacking := sorted(step.traits - found.traits):
        yield f"{whose} lacks traits {', '.join(lacking)}."
    if needless := sorted(found.traits - step.traits):
        yield f"{whose} has traits that it should not have: {', '.join(needless)}."


def _inventories(whose: str, step: tree.SetInventories, found: tree.Provider) -> Iterator[str]:
    for name in sorted(step.inventories.keys() | found.inventories.keys()):
        wanted, given = step.inventories.get(name), found.inventories.get(name)
        if wanted is None:
            yield f"{whose} offers {name}, which it should not."
        elif given is None:
            yield f"{whose} offers no {name}."
        else:
            right = dataclasses.asdict(wanted)
            for key, value in dataclasses.asdict(given).items():
                if value != right[key]:
                    yield f"{whose} has {key} {value} of {name} instead of {right[key]}."
