# SPDX-License-Identifier: Apache-2.0
"""Write the drawings and the lists of states in the documentation, from the code.

Run it when ``cyborg/programming/states.py`` or ``cyborg/states/handle_states.py`` has changed.
"""

from __future__ import annotations

import enum
import math
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.sax import saxutils

from cyborg.db import models
from cyborg.programming import states
from cyborg.states import handle_states


class Machine(NamedTuple):
    """What has states: its module, and how it is drawn."""

    name: str
    #: With ``STATES``, ``Event`` and ``TABLE``.
    module: Any
    #: The states around a circle, such that those that follow each other are near.
    around: tuple[str, ...]
    #: Those that are filled.
    filled: frozenset[str]


MACHINES = (
    Machine(
        "program",
        states,
        (
            "loaded",
            "lost",
            "restoring",
            "damaged",
            "blank",
            "writing",
            "withdrawn",
            "unmanaged",
        ),
        models.SETTLED,
    ),
    Machine(
        "handle",
        handle_states,
        ("clean", "to_overwrite", "to_clean"),
        frozenset({models.CLEAN}),
    ),
)
_WIDTH, _HEIGHT, _BOX = 960, 720, (104, 34)

_HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"
 font-family="sans-serif" role="img" aria-label="What may follow each state of a %s">
<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"
 orient="auto"><path d="M0,0L8,4L0,8z" fill="#555"/></marker></defs>"""

_Point = tuple[float, float]


#: Where they are written.
FOLDER = pathlib.Path(__file__).parents[1] / "doc/source/contributor"


def arrows(machine: Machine) -> dict[tuple[str, str], list[str]]:
    """The events that lead from one state to another, by both."""
    found: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in machine.module.TABLE.items():
        if before != after:
            found.setdefault((before, after), []).append(_name(event))
    return found


def _name(event: enum.Enum) -> str:
    return event.name.lower().replace("_", " ")


def drawing(machine: Machine) -> str:
    """The SVG drawing. What leaves a state as it is has no arrow."""
    count = len(machine.around)
    places = {
        state: (
            _WIDTH / 2 + 390 * math.sin(2 * math.pi * number / count),
            _HEIGHT / 2 - 310 * math.cos(2 * math.pi * number / count),
        )
        for number, state in enumerate(machine.around)
    }
    parts = [_HEAD % machine.name]
    for (before, after), events in arrows(machine).items():
        parts += _arrow(places[before], places[after], events)
    for state, (x, y) in places.items():
        fill = "#d5e8d4" if state in machine.filled else "#ffffff"
        parts.append(
            f'<rect x="{x - _BOX[0] / 2:.0f}" y="{y - _BOX[1] / 2:.0f}" width="{_BOX[0]}" '
            f'height="{_BOX[1]}" rx="8" fill="{fill}" stroke="#333"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" font-size="15">{state}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _arrow(start: _Point, end: _Point, events: list[str]) -> Iterator[str]:
    """A line that bends to its left, so that the one that leads back is beside it."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    bend = 34 / length
    middle = ((x1 + x2) / 2 + (y2 - y1) * bend, (y1 + y2) / 2 - (x2 - x1) * bend)
    tail, head = _edge(start, middle), _edge(end, middle)
    yield (
        f'<path d="M{tail[0]:.0f},{tail[1]:.0f}Q{middle[0]:.0f},{middle[1]:.0f} '
        f'{head[0]:.0f},{head[1]:.0f}" fill="none" stroke="#777" marker-end="url(#arrow)"/>'
    )
    # Near its tail: in the middle they would all meet.
    at = 0.36
    x, y = (
        (1 - at) ** 2 * a + 2 * at * (1 - at) * b + at**2 * c
        for a, b, c in zip(tail, middle, head, strict=True)
    )
    for number, event in enumerate(events):
        yield (
            f'<text x="{x:.0f}" y="{y + 12 * number:.0f}" text-anchor="middle" font-size="11" '
            f'stroke="#fff" stroke-width="4" paint-order="stroke">{saxutils.escape(event)}</text>'
        )


def _edge(place: _Point, towards: _Point) -> _Point:
    """Where a line from the centre of a box towards a point leaves the box."""
    dx, dy = towards[0] - place[0], towards[1] - place[1]
    share = min(
        _BOX[0] / 2 / abs(dx) if dx else math.inf, _BOX[1] / 2 / abs(dy) if dy else math.inf
    )
    return place[0] + dx * share, place[1] + dy * share


def lines(machine: Machine) -> Iterator[str]:
    """Each state with its meaning and what may follow, then each event, as reStructuredText."""
    for state, meaning in machine.module.STATES.items():
        yield f"``{state}``"
        yield f"    {meaning}"
        yield ""
        for (before, event), after in machine.module.TABLE.items():
            if before == state:
                yield f"    - *{_name(event)}*: {'stays' if after == state else f'``{after}``'}"
        yield ""
    yield "The events:"
    yield ""
    ((_, first), *_) = machine.module.TABLE
    for event in type(first):
        yield f"*{_name(event)}*"
        yield f"    {event.value}"
        yield ""


def files() -> dict[str, str]:
    """The files by name."""
    found = {}
    for machine in MACHINES:
        text = [".. Made by tools/draw_states.py.", "", *lines(machine)]
        found[f"{machine.name}-states.svg"] = drawing(machine)
        found[f"{machine.name}-states.inc"] = "\n".join(text)
    return found


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
