# SPDX-License-Identifier: Apache-2.0
"""A program as somebody asks for it, compared with what a deployable runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from cyborg.common.request_groups import RequestGroup
from cyborg.db import models
from cyborg.peers import glance
from cyborg.states import availability

#: The attribute that holds the trait of the function, and its origin: reports leave it alone.
TRAIT_KEY = "trait_function"
ORIGIN = "program"
_TRAIT = "CUSTOM_FPGA_FUNCTION_ID"
_TRAIT_MAX = 255

_WORDS = {
    "image_uuid": "image {}",
    "image_name": "image named {}",
    "function_id": "function {}",
    "function_name": "function named {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, by its image or its function; what is given must all be true of it."""

    image_uuid: str | None = None
    image_name: str | None = None
    function_id: str | None = None
    function_name: str | None = None

    def __bool__(self) -> bool:
        # Asked for each ARQ several times.
        return any((self.image_uuid, self.image_name, self.function_id, self.function_name))

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value}
        return " and ".join(_WORDS[name].format(value) for name, value in given.items())

    def is_run_by(self, record: models.ProgramRecord) -> bool:
        """Whether it is known to run. By an image's name alone that is never known.

        The record of a deployable that its driver does not program any more may be outdated.
        """
        unknown = not record.is_settled or record.program_mode is None
        if unknown or self.image_name is not None or not self:
            return False
        function = self.function_id
        return (
            self.image_uuid in {None, record.bitstream_id}
            and (function is None or same(function, record.function_id))
            and self.function_name in {None, record.function_name}
        )

    def may_be_run_by(self, record: models.ProgramRecord) -> bool:
        """Whether only Glance knows: it is asked for by a name that is not known here."""
        named = self.image_name or (self.function_name and record.function_name is None)
        rest = replace(self, image_name=None, function_name=None)
        known = not availability.is_blank(record)
        fits = not rest or rest.is_run_by(record)
        return bool(named and known) and fits and record.is_settled

    def is_part_of(self, other: Program) -> bool:
        """Whether the other one gives everything that this one gives, and perhaps more."""
        mine, others = asdict(self), asdict(other)
        given = [name for name in mine if mine[name]]
        return all(others[name] for name in given) and self.agrees(other)

    def agrees(self, other: Program) -> bool:
        """Whether both give something in common, and nothing in which they differ."""
        equal = self._compared(other)
        return bool(equal) and all(equal)

    def contradicts(self, other: Program) -> bool:
        """Whether both give something in which they differ."""
        return not all(self._compared(other))

    def _compared(self, other: Program) -> list[bool]:
        """Of each thing that both give, whether it is the same."""
        mine, others = asdict(self), asdict(other)
        both = {name for name in mine if mine[name] and others[name]}
        equal = [mine[name] == others[name] for name in both - {"function_id"}]
        if "function_id" in both:
            equal.append(same(mine["function_id"], others["function_id"]))
        return equal


def of_group(group: RequestGroup) -> Program:
    """The program that a request group asks for; empty if it asks for none."""
    return Program(
        image_uuid=group.image_uuid,
        function_id=group.function_id,
        function_name=group.function_name,
    )


def lacking(group: RequestGroup, record: models.ProgramRecord) -> Program | None:
    """The program that a group asks for and that is not known to run, or None."""
    what = of_group(group)
    return what if what and not what.is_run_by(record) else None


def of_operation(operation: models.Operation, found: glance.Image | None = None) -> Program:
    """What the operation asks for, and what is known of the image that was found for it."""
    image: Mapping[str, str | None] = operation.image or {}
    if found is not None:
        names = ("uuid", "name", "function_id", "function_name")
        image = {name: getattr(found, name) for name in names}
    return Program(
        image_uuid=operation.image_uuid or image.get("uuid"),
        image_name=operation.image_name or image.get("name"),
        function_id=operation.function_id or image.get("function_id"),
        function_name=operation.function_name or image.get("function_name"),
    )


def recorded(record: models.ProgramRecord) -> Program:
    """The program that is recorded to run."""
    return Program(
        image_uuid=record.bitstream_id,
        image_name=(record.bitstream or {}).get("name"),
        function_id=record.function_id,
        function_name=record.function_name,
    )


def is_run(image: glance.Image, what: Program, record: models.ProgramRecord) -> bool:
    """Return true if the program that was asked for, of which this is the image, runs.

    A function's name that was not known until now may be recorded for it.
    """
    same = Program(image_uuid=image.uuid)
    if not (what.image_uuid or what.image_name or same.is_run_by(record)):
        same = Program(function_id=image.function_id)
    name = record.function_name and what.function_name
    # Otherwise a bind that asks for the name would ask again and again.
    asked = replace(what, image_name=None, function_name=name)
    return same.is_run_by(record) and (not asked or asked.is_run_by(record))


def function_trait(vendor: str, function_id: str) -> str:
    """The trait of a provider that runs the function."""
    parts = (_TRAIT, _legal(vendor), _ending(function_id))
    return "_".join(part for part in parts if part)[:_TRAIT_MAX]


def may_be_trait_of(trait: str, function_id: str) -> bool:
    """Whether that is the trait of a provider of some vendor that runs the function."""
    return is_function_trait(trait) and trait.endswith(f"_{_ending(function_id)}")


def _ending(function_id: str) -> str:
    """What stands for a function in its trait: two functions must not have the same."""
    own = plain(function_id)
    legal = _legal(own)
    if legal == own:
        return own
    return f"{legal}_{hashlib.sha256(own.encode()).hexdigest()[:8].upper()}"


def _legal(text: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", text.upper())


def is_function_trait(trait: str) -> bool:
    """Whether a trait stands for a function."""
    return trait.startswith(f"{_TRAIT}_")


def same(one: str, other: str | None) -> bool:
    """Whether two ids name the same function, whatever their hyphens and case."""
    return other is not None and plain(one) == plain(other)


def plain(function_id: str) -> str:
    """A function's id in the form in which such ids are compared and found in SQL."""
    return function_id.replace("-", "").upper()
