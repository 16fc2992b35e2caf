# SPDX-License-Identifier: Apache-2.0
"""The program that a claim asks for in its ``config``, for each device that it has. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.common import errors
from cyborg.common import request_groups as groups

#: The type of what ``opaque.parameters`` may be.
API_VERSION, KIND = "cyborg.openstack.org/v1", "Program"
_KEYS = {
    "function": groups.FUNCTION_ID,
    "functionName": groups.FUNCTION_NAME,
    "bitstream": groups.BITSTREAM_ID,
}
_LAYOUT = "layout"
#: The field of an operation for each of them, where a whole deployable is programmed.
_OPERATION = {
    "function": "function_id",
    "functionName": "function_name",
    "bitstream": "image_uuid",
    _LAYOUT: _LAYOUT,
}
_LONGEST = 255

_Row = Mapping[str, Any]


class InvalidConfig(errors.CyborgError):
    """The ``config`` of a claim or class cannot be followed; it stays so."""


@dataclass(frozen=True, slots=True)
class WantedProgram:
    """A program: one of the keys of its parameters, and a name."""

    key: str
    name: str

    def group(self) -> dict[str, str]:
        """The keys of a request group that ask a bind for it."""
        return {_KEYS[self.key]: self.name} if self.key in _KEYS else {}

    def operation(self) -> dict[str, str]:
        """The body that asks for a whole deployable to be programmed."""
        return {_OPERATION[self.key]: self.name}

    def runs_on(self, programs: Iterable[str]) -> bool:
        """True if one of the programs of a deployable is this one, written in any way."""
        return _plain(self.name) in map(_plain, programs)


def _plain(name: str) -> str:
    return name.replace("-", "").upper()


def wanted(claim: _Row, driver: str, request: str) -> WantedProgram | None:
    """The program for the devices of a request; what the claim says goes before its class.

    :raises InvalidConfig: the parameters are none of this driver's
    """
    found = None
    for each in _configs(claim, driver, request):
        found = _read(each)
    return found


def is_wanted(claim: _Row, driver: str, request: str) -> bool:
    """True if a claim or its class names a program, in whatever form."""
    return any(True for _ in _configs(claim, driver, request))


def _configs(claim: _Row, driver: str, request: str) -> Iterator[Any]:
    """The parameters for a request; Kubernetes lists those of classes first."""
    names = {request, request.partition("/")[0]}
    for each in claim["status"]["allocation"]["devices"].get("config") or ():
        opaque = each.get("opaque") or {}
        if opaque.get("driver") == driver and (
            not each.get("requests") or names & set(each["requests"])
        ):
            yield opaque.get("parameters")


def _read(parameters: Any) -> WantedProgram:
    given = dict(parameters) if isinstance(parameters, Mapping) else {}
    if (given.pop("apiVersion", None), given.pop("kind", None)) != (API_VERSION, KIND):
        raise InvalidConfig(f"config: parameters must be of kind {KIND} of {API_VERSION}.")
    names = [*_KEYS, _LAYOUT]
    if len(given) != 1 or next(iter(given)) not in names:
        raise InvalidConfig(f"config: give just one of {', '.join(names)}.")
    ((key, name),) = given.items()
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST:
        raise InvalidConfig(f"config: {key} must be a text of up to {_LONGEST} characters.")
    return WantedProgram(key, name)
