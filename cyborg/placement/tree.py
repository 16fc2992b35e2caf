# SPDX-License-Identifier: Apache-2.0
"""A host's resource providers as values, and a pure function that plans how to change them.

A trait or inventory is ours if the database says that we set it. All others belong to Nova or the
operator, and no plan changes them.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cyborg.common.request_groups import TAINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The amount of one resource class that a provider offers."""

    total: int
    reserved: int
    max_unit: int
    min_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0

    def withdrawn(self) -> Inventory:
        """The same, with everything reserved."""
        return dataclasses.replace(self, reserved=self.total)


Inventories = Mapping[str, Inventory]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One resource provider with everything on it."""

    uuid: str
    name: str
    parent_uuid: str | None
    inventories: Inventories = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    #: Placement's count of changes. It has no meaning in a wanted provider.
    generation: int = 0


#: Providers by uuid, without the root and without nested providers of others.
Tree = Mapping[str, Provider]


@dataclass(frozen=True, slots=True)
class Ours:
    """The resource classes and traits of one provider that we set."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()

    @classmethod
    def of(cls, provider: Provider) -> Ours:
        """Everything on a wanted provider."""
        return cls(frozenset(provider.inventories), provider.traits)

    def __or__(self, other: Ours) -> Ours:
        return Ours(self.classes | other.classes, self.traits | other.traits)

    def __and__(self, other: Ours) -> Ours:
        return Ours(self.classes & other.classes, self.traits & other.traits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A step that says the name and the parent of a provider."""

    uuid: str
    name: str
    parent_uuid: str | None


class CreateProvider(_Named):
    """Make a provider without inventories and traits."""


class UpdateProvider(_Named):
    """Set the name and the parent of a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTraits:
    """Replace all traits of a provider."""

    uuid: str
    traits: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInventories:
    """Replace all inventories of a provider."""

    uuid: str
    inventories: Inventories


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachProvider:
    """Take a provider out of its tree, or reserve its inventories while it has allocations.

    nova-compute remembers the providers below its root until it reads the tree again, and builds
    no server on a host of which one was deleted meanwhile.
    """

    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteProvider:
    """Remove a provider that nobody remembers any more."""

    uuid: str


Step = (
    CreateProvider | UpdateProvider | SetTraits | SetInventories | DetachProvider | DeleteProvider
)


def plan(
    desired: Tree,
    actual: Tree,
    ours: Mapping[str, Ours],
    unsure: Collection[str] = (),
    detached: Mapping[str, bool] = types.MappingProxyType({}),
) -> list[Step]:
    """The steps from ``actual`` to ``desired``, in an order that Placement permits.

    ``ours`` has every provider that we made, with what we set on it. One that is not desired is
    detached even if ``actual`` does not have it: it may be below another root. ``detached`` says
    of those to which that was done already whether they are due to be deleted. One that is
    ``unsure`` is set again even if it is as desired, so that its generation becomes another. That
    comes first, as Placement may refuse the traits.
    """
    steps: list[Step] = []
    for provider in _top_down(desired):
        found = actual.get(provider.uuid)
        its = list(_make(provider, found, ours.get(provider.uuid, Ours())))
        is_set = any(isinstance(step, SetInventories) for step in its)
        if found is not None and provider.uuid in unsure and not is_set:
            its.insert(0, SetInventories(uuid=found.uuid, inventories=found.inventories))
        steps += its
    leftover = ours.keys() - desired.keys()
    shown = [provider.uuid for provider in _top_down(actual) if provider.uuid in leftover]
    hidden = sorted(leftover.difference(shown))
    steps += [DeleteProvider(uuid=uuid) for uuid in hidden if detached.get(uuid)]
    steps += [DetachProvider(uuid=uuid) for uuid in hidden if uuid not in detached]
    steps += [DetachProvider(uuid=uuid) for uuid in reversed(shown)]
    return steps


def sets(step: Step) -> bool:
    """The step replaces something of a provider, and so changes its generation."""
    return isinstance(step, SetTraits | SetInventories)


def _top_down(tree: Tree) -> Iterator[Provider]:
    """The providers by uuid, but each after its parent."""

    def depth(provider: Provider) -> int:
        parent = tree.get(provider.parent_uuid or "")
        return 0 if parent is None else depth(parent) + 1

    return iter(sorted(tree.values(), key=lambda provider: (depth(provider), provider.uuid)))


def _make(wanted: Provider, found: Provider | None, ours: Ours) -> Iterator[Step]:
    if found is None:
        yield CreateProvider(uuid=wanted.uuid, name=wanted.name, parent_uuid=wanted.parent_uuid)
        found = dataclasses.replace(wanted, inventories={}, traits=frozenset())
    elif (found.name, found.parent_uuid) != (wanted.name, wanted.parent_uuid):
        yield UpdateProvider(uuid=wanted.uuid, name=wanted.name, parent_uuid=wanted.parent_uuid)
    steps: list[Step] = [*_traits(wanted, found, ours), *_inventories(wanted, found, ours)]
    # Set the traits before the inventories, because requests may forbid a trait. But if all is to
    # be reserved, do that first: Placement may refuse the traits.
    if all(inventory == inventory.withdrawn() for inventory in wanted.inventories.values()):
        steps.reverse()
    yield from steps


def _traits(wanted: Provider, found: Provider, ours: Ours) -> Iterator[SetTraits]:
    # Nobody else says what is tainted.
    traits = (found.traits - ours.traits - {TAINT}) | wanted.traits
    if traits != found.traits:
        yield SetTraits(uuid=wanted.uuid, traits=traits)


def _inventories(wanted: Provider, found: Provider, ours: Ours) -> Iterator[SetInventories]:
    kept = {name: inv for name, inv in found.inventories.items() if name not in ours.classes}
    inventories = kept | dict(wanted.inventories)
    if inventories != found.inventories:
        yield SetInventories(uuid=wanted.uuid, inventories=inventories)


def retaining(inventories: Inventories, found: Inventories) -> Inventories:
    """``inventories``, and fully reserved those of ``found`` that they would remove.

    This can be set on a provider while guests have allocations of the removed classes.
    """
    removed = {name: inv.withdrawn() for name, inv in found.items() if name not in inventories}
    return removed | dict(inventories)


def withdrawn(found: Inventories, ours: Ours) -> Inventories:
    """``found`` with ours fully reserved, for a provider that cannot be detached yet."""
    return {name: inv.withdrawn() if name in ours.classes else inv for name, inv in found.items()}
