# SPDX-License-Identifier: Apache-2.0
"""Whether a provider has what a group of a device profile asks of it: its class and its traits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cyborg.arqs import programs
from cyborg.db import models
from cyborg.programming import program


def misfit(group: Mapping[str, str], attributes: Sequence[models.Attribute]) -> str | None:
    """Why a provider with these attributes cannot serve the group, or None where it can."""
    has = traits(attributes)
    return _other_class(group, attributes) or _other_trait(group, has, has)


def misfit_when_bound(group: Mapping[str, str], deployable: models.Deployable) -> str | None:
    """The same of a deployable that is programmed for the group first where that is needed.

    The trait of its function comes with that. What the group forbids is nothing that it has now.
    """
    attributes = deployable.attributes
    has = traits(attributes)
    then = has
    if programs.needs_programming(group, deployable):
        gone = {each.value for each in attributes if each.key == program.TRAIT_KEY}
        then = (has - gone) | _brought(group, deployable.function_vendor)
    return _other_class(group, attributes) or _other_trait(group, has, then)


def misfit_of_function(
    group: Mapping[str, str], attributes: Sequence[models.Attribute]
) -> str | None:
    """Why it has not the function's trait that the group asks for; programming may change that."""
    asked = {
        key: value
        for key, value in group.items()
        if program.is_function_trait(key.partition(":")[2])
    }
    has = traits(attributes)
    return _other_trait(asked, has, has)


def traits(attributes: Sequence[models.Attribute]) -> set[str]:
    """The traits among the attributes of a deployable."""
    return {attribute.value for attribute in attributes if attribute.key.startswith("trait")}


def _brought(group: Mapping[str, str], vendor: str) -> set[str]:
    """The traits that programming for the group brings; any that may be where nobody knows."""
    function = program.of_group(group).function_id
    if function is not None:
        return {program.function_trait(vendor, function)}
    asked = (key.partition(":")[2] for key in group if key.startswith("trait:"))
    return {trait for trait in asked if program.is_function_trait(trait)}


def _other_class(
    group: Mapping[str, str], attributes: Sequence[models.Attribute]
) -> str | None:
    classes = {attribute.value for attribute in attributes if attribute.key == "rc"}
    asked = {key.partition(":")[2] for key in group if key.startswith("resources:")}
    if classes.isdisjoint(asked):
        return f"it offers {', '.join(sorted(classes))}, not {', '.join(sorted(asked))}"
    return None


def _other_trait(
    group: Mapping[str, str], has: Collection[str], then: Collection[str]
) -> str | None:
    for key, value in group.items():
        kind, _, trait = key.partition(":")
        if kind != "trait":
            continue
        if value != "required":
            if trait in has:
                return f"trait {trait} is {value}"
        elif trait not in then:
            goes = ", which goes with what it runs now" if trait in has else ""
            return f"trait {trait} is {value}{goes}"
    return None
