# SPDX-License-Identifier: Apache-2.0
"""A deployable's attributes: stored as text, shown in their types, updated from reports."""

from __future__ import annotations

import re
from collections.abc import Collection

from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base, trait_names

DRIVER, ADMIN = "driver", "admin"

_NUMBER_MAX = 2**31 - 1


def stored(key: str, value: str) -> str:
    """The text that is stored for the value of an attribute.

    :raises Invalid: the key is that of a number, and the value is not a number
    """
    if base.FACTS.get(key) is not int:
        return value
    if not re.fullmatch("[0-9]{1,10}", value) or int(value) > _NUMBER_MAX:
        raise errors.Invalid(
            f"value: {key} is a whole number from 0 to {_NUMBER_MAX}, not '{value[:255]}'."
        )
    return str(int(value))


def shown(key: str, value: str) -> str | int:
    """The stored text in the type of its key, or as it is if it does not fit that type.

    It may have been stored before the key had a type.
    """
    if base.FACTS.get(key) is int and re.fullmatch("[0-9]{1,10}", value):
        return int(value)
    return value


def reported(
    deployable: base.Deployable, present: Collection[models.Attribute] = ()
) -> dict[str, str]:
    """Values by key, as a driver reports them: ``traits1``…, ``rc`` and its other attributes.

    A trait that is ``present`` keeps its key; a new one gets the first free number.
    """
    taken = {attribute.key: attribute for attribute in present}
    new = dict.fromkeys(deployable.traits)
    values: dict[str, str] = {}
    for key, attribute in taken.items():
        if key.startswith(base.TRAIT_PREFIX) and attribute.value in new:
            del new[attribute.value]
            if attribute.origin == DRIVER:
                values[key] = attribute.value
    numbers = (f"traits{number}" for number in range(1, len(taken) + len(new) + 1))
    free = (key for key in numbers if key not in taken)
    values |= {next(free): trait for trait in new}
    own = {key: str(value) for key, value in deployable.attributes.items()}
    return values | {base.RESOURCE_CLASS_KEY: deployable.resource_class} | own


def rows(values: dict[str, str]) -> list[models.Attribute]:
    """New rows for values that a driver reports."""
    return [
        models.Attribute(key=key, value=value, origin=DRIVER) for key, value in values.items()
    ]


def update(row: models.Deployable, deployable: base.Deployable) -> None:
    """Change a deployable's rows to what its driver reports; other attributes stay."""
    present = {attribute.key: attribute for attribute in row.attributes}
    values = reported(deployable, row.attributes)
    held = any(handle.is_kept for handle in row.attach_handles)
    keep = _hidden_by_guest(present.values(), values) if held else set()
    for key, attribute in present.items():
        if attribute.origin != DRIVER:
            continue
        if key not in values:
            if key not in keep:
                row.attributes.remove(attribute)
        elif not (key == base.RESOURCE_CLASS_KEY and held):
            # The guest's allocation uses the old resource class until the guest is gone.
            attribute.value = values[key]
    row.attributes += rows({key: values[key] for key in values if key not in present})


def is_class_outdated(row: models.Deployable, deployable: base.Deployable) -> bool:
    """Whether the row still has another resource class, because a guest's allocation uses it."""
    return any(
        (attribute.key, attribute.origin) == (base.RESOURCE_CLASS_KEY, DRIVER)
        and attribute.value != deployable.resource_class
        for attribute in row.attributes
    )


def _hidden_by_guest(
    present: Collection[models.Attribute], reported_keys: Collection[str]
) -> set[str]:
    """Keys of facts that are not reported now, and of the traits that follow from them.

    The host can read many facts of a device only while its own driver has the device, and not
    while a guest has it.
    """
    own = [each for each in present if each.origin == DRIVER and each.key not in reported_keys]
    traits = {each.key: each.value for each in own if each.key.startswith(base.TRAIT_PREFIX)}
    facts = {
        each.key: shown(each.key, each.value)
        for each in own
        if each.key != base.RESOURCE_CLASS_KEY and each.key not in traits
    }
    derived = trait_names.of_facts(facts)
    return facts.keys() | {key for key, value in traits.items() if value in derived}
