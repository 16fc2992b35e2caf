# SPDX-License-Identifier: Apache-2.0
"""Identifiers, numbers and texts of a request in the form in which they are stored."""

from __future__ import annotations

import uuid as uuidlib

from oslo_utils import uuidutils

TEXT_MAX = 255
#: The largest number that a column of integers holds.
ID_MAX = 2**31 - 1


def find_uuid(text: str) -> str | None:
    """The UUID in the form in which it is stored, or None if ``text`` is not a UUID."""
    return stored_uuid(text) if uuidutils.is_uuid_like(text) else None


def stored_uuid(text: str) -> str:
    """The UUID in the form in which it is stored; ``text`` has been checked to be a UUID."""
    return str(uuidlib.UUID(text))


def as_text(value: str | float) -> str:
    """The text of a value that clients may also send as a whole number."""
    return value if isinstance(value, str) else str(int(value))
