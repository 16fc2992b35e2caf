# SPDX-License-Identifier: Apache-2.0
"""Attributes with types: stored as texts, checked before that, and shown as what they are."""

from __future__ import annotations

import re
from collections.abc import Collection

from cyborg import errors
from cyborg.db import models
from cyborg.drivers import base, trait_names

_NUMBER_MAX = 2**31 - 1


def stored(key: str, value: str) -> str:
    """The text in which the value of an attribute is kept.

    :raises Invalid: the key is that of a number, and the value is none
    """
    if base.FACTS.get(key) is not int:
        return value
    if not re.fullmatch("[0-9]{1,10}", value) or int(value) > _NUMBER_MAX:
        raise errors.Invalid(
            f"value: {key} is a whole number from 0 to {_NUMBER_MAX}, not '{value[:255]}'."
        )
    return str(int(value))


def untold(present: Collection[models.Attribute], wanted: Collection[str]) -> set[str]:
    """Keys of the facts that a driver does not tell, and of the traits that were made of them.

    Much of a device can be read only while the host's driver has it, and not while a guest does.
    """
    own = [each for each in present if each.origin == "driver" and each.key not in wanted]
    known = {
        each.key: shown(each.key, each.value)
        for each in own
        if each.key != "rc" and not each.key.startswith("trait")
    }
    traits = trait_names.of_facts(known)
    return known.keys() | {
        each.key for each in own if each.key.startswith("trait") and each.value in traits
    }


def shown(key: str, value: str) -> str | int:
    """The value in its type; the text itself where it is older than the type and does not fit."""
    if base.FACTS.get(key) is int and re.fullmatch("[0-9]{1,10}", value):
        return int(value)
    return value
