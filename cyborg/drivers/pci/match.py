# SPDX-License-Identifier: Apache-2.0
"""The matches of a driver of PCI devices: globs over the ids and the class of a function."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from cyborg.drivers.pci.snapshot import IDS, Function, Snapshot


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
        return sum(char in "0123456789abcdef" for name in IDS for char in getattr(self, name))


class Matches:
    """The matches of one driver. An answer for some ids is kept."""

    def __init__(self, matches: Sequence[Match]) -> None:
        self._matches = matches
        vendors = {each.vendor for each in matches}
        #: The vendors whose functions can match; None for all.
        self._vendors = vendors if all(map(str.isalnum, vendors)) else None
        self._digits: dict[tuple[str, ...], int | None] = {}

    def of(self, functions: Snapshot, *, parts: bool) -> dict[str, int]:
        """The functions that match, each with the number of its digits that are matched.

        With ``parts``, those of a card match as it does if they do not match themselves.
        """
        matched: dict[str, int] = {}
        for ids, same in functions.by_ids.items():
            if self._vendors is None or ids[0] in self._vendors:
                digits = self._of_ids(ids, same[0])
                matched.update((each.address, digits) for each in same if digits is not None)
        for address in list(matched) if parts else ():
            for vf in functions[address].vfs:
                matched.setdefault(vf, matched[address])
        return matched

    def _of_ids(self, ids: tuple[str, ...], function: Function) -> int | None:
        if ids not in self._digits:
            # A match that fixes no digit is a match.
            fitting = [max(1, each.digits) for each in self._matches if each.fits(function)]
            self._digits[ids] = max(fitting, default=None)
        return self._digits[ids]


@functools.cache
def _terms(match: Match) -> tuple[tuple[str, str, bool], ...]:
    """The fields that a match compares: name, glob, and whether the glob has no wildcard."""
    globs = ((name, getattr(match, name)) for name in IDS)
    return tuple((name, glob, glob.isalnum()) for name, glob in globs if glob != "*")
