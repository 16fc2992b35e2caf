# SPDX-License-Identifier: Apache-2.0
"""What a driver of PCI devices matches: globs over the ids and the class of a function."""

from __future__ import annotations

import fnmatch
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

from cyborg.drivers.pci.snapshot import Function

_FIELDS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class_code")
ids_of: Callable[[Function], tuple[str, ...]] = operator.attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Globs over the ids and the class of a function: lower-case hexadecimal digits."""

    vendor: str = "*"
    device: str = "*"
    subsystem_vendor: str = "*"
    subsystem_device: str = "*"
    class_code: str = "*"

    def fits(self, function: Function) -> bool:
        """Whether the function matches."""
        for name, glob, is_literal in _terms(self):
            value = getattr(function, name)
            if value != glob and (is_literal or not fnmatch.fnmatchcase(value, glob)):
                return False
        return True

    @property
    def digits(self) -> int:
        """How many digits it fixes. The match that fixes more is the more exact one."""
        return sum(char in "0123456789abcdef" for name in _FIELDS for char in getattr(self, name))


@functools.cache
def _terms(match: Match) -> tuple[tuple[str, str, bool], ...]:
    """The fields that a match compares: name, glob, and whether the glob has no wildcard."""
    globs = ((name, getattr(match, name)) for name in _FIELDS)
    return tuple((name, glob, glob.isalnum()) for name, glob in globs if glob != "*")
