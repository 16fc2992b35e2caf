# SPDX-License-Identifier: Apache-2.0
"""Attributes with types: stored as texts, checked before that, and shown as what they are."""

from __future__ import annotations

import re

from cyborg import errors
from cyborg.drivers import base

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


def shown(key: str, value: str) -> str | int:
    """The value in its type; the text itself where it is older than the type and does not fit."""
    if base.FACTS.get(key) is int and re.fullmatch("[0-9]{1,10}", value):
        return int(value)
    return value
