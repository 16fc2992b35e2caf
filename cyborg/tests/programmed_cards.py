# SPDX-License-Identifier: Apache-2.0
"""Cards with FPGAs as they are, whoever knows, the images for them, and who uses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from cyborg import rpc
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.apply import provider_uuid
from cyborg.programming import program
from cyborg.tests import hosts

FUNCTIONS = ("aes", "zip")
#: Images of functions by their names; the second of one is newer.
IMAGES = {name: models.new_uuid() for name in ("aes-1", "aes-2", "zip-1")}
#: The image that overwrites what guests have left; it has no function.
BLANK = models.new_uuid()
_NAMES = {uuid: name for name, uuid in IMAGES.items()} | {BLANK: ""}
#: What stands for an image where a card has a layout.
LAYOUTS = {f"layout {name}": name for name in FUNCTIONS}
#: What is asked for, by a name.
PROGRAMS = {
    **{name: program.Program(function_id=name) for name in FUNCTIONS},
    **{name: program.Program(image_uuid=IMAGES[name]) for name in ("aes-1", "aes-2")},
    "image of aes": program.Program(image_name="aes"),
    "named zip": program.Program(function_name="Zip"),
}
PROFILES = {
    "any": {},
    **{name: {"accel:function_id": name} for name in FUNCTIONS},
    "aes-2": {"accel:bitstream_id": IMAGES["aes-2"]},
    "named aes": {"accel:function_name": "Aes"},
    "needs aes": {f"trait:{program.function_trait('FAKE', 'aes')}": "required"},
}


def function_of(image: str) -> str:
    """The function of an image; none where there is no image."""
    return (LAYOUTS.get(image) or _NAMES[image].partition("-")[0]) if image else ""


@dataclass(slots=True)
class Fpga:
    """A card as it is, whoever knows."""

    letter: str
    mode: str
    handles: int
    #: Whether its handles are prepared for each use, and cleaned after it.
    stepped: bool = False
    #: Whether it is overwritten between two guests.
    wiped: bool = False
    #: The numbers of handles whose guests may have left something on it.
    left: set[int] = field(default_factory=set)
    #: The image of what the hardware runs.
    image: str = ""
    #: What it ran when its program was lost, until it is known for sure what it runs.
    before: str = ""
    #: What a process that outlived its agent still writes.
    child: str | None = None
    #: It was lost, and Placement has not been told: nobody has looked, or nobody has said so.
    lost: bool = False
    looked_at: bool = True
    losses: int = 0
    #: Whether the next look at it will show nothing, whatever it runs.
    misread: bool = False

    @property
    def name(self) -> str:
        return f"host-1_{self.letter}"

    @property
    def provider(self) -> str:
        return provider_uuid(self.name)

    @property
    def loaded(self) -> str:
        """The function that the hardware shows."""
        return function_of(self.image)

    @property
    def numbers(self) -> range:
        """Of all handles that it may have."""
        first = ord(self.letter) * 8
        if self.mode != base.LAYOUT:
            return range(first, first + self.handles)
        return range(first, first + sum(map(self.size_with, FUNCTIONS)))

    def numbers_with(self, function: str) -> range:
        """Of the handles that it has with what it runs: each layout has others."""
        if self.mode != base.LAYOUT:
            return self.numbers
        if not function:
            return self.numbers[:0]
        first = sum(map(self.size_with, FUNCTIONS[: FUNCTIONS.index(function)]))
        return self.numbers[first : first + self.size_with(function)]

    def size_with(self, function: str) -> int:
        """How many handles it has with what it runs: the parts of layouts differ in size."""
        return self.handles + (FUNCTIONS.index(function) if self.mode == base.LAYOUT else 0)

    def device(self) -> base.Device:
        """The card as its driver finds it."""
        shown = "" if self.misread else self.loaded
        has_layouts = self.mode == base.LAYOUT
        sizes = {name: str(self.size_with(name)) for name in FUNCTIONS}
        layouts = {f"{base.LAYOUT_PREFIX}{name}": size for name, size in sizes.items()}
        part = hosts.deployable(
            self.name,
            self.numbers_with(shown),
            program_mode=self.mode,
            attributes=layouts if has_layouts else {},
            function=shown,
            function_vendor="FAKE",
            prepares=self.stepped,
            cleans=self.stepped,
            blank_image=BLANK if self.wiped else None,
        )
        return hosts.device(self.letter, part)

    def load(self, image: str) -> None:
        """All of it is overwritten; the blank image is nothing that it runs."""
        self.image = "" if image == BLANK else image
        self.left.clear()

    def lose(self) -> None:
        """The power fails; whatever writes it fails too."""
        self.before = self.image or self.before
        self.image, self.child = "", None
        self.lost, self.looked_at, self.losses = True, False, self.losses + 1

    def end_child(self) -> None:
        """What still writes it has written."""
        if self.child is not None:
            self.load(self.child)
            self.child = None


@dataclass(slots=True)
class Guest:
    """An instance as Nova sees it, and what it was promised."""

    uuid: str
    arq: str
    card: Fpga
    profile: str
    #: The image that its card ran when it was given a handle.
    got: str | None = None

    @property
    def function(self) -> str | None:
        """The function that it asked for."""
        if self.profile == "needs aes":
            return "aes"
        asks = PROFILES[self.profile]
        return asks.get("accel:function_id") or asks.get("accel:function_name", "").lower() or None

    @property
    def image(self) -> str | None:
        """The image that it asked for."""
        return PROFILES[self.profile].get("accel:bitstream_id")

    def is_served_by(self, image: str) -> bool:
        """Whether that is what it asked for; a card with one program gives nothing without it."""
        asked = self.function in {None, function_of(image)} and self.image in {None, image}
        return asked and bool(image or self.card.mode == base.DYNAMIC)


@dataclass(frozen=True, slots=True)
class Pass:
    """A report under way, and how often each card had lost its program when it was looked at."""

    report: rpc.HostReport
    losses: dict[str, int]
    #: The letters of those that were misread.
    misread: frozenset[str]


class Record(NamedTuple):
    """What a deployable is recorded to run; nothing is None."""

    image: str | None
    function: str | None
    function_name: str | None

    def holds(self, image: str) -> bool:
        """Whether that is the image which it runs, as far as the record says anything."""
        function = function_of(image)
        return (
            self.image in {None, image}
            and self.function in {None, function}
            and self.function_name in {None, function.title()}
        )
