# SPDX-License-Identifier: Apache-2.0
"""Request groups of device profiles: the flat map of strings, parsed in one place."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from oslo_utils import uuidutils

#: What keys begin with, before a colon: the amount of a resource class, and a trait.
RESOURCES = "resources"
TRAIT = "trait"
#: The values of a trait.
REQUIRED = "required"
FORBIDDEN = "forbidden"

#: Keys that ask for a program.
BITSTREAM_ID = "accel:bitstream_id"
FUNCTION_ID = "accel:function_id"
FUNCTION_NAME = "accel:function_name"
#: Keys that sort allocation candidates and exclude none.
PREFERRED_FUNCTION = "accel:preferred_function"
PREFERRED_TRAIT = "accel:preferred_trait"
#: Whether it may be given what is tainted: ``true`` or ``false``.
TOLERATE_TAINT = "accel:tolerate_taint"
#: Every key with that prefix that means something.
ACCEL_KEYS = (
    BITSTREAM_ID,
    FUNCTION_ID,
    FUNCTION_NAME,
    PREFERRED_FUNCTION,
    PREFERRED_TRAIT,
    TOLERATE_TAINT,
)
#: The trait of what is tainted. Cyborg sets it, and forbids it in the groups that Nova reads.
TAINT = "CUSTOM_CYBORG_TAINTED"

#: The trait of Xilinx cards: each has two functions, and a guest needs both.
TWO_HANDLES = "CUSTOM_FPGA_XILINX"
#: The resource class of both.
_TWO_OF = "FPGA"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """The demand of one group. A field is None or empty if the group has no such key."""

    #: Amount by resource class.
    resources: Mapping[str, int]
    #: ``required`` or ``forbidden`` by trait, in the group's order.
    traits: Mapping[str, str]
    image_uuid: str | None = None
    function_id: str | None = None
    function_name: str | None = None
    preferred_function: str | None = None
    preferred_traits: frozenset[str] = frozenset()
    #: Whether it may be given what is tainted.
    tolerates_taint: bool = False

    @classmethod
    def parse(cls, group: Mapping[str, str]) -> RequestGroup:
        """The group as a device profile or an ARQ stores it."""
        named: dict[str, dict[str, str]] = {RESOURCES: {}, TRAIT: {}}
        for key, value in group.items():
            kind, _, name = key.partition(":")
            if kind in named:
                named[kind][name] = value
        preferred = (name.strip() for name in group.get(PREFERRED_TRAIT, "").split(","))
        return cls(
            resources={name: int(amount) for name, amount in named[RESOURCES].items()},
            traits=named[TRAIT],
            image_uuid=_image_uuid(group.get(BITSTREAM_ID)),
            function_id=group.get(FUNCTION_ID) or None,
            function_name=group.get(FUNCTION_NAME) or None,
            preferred_function=group.get(PREFERRED_FUNCTION) or None,
            preferred_traits=frozenset(preferred) - {""},
            tolerates_taint=group.get(TOLERATE_TAINT, "").lower() == "true",
        )

    @property
    def names_program(self) -> bool:
        """True if it asks for a program, by image or function."""
        return any((self.image_uuid, self.function_id, self.function_name))

    @property
    def required(self) -> frozenset[str]:
        """The traits that a provider must have."""
        return frozenset(name for name, how in self.traits.items() if how == REQUIRED)

    @property
    def forbidden(self) -> frozenset[str]:
        """The traits that a provider must not have."""
        return frozenset(name for name, how in self.traits.items() if how == FORBIDDEN)

    @property
    def accelerators(self) -> int:
        """The number of accelerators that it asks for, however many ARQs that makes."""
        return sum(self.resources.values())

    @property
    def classes(self) -> list[str]:
        """The resource class of each ARQ that is made of it."""
        each = [name for name, amount in self.resources.items() for _ in range(amount)]
        return each + [_TWO_OF] * (self.arqs - len(each))

    @property
    def arqs(self) -> int:
        """The number of ARQs that are made of it."""
        twice = self.resources.get(_TWO_OF, 0) if TWO_HANDLES in self.required else 0
        return self.accelerators + twice

    def without_tainted(self) -> RequestGroup:
        """The group as Placement is asked for it: without what is tainted, unless it may be."""
        if self.tolerates_taint or not self.resources:
            return self
        return dataclasses.replace(self, traits={**self.traits, TAINT: FORBIDDEN})


def with_taint_forbidden(group: Mapping[str, str]) -> dict[str, str]:
    """The group with the taint forbidden, as it is shown to who asks Placement."""
    traits = RequestGroup.parse(group).without_tainted().traits
    return {**group, **{f"{TRAIT}:{name}": how for name, how in traits.items()}}


def _image_uuid(value: str | None) -> str | None:
    """In the form in which UUIDs are stored; a text that is no UUID as it is."""
    if value and uuidutils.is_uuid_like(value):
        return str(uuid.UUID(value))
    return value or None
