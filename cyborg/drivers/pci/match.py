# SPDX-License-Identifier: Apache-2.0
"""The matches of a driver of PCI devices: globs over the ids and the class of a function."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cyborg.drivers.pci.snapshot import Function, Snapshot

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
        """True if the function matches."""
        for name, glob, is_literal in _terms(self):
            value = getattr(function, name)
            if value != glob and (is_literal or not fnmatch.fnmatchcase(value, glob)):
                return False
        return True

    @property
    def digits(self) -> int:
        """The number of digits that it fixes. The match that fixes more is the more exact one."""
        return sum(char in "0123456789abcdef" for name in _FIELDS for char in getattr(self, name))


class Matches:
    """The matches of one driver. An answer for some ids is kept."""

    def __init__(self, matches: Sequence[Match]) -> None:
        self._matches = matches
        vendors = {each.vendor for each in matches}
        #: The vendors whose functions can match; None for all.
        self._vendors = vendors if all(map(str.isalnum, vendors)) else None
        self._digits: dict[tuple[str, ...], int | None] = {}

    def candidates(self, functions: Snapshot) -> Iterable[Function]:
        """The functions that may match."""
        if self._vendors is None:
            return functions.values()
        return itertools.chain.from_iterable(map(functions.of_vendor, self._vendors))

    def digits(self, function: Function) -> int | None:
        """The number of the function's digits that are matched, or None if it does not match."""
        ids = ids_of(function)
        if ids not in self._digits:
            # A match that fixes no digit is a match.
            fitting = [max(1, each.digits) for each in self._matches if each.fits(function)]
            self._digits[ids] = max(fitting, default=None)
        return self._digits[ids]


@functools.cache
def _terms(match: Match) -> tuple[tuple[str, str, bool], ...]:
    """The fields that a match compares: name, glob, and whether the glob has no wildcard."""
    globs = ((name, getattr(match, name)) for name in _FIELDS)
    return tuple((name, glob, glob.isalnum()) for name, glob in globs if glob != "*")
